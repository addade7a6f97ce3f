"""Base filters: the public set-like classes over the compiled kernels."""
