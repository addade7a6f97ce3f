"""Builds the example against the installed dlbf: nothing of its sources is needed, only the .pxd files of the wheel."""

from Cython.Build import cythonize
from setuptools import Extension, setup

setup(name="ask", ext_modules=cythonize([Extension("ask", ["ask.pyx"])], language_level=3))
