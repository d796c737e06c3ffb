"""Decorators that compile functions over arrays with numba; only kernel modules import this.

The machine code is kept on disk, next to the module of the function. Numba notices only changes of
that module, so functions that call each other stand in one file.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit

_Function = TypeVar("_Function", bound=Callable[..., Any])

_KEPT: Any = {"cache": True, "error_model": "numpy"}
_INNER: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}


def compiled(function: _Function) -> _Function:
    """Compile a function that Python calls."""
    made: _Function = njit(**_KEPT)(function)
    return made


def inner(function: _Function) -> _Function:
    """Compile a function that compiled ones alone call, and that makes no array.

    It has no way in from Python and counts no references; that saves a third of the compile time.
    """
    made: _Function = njit(**_KEPT, **_INNER)(function)
    return made
