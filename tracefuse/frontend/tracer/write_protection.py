"""Write protection of captured arrays during a trace: NumPy may read them, and a write raises an error.

Such a write would run only at the trace. NumPy arrays are read-only until the trace is over, so that NumPy itself
stops before it changes anything. If the flag could not be restored, as for memory of another library, contents are
compared and restored.

Must not know: fusions.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from tracefuse import source
from tracefuse.errors import ReadOnlyError
from tracefuse.frontend.tracer.captures import Place, is_array
from tracefuse.frontend.tracer.code_names import names_at
from tracefuse.frontend.tracer.in_place import of_captured

Result = TypeVar("Result")

_LOCK = threading.RLock()
# The traces, of any thread, that protect an array: maps its id to the ids of their WriteProtections.
_HOLDERS: dict[int, set[int]] = {}


class WriteProtection:
    """Makes captured arrays read-only while a function runs.

    places: the places of the arrays. where: the line of the traced function. paths: the path of each array in the
    function, by array id.
    """

    def __init__(self, places: Iterable[Place], where: str | None) -> None:
        self.paths: dict[int, str] = {}
        self._where = where
        self._arrays: list[Any] = []
        self._held: list[Any] = []
        self._copies: list[tuple[Any, Any]] = []
        for place in places:
            array = place.value
            if is_array(array) and id(array) not in self.paths:
                self.paths[id(array)] = place.path
                if isinstance(array, np.ndarray):
                    self._arrays.append(array)

    def run(self, call: Callable[[], Result]) -> Result:
        """Returns the result of `call()`, which runs while the arrays are read-only.

        Raises ReadOnlyError for an array that the call changed nevertheless; its contents are restored. An interrupt
        at any point leaves every array as writable as it was.
        """
        try:
            try:
                self._hold()
                result = call()
            finally:
                self._release()
        except BaseException:
            self._release()  # a second time, since an interrupt may have stopped the first
            self._restore_contents()
            raise
        changed = self._restore_contents()
        if changed is not None:
            raise of_captured(self.paths[id(changed)], self._where)
        return result

    def _hold(self) -> None:
        """Makes the arrays read-only; copies arrays whose flag could not be restored."""
        with _LOCK:
            for array in self._arrays:
                is_held = id(array) in _HOLDERS
                if not is_held and not array.flags.writeable:
                    continue
                if is_held or _can_be_undone(array):
                    self._held.append(array)
                    _HOLDERS.setdefault(id(array), set()).add(id(self))
                    array.setflags(write=False)
                else:
                    self._copies.append((array, array.copy()))

    def _release(self) -> None:
        """Makes the arrays writable again, except arrays that another trace protects."""
        with _LOCK:
            # Owners of memory first: NumPy makes a view writable only if its base is.
            for array in sorted(self._held, key=lambda array: len(list(_bases(array)))):
                holders = _HOLDERS.get(id(array), set())
                holders.discard(id(self))
                if not holders:
                    array.setflags(write=True)
                    _HOLDERS.pop(id(array), None)
            self._held.clear()

    def _restore_contents(self) -> Any | None:
        """Restores the contents of copied arrays; returns the first changed array."""
        changed = [(array, before) for array, before in self._copies if array.tobytes() != before.tobytes()]
        self._copies.clear()
        for array, before in changed:
            array[...] = before
        return changed[0][0] if changed else None

    def refusal(self, error: Exception) -> ReadOnlyError | None:
        """Returns the error to raise if a NumPy error says that a protected array cannot be written."""
        if not isinstance(error, ValueError) or isinstance(error, ReadOnlyError) or "read-only" not in str(error):
            return None
        entries = []
        entry = error.__traceback__
        while entry is not None:
            if not source.is_internal(entry.tb_frame.f_code.co_filename):
                entries.append(entry)
            entry = entry.tb_next
        if not entries:
            return None
        frame, line = entries[-1].tb_frame, entries[-1].tb_lineno
        path = self._path_at(frame, names_at(frame.f_code, line))
        return None if path is None else of_captured(path, source.line_in(frame.f_code, line))

    def _path_at(self, frame: FrameType, names: frozenset[str]) -> str | None:
        """Returns the path of the protected array that a line with these names refers to."""
        for name in sorted(names):
            value = frame.f_locals.get(name, frame.f_globals.get(name))
            if issubclass(type(value), np.ndarray):
                for array in (value, *_bases(value)):
                    if id(array) in self.paths:
                        return self.paths[id(array)]
        return next((path for path in self.paths.values() if not names.isdisjoint(_WORD.findall(path))), None)


_WORD = re.compile(r"\w+")


def _can_be_undone(array: Any) -> bool:
    """Whether NumPy allows the array to become writable again: the owner of its memory decides."""
    owner = [array, *_bases(array)][-1]
    if owner.base is None or owner.flags.owndata:
        return True
    try:
        return not memoryview(owner.base).readonly
    except (TypeError, BufferError):
        return False


def _bases(array: Any) -> Iterator[Any]:
    """Yields the bases of an array, from the nearest to the owner of its memory."""
    base = array.base
    while isinstance(base, np.ndarray):
        yield base
        base = base.base
