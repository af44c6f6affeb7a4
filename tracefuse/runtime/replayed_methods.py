"""Fused functions whose calls are replayed without Python code (`kernel/llvm/direct_calls.py`).

The first call that could be gives the class its method; until then nothing is compiled for it.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from tracefuse.config import BLOCKS
from tracefuse.kernel.llvm import direct_calls
from tracefuse.kernel.llvm.launch_functions import MethodDefinition, owner_of
from tracefuse.kernel.llvm.replay_records import ReplayChain
from tracefuse.kernel.llvm.worker_pool import get_pool
from tracefuse.runtime.donated_arrays import DONORS

_VARARGS, _KEYWORDS = 0x1, 0x2

_NAMES = tuple(map(sys.intern, ("_cache", "direct", "first")))

_kept: list[object] = []
_lock = threading.Lock()


def prepare(kind: type, function: Callable[..., Any], current: ContextVar[Any]) -> None:
    """Gives the class of fused functions a `__call__` that replays calls, once a function is one of a chain of records.

    function: runs the plan of a call. The class keeps its traces in `_cache`, whose `direct` is a tuple of plans, the
    address of a count and watched values. current: calls inside of a trace go to Python, where it is not None. One
    class of a process is given such a method.
    """
    if _kept or not isinstance(owner_of(function), ReplayChain):
        return
    entry = get_pool().launches[direct_calls.CALL]
    with _lock:
        if not _kept:
            _kept.extend(_give(kind, entry, current))


def _give(kind: type, entry: int, current: ContextVar[Any]) -> list[object]:
    """Replaces the `__call__` of a class, and returns what the new one refers to."""
    otherwise = kind.__dict__["__call__"]
    cache, direct, first = map(id, _NAMES)
    direct_calls.set_words((id(BLOCKS), id(current)), id(DONORS), id(otherwise), (cache, direct, first))
    definition = MethodDefinition(b"__call__", entry, _VARARGS | _KEYWORDS, None)
    describe = ctypes.pythonapi.PyDescr_NewMethod
    describe.restype, describe.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.c_void_p)
    setattr(kind, "__call__", describe(kind, ctypes.addressof(definition)))  # noqa: B010
    return [otherwise, definition, current]
