"""Methods of compiled classes that are called through a Python subclass as fast as through the class itself.

The interpreter (3.11 on) calls a built-in method without a detour only if the object is of the very type that the
method's descriptor was made for.  A subclass inherits the descriptor of its base, and every call takes the long way:
some ten nanoseconds, a sixth of what a question costs that a filter answers.  `own_methods` gives a subclass
descriptors of its own, for the same C functions.
"""

from cpython.object cimport PyTypeObject

from types import MethodDescriptorType

cdef extern from "Python.h":
    ctypedef struct PyMethodDef:
        pass
    ctypedef struct PyMethodDescrObject:
        PyMethodDef* d_method
    object PyDescr_NewMethod(PyTypeObject* cls, PyMethodDef* method)


def own_methods(*names):
    """A decorator for classes: make descriptors of its own for methods that it inherits from a compiled base.

    They must be plain methods (``@cython.binding(False)``); function objects have no such descriptors.
    """

    def give(cls):
        for name in names:
            found = getattr(cls, name)
            if type(found) is not MethodDescriptorType:
                raise TypeError(f"{cls.__name__}.{name} is no plain method of a compiled class, but {found!r}")
            setattr(cls, name, PyDescr_NewMethod(<PyTypeObject*>cls, (<PyMethodDescrObject*>found).d_method))
        return cls

    return give
