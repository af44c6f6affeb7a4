"""Objects that give other code their bytes, in a trace: `bytearray`, `array.array`, `memoryview`, `mmap`, ctypes data.

No write to such an object is recorded. The trace reads a copy, every call compares the bytes of the object, and a trace
that changes its copy raises, so that the object itself stays as it is. An object that lies in the memory of an array
that the function updates in place is refused, since the copy does not see the update.

Must not know: overlays of values, fusions.
"""

from __future__ import annotations

import array
import ctypes
import functools
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import pytrees
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.captured.routes import CallRoots, Route
from tracefuse.runtime.argument_leaves import Leaf

_C_DATA = ctypes.c_int.__mro__[2]
_POINTERS: tuple[Any, ...] = (ctypes._Pointer, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_wchar_p, ctypes.py_object)
_FUNCTIONS = ctypes._CFuncPtr  # type: ignore[attr-defined]
_BUFFERS: tuple[Any, ...] = (bytearray, array.array, memoryview, mmap.mmap, _C_DATA)


def is_buffer(value: Any) -> bool:
    """Whether a value is an object of Python that gives other code its bytes; a function of C is none."""
    return isinstance(value, _BUFFERS) and not isinstance(value, _FUNCTIONS)


class BufferCopies:
    """The copies of one trace. The objects are compared by identity at every call."""

    def __init__(self) -> None:
        self._copies: list[tuple[Place, Any, Any]] = []

    def copy(self, place: Place) -> tuple[Any, Place]:
        """Returns a copy of the object at a place, and the place of its bytes, which every call compares.

        Raises UnsupportedError for a pointer.
        """
        original = place.value
        if isinstance(original, _POINTERS):
            raise UnsupportedError(
                f"{place.path}, a {type(original).__name__}, points to memory that no call can compare",
                hint="make an array of it outside the fused function: np.ctypeslib.as_array(pointer, shape)",
                where=place.where,
            )
        contents, copy = contents_of(original), _copy_of(original)
        self._copies.append((place, copy, contents))
        return copy, place.derived("bytes({})", contents_of, contents)

    def check_unchanged(self) -> None:
        """Raises UnsupportedError if the trace changed a copy."""
        for place, copy, contents in self._copies:
            if contents_of(copy) != contents:
                kind, path = type(place.value).__name__, place.path
                raise UnsupportedError(
                    f"the function changes {path}, whose type is {kind}; no later call would change it",
                    hint=f"change an array in the same memory: a = np.frombuffer({path}, dtype) outside the function",
                    where=place.where,
                )

    def guards(self, updated: Sequence[Place | None], leaves: Sequence[Leaf], roots: CallRoots) -> list[Place]:
        """The places that every call compares, so that the arrays that it updates share the memory of no object here.

        updated: the places of captured arrays that the function updates in place. leaves: the arguments that it
        updates. Raises UnsupportedError if one of them shares memory with an object here.
        """
        places = [place for place in updated if place is not None]
        for value, path in ((entry.value, entry.path) for group in (places, leaves) for entry in group):
            self._check_apart(value, path)
        if leaves:
            places += [Place(f"argument {k}", Route(None, "argument", k), v) for k, v in enumerate(roots.arguments)]
            places += [Place(name, Route(None, "keyword", name), value) for name, value in roots.keywords.items()]
        return [
            at.derived(f"memory that {{}} shares with {buffer.path}", function, function(at.value))
            for at in places
            for buffer, _, _ in self._copies
            for function in [functools.partial(_shared, buffer.value)]
        ]

    def _check_apart(self, updated: Any, path: str) -> None:
        for place, _, _ in self._copies:
            if any(_shared(place.value, updated)):
                raise UnsupportedError(
                    f"{path} is changed in place and {place.path} lies in the same memory",
                    hint=f"read {path} in place of {place.path}", where=place.where,
                )  # fmt: skip

    def forget(self) -> None:
        """Drops the copies."""
        self._copies.clear()


def contents_of(value: Any) -> Any:
    """The bytes of an object, with the element type of an array and the position of a file in memory."""
    if isinstance(value, mmap.mmap):
        return value[:], value.tell()
    return (value.typecode, value.tobytes()) if isinstance(value, array.array) else bytes(value)


def _copy_of(value: Any) -> Any:
    """A copy of an object, with its type and its attributes; no code of the user runs."""
    if isinstance(value, memoryview):
        copy = memoryview(np.array(value))  # type: ignore[arg-type]
        if copy.format != value.format:
            copy = memoryview(bytearray(value.tobytes())).cast(value.format, value.shape)  # type: ignore[call-overload]
        return copy.toreadonly() if value.readonly else copy
    if isinstance(value, mmap.mmap):
        copied = mmap.mmap(-1, len(value))
        copied[:] = value[:]
        copied.seek(value.tell())
        return copied
    cls: Any = type(value)
    if isinstance(value, bytearray):
        new: Any = bytearray.__new__(cls)
        bytearray.__init__(new, value)
    elif isinstance(value, array.array):
        new = array.array.__new__(cls, value.typecode, value)
    else:
        new = cls.from_buffer_copy(value)
    if hasattr(value, "__dict__"):
        vars(new).update(vars(value))
    return new


def _shared(buffer: Any, tree: Any) -> tuple[bool, ...]:
    """Whether each array of NumPy in a tree shares memory with an object."""
    view = np.asarray(buffer) if isinstance(buffer, memoryview) else _bytes_of(buffer)
    return tuple(np.may_share_memory(view, leaf) for leaf in pytrees.flatten(tree)[0] if isinstance(leaf, np.ndarray))


def _bytes_of(buffer: Any) -> np.ndarray[Any, Any]:
    """The memory of an object as an array."""
    with memoryview(buffer) as view:
        return np.frombuffer(buffer, np.uint8) if view.nbytes else np.empty(0, np.uint8)
