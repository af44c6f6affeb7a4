"""Functions of the user that a call between two stages gets as arguments: `scipy.optimize.minimize(f, x)`.

Such a function is rebuilt for each call from its code, with elements in place of the traced values in its variables and
defaults, and runs as in the plain program. So it may read no state that the trace could have changed: names of modules
must be libraries, numbers, text, or functions that read as little.

Must not know: calls.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from tracefuse.frontend.tracer.installed_packages import is_of_library
from tracefuse.frontend.tracer.traced import holds_traced

_NUMBERS = (bool, int, float, complex, str, bytes, type(None), np.generic)
WITH_EFFECTS = ("print", "open", "input", "exec", "eval", "compile", "globals", "locals", "vars", "setattr", "delattr")
"""Functions of Python that do more than compute."""
_WRITES = ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME")


class NotPassed(Exception):
    """A function cannot be an argument; the message is the reason."""


@dataclass(frozen=True, slots=True)
class PassedFunction:
    """A function to rebuild: its code and globals, and what its defaults and variables are made of."""

    code: CodeType
    table: dict[str, Any]
    name: str
    defaults: tuple[Any, ...]
    keywords: Mapping[str, Any]
    cells: tuple[Any, ...]

    def rebuilt(self, given: Callable[[Any], Any]) -> FunctionType:
        """Returns the function. given: returns the value of a default or a variable."""
        cells = tuple(CellType(given(cell)) for cell in self.cells)
        function = FunctionType(self.code, self.table, self.name, tuple(map(given, self.defaults)), cells or None)
        function.__kwdefaults__ = {name: given(value) for name, value in self.keywords.items()}
        return function


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

    code_of: returns the user's code of a function. place: returns what stands for a value.
    """
    code = code_of(function)
    view = function.__globals__
    table = getattr(view, "table", view)  # a clone sees its globals through a view
    _check(code, table, view, {code})
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
    return PassedFunction(code, table, function.__name__, defaults, keywords, tuple(cells))


def _check(code: CodeType, table: Mapping[str, Any], view: Mapping[str, Any], seen: set[CodeType]) -> None:
    """Raises NotPassed if code writes state, or reads some that is neither of a library nor a number."""
    waiting = [code]
    while waiting:
        one = waiting.pop()
        for instruction in dis.get_instructions(one):
            if instruction.opname in _WRITES:
                raise NotPassed(f"it writes or imports {instruction.argval}")
            if instruction.opname == "STORE_DEREF" and one is code and instruction.argval in one.co_freevars:
                raise NotPassed(f"it writes the variable {instruction.argval} of an enclosing function")
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                for further in _further(str(instruction.argval), table, view):
                    if further not in seen:
                        seen.add(further)
                        waiting.append(further)
        waiting += [constant for constant in one.co_consts if isinstance(constant, CodeType)]


def _further(name: str, table: Mapping[str, Any], view: Mapping[str, Any]) -> Iterator[CodeType]:
    """Yields the code of a function of the user that a global name stands for. Raises NotPassed for state."""
    if name not in table:
        if name in WITH_EFFECTS or not hasattr(builtins, name):
            raise NotPassed(f"it reads {name}")
        return
    value = table[name]
    if isinstance(value, ModuleType):
        is_known = is_of_library(value.__name__)
    elif isinstance(value, _NUMBERS):
        bound = dict.get(view, name, value) if isinstance(view, dict) else value
        is_known = bound is value
    elif isinstance(value, (type, BuiltinFunctionType, np.ufunc)):
        is_known = is_of_library(getattr(value, "__module__", None) or "builtins") or isinstance(value, np.ufunc)
    elif isinstance(value, FunctionType):
        is_known = is_of_library(value.__module__)
        if not is_known and value.__globals__ is table and not value.__closure__ and not value.__defaults__:
            yield value.__code__
            return
    else:
        is_known = False
    if not is_known:
        raise NotPassed(f"it reads the global {name}")
