"""What ``cimport dlbf`` and ``from dlbf cimport ...`` give; all else under ``dlbf.kernels`` may change at any time."""

from dlbf.capi cimport FilterReader
