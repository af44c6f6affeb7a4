"""Calls with the parameters of a function's signature, for random programs.

Each call draws its first arguments among kinds of operands, and a few of the other parameters, by position or by name.
What a parameter may be follows from its name. The placeholders are those of program_statements.py.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import numpy as np

from tests.random_programs.program_parameters import (
    AXES,
    CHANGING,
    FLAGS,
    LEFT_OUT,
    OF_FUNCTION,
    OPERANDS,
    OTHERS,
    PARAMETERS,
    SEVERAL,
    TYPES,
    WRITTEN,
)

SIGNATURE = "<signature>"
"""Stands in a template for the arguments of its function."""

LISTS = frozenset(("arrays", "tup", "arys", "args", "arrays_and_dtypes", "keys"))
"""First parameters that are several arrays."""


def _functions() -> dict[str, Callable[..., Any]]:
    """The functions that take part, by name without `np.`."""
    found = {}
    for prefix, module in (("", np), ("linalg.", np.linalg), ("fft.", np.fft)):
        for name in module.__all__:
            function = getattr(module, name)
            if hasattr(function, "_implementation") and prefix + name not in LEFT_OUT:
                found[prefix + name] = function
    return found


FUNCTIONS = _functions()
BINARY_UFUNCS = sorted(
    {f.__name__ for f in vars(np).values() if isinstance(f, np.ufunc) and (f.nin, f.nout) == (2, 1) and not f.signature}
)
OF_ARRAYS = sorted(
    name
    for name, function in FUNCTIONS.items()
    if callable(getattr(np.ndarray, name, None))
    and name not in ("sort", "partition", "resize", "put")
    and next(iter(inspect.signature(function).parameters)) in ("a", "x")
)
"""Functions that arrays have as methods of the same parameters."""

UFUNC_METHODS: MappingProxyType[str, tuple[tuple[str, tuple[str, ...]], ...]] = MappingProxyType(
    {
        "reduce": (
            ("array", OPERANDS),
            ("axis", AXES),
            ("dtype", TYPES),
            ("out", ()),
            ("keepdims", FLAGS),
            ("initial", ()),
            ("where", ()),
        ),
        "accumulate": (("array", OPERANDS), ("axis", ("{axis}", "0", "-1")), ("dtype", TYPES), ("out", ())),
        "reduceat": (
            ("array", OPERANDS),
            ("indices", ("[0, 1]", "[0]", "[1, 0, 1]", "np.array([0, 0])")),
            ("axis", ("{axis}", "0")),
            ("dtype", TYPES),
            ("out", ()),
        ),
        "outer": (("A", OPERANDS), ("B", OTHERS), ("dtype", TYPES), ("casting", ()), ("order", ()), ("out", ())),
    }
)

TEMPLATES = [
    *(f"np.{name}({SIGNATURE})" for name in FUNCTIONS if name not in CHANGING),
    *(f"{{x}}.{name}({SIGNATURE})" for name in OF_ARRAYS),
    *(f"np.{name}.{method}({SIGNATURE})" for name in BINARY_UFUNCS for method in UFUNC_METHODS),
    *(f"np.{name}({SIGNATURE})" for name in BINARY_UFUNCS),
]
"""Values of a new name."""

CHANGING_TEMPLATES = [
    *(f"np.{name}({SIGNATURE})" for name in CHANGING),
    *(f"{{w1}}.{name}({SIGNATURE})" for name in ("sort", "partition", "put")),
    *(f"np.{name}.at({{w1}}, {{places}}, {{v}})" for name in BINARY_UFUNCS),
]
"""Statements that change an array."""


def with_arguments(template: str, chance: random.Random) -> tuple[str, str]:
    """(the template with arguments, which hold placeholders, in place of its signature; an output that it takes too)"""
    called = template.partition(f"({SIGNATURE})")[0]
    texts = list(_arguments(called, chance))
    outputs = [one for one in texts if one.startswith("out=")]
    return template.replace(SIGNATURE, ", ".join(one for one in texts if one not in outputs)), "".join(outputs)


def _arguments(called: str, chance: random.Random) -> Iterator[str]:
    """The texts of arguments of a call: operands by position, others by position or by name."""
    name = called.removeprefix("np.").rpartition("}.")[2]
    is_method = called.startswith("{")
    by_position = True
    for position, (parameter, choices, required, may_be_positional) in enumerate(_parameters(name)):
        if is_method and position == 0:
            continue
        if not choices or not (required or chance.random() < 0.22):
            by_position = False
            continue
        text = chance.choice(choices)
        by_position &= may_be_positional
        if by_position and parameter != "out" and (required or chance.random() < 0.4):
            yield text
        else:
            by_position = False
            yield f"{parameter}={text}"


def _parameters(name: str) -> Iterator[tuple[str, tuple[str, ...], bool, bool]]:
    """(name, choices, whether required, whether it may be passed by position) of each parameter."""
    base, _, method = name.rpartition(".")
    if base in BINARY_UFUNCS:
        for position, (parameter, choices) in enumerate(UFUNC_METHODS[method]):
            is_first = position == 0 or parameter in ("indices", "B")
            yield (
                parameter,
                choices or PARAMETERS[parameter],
                is_first,
                parameter in ("array", "axis", "dtype", "A", "B", "indices"),
            )
        return
    if name in BINARY_UFUNCS:
        yield "x1", OPERANDS, True, True
        yield "x2", OTHERS, True, True
        for parameter in ("out", "where", "casting", "order", "dtype"):
            yield parameter, PARAMETERS[parameter], False, parameter == "out"
        return
    for position, parameter in enumerate(inspect.signature(FUNCTIONS[name]).parameters.values()):
        several = parameter.name in LISTS or parameter.kind is parameter.VAR_POSITIONAL
        default = SEVERAL if several and parameter.kind is not parameter.VAR_POSITIONAL else OPERANDS
        default = WRITTEN if name in CHANGING else default
        choices = OF_FUNCTION.get((name, parameter.name)) or (
            default if position == 0 else PARAMETERS.get(parameter.name, ())
        )
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        required = parameter.default is parameter.empty and (
            position == 0 or parameter.kind is not parameter.VAR_POSITIONAL
        )
        yield parameter.name, choices, required, parameter.kind is not parameter.KEYWORD_ONLY
