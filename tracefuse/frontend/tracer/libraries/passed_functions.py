"""Functions of the user that a call between two stages gets as arguments: `scipy.optimize.minimize(f, x)`.

Such a function is rebuilt for each call from its code, with elements in place of the traced values in its variables,
defaults and globals, and runs as in the plain program. Arrays, numbers and dicts of them are given to it as the trace
sees them at the call, and cannot be written; other globals must be libraries, texts, or functions that read as little.

Must not know: calls.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable, Mapping
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library
from tracefuse.frontend.tracer.values.traced import holds_traced

_NUMBERS = (bool, int, float, complex, str, bytes, type(None), np.generic)
WITH_EFFECTS = ("print", "open", "input", "exec", "eval", "compile", "globals", "locals", "vars", "setattr", "delattr")
"""Functions of Python that do more than compute."""
_WRITES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME")


class NotPassed(Exception):
    """A function cannot be an argument; the message is the reason."""


@dataclass(frozen=True, slots=True)
class PassedFunction:
    """A function to rebuild: its code and globals, and what its defaults and variables are made of.

    state: globals that are given. functions: of the user, which the function calls, by their global names.
    """

    code: CodeType
    table: dict[str, Any]
    name: str
    defaults: tuple[Any, ...]
    keywords: Mapping[str, Any]
    cells: tuple[Any, ...]
    state: Mapping[str, Any]
    functions: Mapping[str, FunctionType]

    def rebuilt(self, value_of: Callable[[Any], Any]) -> FunctionType:
        """Returns the function. value_of: returns the value of a default, a variable or a global."""
        cells = tuple(CellType(value_of(cell)) for cell in self.cells)
        table = self._globals(value_of) if self.state else self.table
        function = FunctionType(self.code, table, self.name, tuple(map(value_of, self.defaults)), cells or None)
        function.__kwdefaults__ = {name: value_of(value) for name, value in self.keywords.items()}
        return function

    def _globals(self, value_of: Callable[[Any], Any]) -> dict[str, Any]:
        """The globals of the module with those that are given, also for the functions that it calls."""
        table = {**self.table, **{name: value_of(value) for name, value in self.state.items()}}
        for name, function in self.functions.items():
            table[name] = FunctionType(function.__code__, table, name)
            table[name].__kwdefaults__ = function.__kwdefaults__
        return table


@dataclass(frozen=True, slots=True)
class PassedDict:
    """A dict that a function reads, with a placeholder for each entry."""

    entries: Mapping[Any, Any]

    def rebuilt(self, value_of: Callable[[Any], Any]) -> Mapping[Any, Any]:
        """Returns a mapping that cannot be written. value_of: returns the value of an entry."""
        return MappingProxyType({key: value_of(value) for key, value in self.entries.items()})


def holds_variables(value: Any) -> bool:
    """Whether a value is a function with a traced value among its variables or defaults."""
    if not isinstance(value, FunctionType):
        return False
    cells = [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
    return holds_traced([*cells, *(value.__defaults__ or ())])


def passed_function(
    function: FunctionType, code_of: Callable[[FunctionType], CodeType], place: Callable[[Any], Any]
) -> PassedFunction:  # fmt: skip
    """Takes a function of a clone apart. Raises NotPassed with the reason.

    code_of: returns the user's code of a function. place: returns the placeholder of a value.
    """
    code = code_of(function)
    view = function.__globals__
    table = getattr(view, "table", view)  # a clone sees its globals through a view
    names = _GlobalNames(table, view)
    names.check(code)
    cells = []
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            content = cell.cell_contents
        except ValueError:
            raise NotPassed(f"its variable {name} has no value") from None
        if content is function:
            raise NotPassed("it calls itself")
        cells.append(place(content))
    defaults = tuple(map(place, function.__defaults__ or ()))
    keywords = {name: place(value) for name, value in (function.__kwdefaults__ or {}).items()}
    state = {name: place(view[name]) for name in names.state}
    for name, called in names.functions.items():
        if state and code_of(view[name]) is not called.__code__:
            raise NotPassed(f"it calls {name}, which the fused function has changed")
    return PassedFunction(code, table, function.__name__, defaults, keywords, tuple(cells), state, names.functions)


class _GlobalNames:
    """The globals that a function and the functions that it calls read.

    table: the globals of the module. view: the same as the trace sees them. state: names of arrays, numbers that the
    trace bound, and dicts. functions: of the user.
    """

    def __init__(self, table: Mapping[str, Any], view: Mapping[str, Any]) -> None:
        self.table, self.view = table, view
        self.state: dict[str, None] = {}
        self.functions: dict[str, FunctionType] = {}
        self._stores = False

    def check(self, code: CodeType) -> None:
        """Adds the names of code. Raises NotPassed if it writes state, or reads some that cannot be given."""
        waiting = [code]
        while waiting:
            current = waiting.pop()
            for instruction in dis.get_instructions(current):
                if instruction.opname in _WRITES:
                    raise NotPassed(f"it writes or imports {instruction.argval}")
                self._stores |= instruction.opname in ("STORE_SUBSCR", "DELETE_SUBSCR")
                if (
                    instruction.opname == "STORE_DEREF"
                    and current is code
                    and instruction.argval in current.co_freevars
                ):
                    raise NotPassed(f"it writes the variable {instruction.argval} of an enclosing function")
                if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                    name = str(instruction.argval)
                    if name not in self.functions and self._is_function(name):
                        self.functions[name] = self.table[name]
                        waiting.append(self.table[name].__code__)
            waiting += [constant for constant in current.co_consts if isinstance(constant, CodeType)]
        if self._stores and self.state:
            raise NotPassed(f"it stores entries, and may write the global {next(iter(self.state))}")

    def _is_function(self, name: str) -> bool:
        """Whether a name is bound to a function of the user; adds names of state. Raises NotPassed for any other."""
        if name not in self.table:
            if name in WITH_EFFECTS or not hasattr(builtins, name):
                raise NotPassed(f"it reads {name}")
            return False
        value = self.table[name]
        bound = dict.get(self.view, name, value) if isinstance(self.view, dict) else value
        if isinstance(value, ModuleType):
            is_known = is_of_library(value.__name__)
        elif isinstance(value, _NUMBERS):
            is_known = bound is value
        elif isinstance(value, (type, BuiltinFunctionType, np.ufunc)):
            is_known = is_of_library(getattr(value, "__module__", None) or "builtins") or isinstance(value, np.ufunc)
        elif isinstance(value, FunctionType):
            is_known = is_of_library(value.__module__)
            if not is_known and value.__globals__ is self.table and not value.__closure__ and not value.__defaults__:
                return True
        else:
            is_known = False
        if not is_known:
            if not isinstance(value, (*_NUMBERS, np.ndarray, dict)) or self.view is self.table:
                raise NotPassed(f"it reads the global {name}")
            self.state[name] = None
        return False
