"""Nothing of the descent is for other kernels; see descent.pyx."""
