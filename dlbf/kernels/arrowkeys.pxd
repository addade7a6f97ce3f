"""Keys of Arrow arrays and streams, by the PyCapsule interface; pyarrow itself is never imported."""

from dlbf.kernels.keychunks cimport KeyReader


# A reader of what has ``__arrow_c_array__`` or ``__arrow_c_stream__``; None if that needs a pyarrow that is not there.
cdef KeyReader arrow_reader(object keys)
