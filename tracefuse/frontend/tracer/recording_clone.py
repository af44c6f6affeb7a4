"""Clones the user's function for a trace, with recording functions in place of NumPy's.

NumPy's creation functions do not dispatch on a traced size, and traced elements cannot be written into their results.
The clone has the user's code and an overlay of its globals and cells that replaces NumPy's modules and those
functions. Every other name is looked up in its original scope. Neither NumPy nor the user's modules change.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from tracefuse.errors import TracefuseError
from tracefuse.frontend.tracer.code_names import CodeNames
from tracefuse.frontend.tracer.library_functions import twin
from tracefuse.frontend.tracer.recorder import current

Replacements = Mapping[int, Any]
"""Recording functions, and twins of random generators, by the id of what each replaces."""


class RecordingModule(ModuleType):
    """A module in which recording functions replace some functions. modules: the twins of modules inside it, by id."""

    def __init__(self, module: ModuleType, replacements: Replacements, modules: Mapping[int, ModuleType]) -> None:
        super().__init__(module.__name__)
        self.__dict__["_of"] = module, replacements, modules

    def __getattr__(self, name: str) -> Any:
        module, replacements, modules = self.__dict__["_of"]
        value = getattr(module, name)
        return modules.get(id(value)) or replacements.get(id(value), value)


class _Overlay(dict[str, Any]):
    """Globals with some names replaced; lookups of all other names read the module's current globals."""

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__(__builtins__=names.get("__builtins__", builtins))
        self.names = names

    def __missing__(self, name: str) -> Any:
        return captured_or_same(self.names[name])

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self.names

    def get(self, name: str, default: Any = None) -> Any:
        try:
            return self[name]
        except KeyError:
            return default


def clone(function: Any, replacements: Replacements, modules: tuple[ModuleType, ...], names: CodeNames) -> Any:
    """Returns `function` with recording functions, or `function` itself if its code reads none of them."""
    if isinstance(function, MethodType):
        inner = clone(function.__func__, replacements, modules, names)
        return function if inner is function.__func__ else MethodType(inner, function.__self__)
    if not isinstance(function, FunctionType):
        return function
    reached = _reached(function, names)
    spelled = {getattr(value, "__name__", "") for value in replacements.values()}
    if not any(_reads(one, replacements, modules, spelled, names) for one in reached):
        return function
    return _Cloning(replacements, modules, names, reached).of(function)


def _reached(function: FunctionType, names: CodeNames) -> list[FunctionType]:
    """Returns the user functions reachable by a global or a cell, `function` first; none that binds a global."""
    reached: dict[int, FunctionType] = {}
    waiting = [function]
    while waiting:
        one = waiting.pop()
        if id(one) in reached or _is_of_library(one.__module__) or _binds_globals(one.__code__):
            continue
        reached[id(one)] = one
        waiting += [value for _, value in _named(one, names) if isinstance(value, FunctionType)]
    return list(reached.values())


def _named(function: FunctionType, names: CodeNames) -> Iterator[tuple[str, Any]]:
    """Yields the names and values that a function reads by a global or a cell."""
    table = function.__globals__
    yield from ((name, table[name]) for name in names.of(function.__code__).globals if name in table)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # the cell is still empty


def _reads(
    function: FunctionType, replacements: Replacements, modules: tuple[ModuleType, ...], spelled: set[str],
    names: CodeNames,
) -> bool:  # fmt: skip
    attributes = names.of(function.__code__).attributes
    return any(
        id(value) in replacements
        or isinstance(value, np.ndarray)
        or (value in modules and not attributes.isdisjoint(spelled))
        for _, value in _named(function, names)
        if id(value) in replacements or isinstance(value, (ModuleType, np.ndarray))
    )


class _Cloning:
    """Clones functions that call one another, each once."""

    def __init__(
        self, replacements: Replacements, modules: tuple[ModuleType, ...], names: CodeNames,
        reached: list[FunctionType],
    ) -> None:  # fmt: skip
        self.replacements, self.names = replacements, names
        self.modules: dict[int, ModuleType] = {}
        self.modules.update((id(module), RecordingModule(module, replacements, self.modules)) for module in modules)
        self.clones: dict[int, FunctionType] = {}
        self.cloned = {id(one) for one in reached}
        overlays: dict[int, _Overlay] = {}
        cells: dict[int, CellType] = {}
        for one in reached:
            overlay = overlays.setdefault(id(one.__globals__), _Overlay(one.__globals__))
            rebound = _rebound(one.__code__)
            closure = tuple(
                cells.setdefault(id(cell), CellType()) if name not in rebound and self._is_replaced(cell) else cell
                for name, cell in zip(one.__code__.co_freevars, one.__closure__ or (), strict=True)
            )
            own = FunctionType(one.__code__, overlay, one.__name__, one.__defaults__, closure or None)
            own.__kwdefaults__, own.__qualname__, own.__module__ = one.__kwdefaults__, one.__qualname__, one.__module__
            own.__dict__ = one.__dict__
            self.clones[id(one)] = own
        for one in reached:
            self._replace(one, overlays[id(one.__globals__)])

    def of(self, function: FunctionType) -> FunctionType:
        return self.clones.get(id(function), function)

    def _replace(self, function: FunctionType, overlay: _Overlay) -> None:
        for name in self.names.of(function.__code__).globals & function.__globals__.keys():
            value = function.__globals__[name]
            if (other := self._instead(value)) is not value:
                overlay[name] = other
        for cell, before in zip(self.of(function).__closure__ or (), function.__closure__ or (), strict=True):
            if cell is not before:
                cell.cell_contents = self._instead(before.cell_contents)

    def _is_replaced(self, cell: CellType) -> bool:
        try:
            value = cell.cell_contents
        except ValueError:
            return False  # the cell is still empty
        return (
            isinstance(value, np.ndarray)
            or twin(value) is not value
            or id(value) in self.cloned
            or id(value) in self.modules
            or id(value) in self.replacements
        )

    def _instead(self, value: Any) -> Any:
        if isinstance(value, FunctionType) and id(value) in self.clones:
            return self.clones[id(value)]
        if isinstance(value, ModuleType):
            return self.modules.get(id(value)) or twin(value)
        return captured_or_same(self.replacements.get(id(value), value))


def captured_or_same(value: Any) -> Any:
    """A captured array as a traced value, a library as its twin; any other value as it is."""
    value = twin(value)
    recorder = current.get()
    if recorder is None or not isinstance(value, np.ndarray) or id(value) not in recorder.captured_paths:
        return value
    try:
        return recorder.capture(value)
    except TracefuseError:  # a type that is not traced
        return value


def _is_of_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in {"numpy", "cupy", "cupyx", "jax", "torch", "tracefuse", "scipy"}


def _binds_globals(code: CodeType) -> bool:
    """Whether the code, or a function inside it, binds a global name: such a binding must reach the module itself."""
    return any(
        i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for inner in _codes(code) for i in dis.get_instructions(inner)
    )


def _rebound(code: CodeType) -> set[str]:
    """Returns the names of cells that the code, or a function inside it, binds."""
    stores = ("STORE_DEREF", "DELETE_DEREF")
    return {i.argval for inner in _codes(code) for i in dis.get_instructions(inner) if i.opname in stores}


def _codes(code: CodeType) -> Iterator[CodeType]:
    waiting = [code]
    while waiting:
        inner = waiting.pop()
        waiting += [constant for constant in inner.co_consts if isinstance(constant, CodeType)]
        yield inner
