"""The asv suite of dlbf; one module per area, keys made by dlbf.bench.keys."""
