"""Clones of the user's functions for a trace: the same code, over views of its globals and fresh cells.

A clone is made once per function, so functions that call one another, or themselves, call clones. Functions of Python
and of installed packages run as they are.

Must not know: overlays of values.
"""

from __future__ import annotations

import builtins
import dis
import functools
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from tracefuse import source
from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.libraries import library_functions
from tracefuse.frontend.tracer.python_code.called_types import with_called_twins
from tracefuse.frontend.tracer.python_code.code_replacements import original_code
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library
from tracefuse.frontend.tracer.python_code.set_reads import may_read_sets
from tracefuse.frontend.tracer.python_code.truth_identity import compares_by_identity
from tracefuse.frontend.tracer.record.recorder import current

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.state.overlays import Overlays

_DELETE_GLOBAL = dis.opmap["DELETE_GLOBAL"]
EMPTY = object()
"""The contents of an empty cell."""


class CellOverlay:
    """A fresh cell in the place of a cell. loaded: the overlay of the contents at the first read."""

    def __init__(self, original: CellType, name: str) -> None:
        self.original, self.name, self.overlay = original, name, CellType()
        self.place = Place(name, routes.to(original).then("cell"), None)
        self.loaded: Any = EMPTY

    @property
    def contents(self) -> Any:
        """The contents now, or EMPTY."""
        return contents_of(self.overlay)


def contents_of(cell: CellType) -> Any:
    """Returns the contents of a cell, or EMPTY."""
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def _is_empty(cell: CellType) -> bool:
    return contents_of(cell) is EMPTY


def _call(callee: Any, /, *arguments: Any, **keywords: Any) -> Any:
    """Calls a callee, or the twin of a type or a ufunc in the trace that runs."""
    recorder = current.get()
    overlays = None if recorder is None else recorder.overlays
    return (callee if overlays is None else overlays.called_twin(callee))(*arguments, **keywords)


def _call_type(dtype: Any, /, *arguments: Any, **keywords: Any) -> Any:
    """Calls `dtype.type`."""
    return _call(dtype.type, *arguments, **keywords)


def deleted_globals(code: CodeType) -> list[str]:
    """Returns the globals that code deletes."""
    if _DELETE_GLOBAL not in code.co_code[::2]:
        return []
    return [
        str(instruction.argval) for instruction in dis.get_instructions(code) if instruction.opcode == _DELETE_GLOBAL
    ]


class FunctionClones:
    """The clones and fresh cells of one trace."""

    def __init__(self, overlays: Overlays) -> None:
        self._overlays = overlays
        self.cells: dict[int, CellOverlay] = {}
        self._attributes: list[tuple[FunctionType, FunctionType, dict[str, Any]]] = []
        self._clones: dict[int, FunctionType] = {}
        self._codes: dict[CodeType, CodeType] = {}

    def clone(self, function: FunctionType, place: Place) -> Any:
        """Returns the clone of a function of the user; any other function as it is."""
        known = self._clones.get(id(function))
        if known is not None:
            return known
        overlays = self._overlays
        if is_of_library(function.__module__) or function.__globals__.get("__name__") == "tracefuse":
            overlays.containers.read_sets()
            return overlays.remember(function, function, place)
        if may_read_sets(function.__code__):
            overlays.containers.read_sets()
        cells = tuple(
            self._cell(cell, name, function.__code__)
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        )
        replaced = overlays.recorder.loops.decisions.code_of(function.__code__)
        is_type = functools.partial(self._is_type, function.__globals__)
        code = with_called_twins(replaced, is_type, _call, _call_type, self._codes)
        if place.route.key is not function:  # tools that reload a module give its functions other code
            at = Place(function.__qualname__, routes.to(function), function)
            overlays.reads.add_value(at.attribute("__code__", function.__code__))
        if compares_by_identity(function.__code__):
            overlays.recorder.compares_truth = True
        twin = FunctionType(
            code, overlays.scopes.globals_of(function.__globals__), function.__name__, None, cells or None
        )
        twin.__qualname__, twin.__module__, twin.__doc__ = function.__qualname__, function.__module__, function.__doc__
        # From Python 3.14 on, annotations are evaluated on demand.
        annotations = "__annotate__" if hasattr(function, "__annotate__") else "__annotations__"
        setattr(twin, annotations, getattr(function, annotations))
        self._clones[id(function)] = overlays.remember(function, twin, place)
        overlays.later(lambda: self._fill(function, twin))
        for name in deleted_globals(function.__code__):  # a read before lets the view notice that it is deleted
            overlays.later(lambda name=name: twin.__globals__.get(name))  # type: ignore[misc]
        return twin

    def code_of(self, created: FunctionType) -> CodeType:
        """Returns the user's code of a function that a clone created."""
        return self.user_code(created.__code__)

    def user_code(self, code: CodeType) -> CodeType:
        """Returns the user's code for which a clone runs another."""
        return original_code(self._codes.get(code, code))

    def original_cell(self, cell: CellType) -> CellType | None:
        """Returns the original of a cell of a clone; None for a cell that a clone created."""
        return next((known.original for known in self.cells.values() if known.overlay is cell), None)

    def _is_type(self, table: dict[str, Any], name: str) -> bool:
        """Whether a global is a type whose calls have a twin."""
        value = table.get(name, vars(builtins).get(name))
        return id(value) in self._overlays.called or library_functions.has_called_twin(value)

    def _fill(self, function: FunctionType, twin: FunctionType) -> None:
        """Gives a clone the overlays of its defaults and attributes."""
        read, start, line = self._overlays.read, routes.to(function), source.line_of(function.__code__)
        if function.__defaults__:
            names = function.__code__.co_varnames[: function.__code__.co_argcount][-len(function.__defaults__) :]
            at = Place("", start.then("attribute", "__defaults__"), None, line)
            twin.__defaults__ = tuple(
                read(value, Place(name, at.route.then("entry", k), value, line))
                for k, (name, value) in enumerate(zip(names, function.__defaults__, strict=True))
            )
        if function.__kwdefaults__:
            route = start.then("attribute", "__kwdefaults__")
            twin.__kwdefaults__ = {
                name: read(value, Place(name, route.then("entry", name), value, line))
                for name, value in function.__kwdefaults__.items()
            }
        loaded: dict[str, Any] = {}
        if function.__dict__:
            at = Place(function.__qualname__, start, function, line)
            hidden = vars(FunctionType).keys()  # `__doc__` is another one: lookups never find the entry
            loaded = {
                name: value if name in hidden else read(value, at.attribute(name, value))
                for name, value in function.__dict__.items()
            }
            twin.__dict__.update(loaded)
        self._attributes.append((function, twin, loaded))

    def _cell(self, cell: CellType, name: str, code: CodeType) -> CellType:
        known = self.cells.get(id(cell))
        if known is None:
            known = self.cells[id(cell)] = CellOverlay(cell, name)
            line = self._overlays.names.of(code).line("cells", name)
            self._overlays.later(lambda: self._fill_cell(known, line))
        return known.overlay

    def _fill_cell(self, known: CellOverlay, line: str | None) -> None:
        contents = contents_of(known.original)
        if contents is EMPTY:
            at = Place(known.name, routes.to(known.original), known.original, line)
            self._overlays.reads.add_value(at.derived("{} is unbound", _is_empty, True))
        else:
            known.place = Place(known.name, known.place.route, contents, line)
            known.loaded = known.overlay.cell_contents = self._overlays.read(contents, known.place)

    def forget(self) -> None:
        """Empties the cells and defaults of the clones."""
        for cell in self.cells.values():
            cell.loaded = cell.overlay.cell_contents = None
        for twin in self._clones.values():
            twin.__defaults__, twin.__kwdefaults__ = None, None
            twin.__dict__.clear()
        self._attributes.clear()

    def clones(self) -> list[FunctionType]:
        """Returns the clones."""
        return list(self._clones.values())

    def attributes(self) -> list[tuple[FunctionType, FunctionType, dict[str, Any]]]:
        """Returns each function with attributes, its clone, and the attributes as they were read."""
        return self._attributes
