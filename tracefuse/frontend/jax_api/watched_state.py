"""Finds out whether a function changes state while JAX traces it, and undoes the changes.

A program of XLA cannot write state of Python: JAX would run the write once, at the trace, and leave its tracers behind.
Watched are the objects that a function reaches by its closure, its globals and the object that it is bound to. Entries
that are new and hold no tracer, as those of caches, are no changes.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

MOST_OBJECTS = 4096
"""Objects that are watched, nearest to the function first."""

_OPAQUE = (type, types.ModuleType, str, bytes, int, float, complex, bool, type(None), types.BuiltinFunctionType)


class WatchedState:
    """The state that a function reaches, as it is now. arguments: of the call that are no arrays."""

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any] = ()) -> None:
        self._saved: list[tuple[str, Any, Any]] = []
        seen: set[int] = set()
        waiting: list[tuple[str, Any]] = [(getattr(function, "__name__", "the function"), function)]
        waiting += [(f"a {type(argument).__name__}", argument) for argument in arguments]
        for path, value in waiting:
            if isinstance(value, _OPAQUE) or hasattr(value, "dtype") or id(value) in seen or len(seen) > MOST_OBJECTS:
                continue
            seen.add(id(value))
            waiting += self._visit(path, value)

    def _visit(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Saves the contents of an object, and yields what it holds."""
        if isinstance(value, types.MethodType):
            yield from ((path, value.__func__), ("self", value.__self__))
        elif isinstance(value, types.FunctionType):
            yield from self._visit_function(value)
        elif isinstance(value, (dict, list, set)):
            self._saved.append((path, value, value.copy()))
            if not isinstance(value, set):
                pairs = value.items() if isinstance(value, dict) else enumerate(value)
                yield from [(f"{path}[{key!r}]", entry) for key, entry in pairs]
        elif isinstance(value, tuple):
            yield from [(f"{path}[{key}]", entry) for key, entry in enumerate(value)]
        elif isinstance(getattr(value, "__dict__", None), dict) and not type(value).__module__.startswith("jax"):
            attributes = vars(value)
            defaults = {name: entry for name, entry in vars(type(value)).items() if not hasattr(entry, "__get__")}
            self._saved.append((path, _Attributes(attributes, defaults), attributes.copy()))
            yield from [(f"{path}.{name}", entry) for name, entry in attributes.items()]

    def _visit_function(self, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                contents = cell.cell_contents
            except ValueError:  # an empty cell
                continue
            self._saved.append((name, cell, contents))
            yield name, contents
        for name in _names(function.__code__):
            if name in function.__globals__:
                self._saved.append((name, (function.__globals__, name), function.__globals__[name]))
                yield name, function.__globals__[name]

    def take_back(self) -> str | None:
        """Undoes changes, and returns the name of the first object that was changed; None without any."""
        changed = [path for path, holder, saved in self._saved if _restore(holder, saved)]
        return changed[0] if changed else None


class _Attributes:
    """The attributes of an object. defaults: those of its class, which an assignment hides."""

    def __init__(self, entries: dict[str, Any], defaults: dict[str, Any]) -> None:
        self.entries, self.defaults = entries, defaults


def _names(code: types.CodeType) -> Iterator[str]:
    """The names of globals and attributes in code, and in the functions that it defines."""
    waiting = [code]
    while waiting:
        current = waiting.pop()
        yield from current.co_names
        waiting += [constant for constant in current.co_consts if isinstance(constant, types.CodeType)]


def _restore(holder: Any, saved: Any) -> bool:
    """Whether the contents of a holder changed; if so, they are what was saved again."""
    if isinstance(holder, types.CellType):
        if holder.cell_contents is saved:
            return False
        holder.cell_contents = saved
        return True
    if isinstance(holder, tuple):
        namespace, name = holder
        if namespace.get(name) is saved:
            return False
        namespace[name] = saved
        return True
    if isinstance(holder, _Attributes):
        hidden = any(name in holder.defaults for name in holder.entries.keys() - saved.keys())
        if not hidden and not _is_changed(holder.entries, saved):
            return False
        holder.entries.clear()
        holder.entries.update(saved)
        return True
    if isinstance(holder, dict):
        if not _is_changed(holder, saved):
            return False
        holder.clear()
        holder.update(saved)
        return True
    if len(holder) == len(saved) and all(before is after for before, after in zip(holder, saved, strict=True)):
        return False
    if isinstance(holder, set):
        holder.clear()
        holder.update(saved)
    else:
        holder[:] = saved
    return True


def _is_changed(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    if any(key not in now or now[key] is not value for key, value in before.items()):
        return True
    return any(_is_traced(value) for key, value in now.items() if key not in before)


def _is_traced(value: Any) -> bool:
    import jax

    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(value))
