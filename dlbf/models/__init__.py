"""Models: trained with scikit-learn, compiled to integers, scored identically everywhere."""
