"""Compiled kernels: flat-buffer filters, the hash and the reading of keys."""
