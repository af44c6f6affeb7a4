"""Host scalars of a trace: the numbers that the host computes from the sizes and scalars of a call.

A host scalar is a graph of numbers in the order in which the function computed them. It is evaluated without recursion,
so that a number may be computed in thousands of steps, or compiled to a Python function of the facts that it reads.

Must not know: overlays of values, recording.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import PYTHON_TYPES, DType
from tracefuse.generated_code import compile_function
from tracefuse.ir.extents import Extent, evaluate, python_text, symbols
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.ir.scalar_text import NAMES, RAISED, op_text, scalar_function

Facts: TypeAlias = Mapping[int, Any]
"""The extents and scalars of a call, by id."""


class HostNumber(ABC):
    """A number as a function of the facts of a call. operands: the numbers that it is computed from."""

    __slots__ = ()
    operands: tuple[HostNumber, ...] = ()

    @abstractmethod
    def of(self, values: Sequence[Any], facts: Facts) -> Any:
        """Computes the number. values: the operands, in order."""

    def __call__(self, facts: Facts) -> Any:
        if not self.operands:
            return self.of((), facts)
        values: dict[int, Any] = {}
        for number in _ordered(self):
            values[id(number)] = number.of([values[id(operand)] for operand in number.operands], facts)
        return values[id(self)]


@dataclass(frozen=True, slots=True, eq=False)
class ConstantNumber(HostNumber):
    """The same number at every call."""

    value: Any

    def of(self, values: Sequence[Any], facts: Facts) -> Any:
        return self.value


@dataclass(frozen=True, slots=True, eq=False)
class FactNumber(HostNumber):
    """A scalar of the call. id: its number among the facts."""

    id: int

    def of(self, values: Sequence[Any], facts: Facts) -> Any:
        return facts[self.id]


@dataclass(frozen=True, slots=True, eq=False)
class ExtentNumber(HostNumber):
    """An integer that sizes and integer arguments determine."""

    extent: Extent

    def of(self, values: Sequence[Any], facts: Facts) -> Any:
        return evaluate(self.extent, facts)


class ComputedNumber(HostNumber):
    """The result of a pointwise op on numbers.

    compute, result: the dtypes of the operation and of its result. weak: the kind of the Python number, None for a
    NumPy scalar. types: the dtypes of the operands, None for literals.
    """

    __slots__ = ("_function", "compute", "op", "operands", "result", "types", "weak")

    def __init__(
        self, op: Pointwise, operands: Sequence[HostNumber], compute: DType, result: DType, weak: str | None,
        types: tuple[DType | None, ...],
    ) -> None:  # fmt: skip
        self.op, self.operands, self.compute, self.result = op, tuple(operands), compute, result
        self.weak, self.types = weak, types
        self._function = scalar_function(op, compute, result, types)

    def of(self, values: Sequence[Any], facts: Facts) -> Any:
        if self._function is not None:
            try:
                number = self._function(*map(_as_python, values))
            except RAISED:
                return self._by_reference(values)
            return number if self.weak is not None else self.result.numpy.type(number)
        return self._by_reference(values)

    def by_reference(self, *values: Any) -> Any:
        """Computes a number of Python by the reference implementation of the op."""
        return _as_python(self._by_reference(values))

    def _by_reference(self, values: Sequence[Any]) -> Any:
        with np.errstate(all="ignore"):
            operands = [np.asarray(value).astype(self.compute.compute.numpy) for value in values]
            if self.op.promotion == "where":
                operands[0] = np.asarray(values[0]).astype(np.bool_)
            value = np.asarray(self.op.numpy(*operands)).astype(self.result.numpy)
        return value.item() if self.weak is not None else value[()]

    def text(self, operands: Sequence[str]) -> str | None:
        """The expression of the number, for operands that are numbers of Python; None if the op has no text."""
        return op_text(self.op, self.compute, self.result, list(zip(operands, self.types, strict=True)))


class PythonNumber(HostNumber):
    """A number as one of Python. kind: its type."""

    __slots__ = ("kind", "operands")

    def __init__(self, operand: HostNumber, kind: str) -> None:
        self.operands, self.kind = (operand,), kind

    def of(self, values: Sequence[Any], facts: Facts) -> Any:
        return PYTHON_TYPES[self.kind](values[0])


class HeldNumber(HostNumber):
    """Whether the real part of a number lies between two bounds, which are not included."""

    __slots__ = ("high", "low", "operands")

    def __init__(self, operand: HostNumber, low: float, high: float) -> None:
        self.operands, self.low, self.high = (operand,), low, high

    def of(self, values: Sequence[Any], facts: Facts) -> bool:
        return bool(self.low < _as_python(values[0]).real < self.high)

    def text(self, operand: str) -> str:
        """The expression of the number, for an operand that is a number of Python."""
        return f"({_bound(self.low)} < {operand}.real < {_bound(self.high)})"


def compiled(number: HostNumber) -> tuple[Callable[..., Any], tuple[int, ...]]:
    """A Python function that computes a number, and the ids of the facts that it takes, in order.

    The facts are numbers of Python.
    """
    scope: dict[str, Any] = {**NAMES, "general": number}
    facts: dict[int, str] = {}
    lines: list[str] = []
    texts: dict[int, str] = {}
    for current in _ordered(number):
        text = _text(current, [texts[id(operand)] for operand in current.operands], facts, scope)
        if text is None:
            facts.update({key: f"f{len(facts)}" for key in _facts_of(number) if key not in facts})
            return _function(facts, [], _general(facts), scope)
        if current.operands and current is not number:
            lines.append(f"n{len(lines)} = {text}")
            text = f"n{len(lines) - 1}"
        texts[id(current)] = text
    result = texts[id(number)]
    if isinstance(number, ComputedNumber) and number.weak is None:
        scope["kind"], result = number.result.numpy.type, f"kind({result})"
    return _function(facts, lines, result, scope)


def _function(
    facts: Mapping[int, str], lines: Sequence[str], result: str, scope: dict[str, Any]
) -> tuple[Callable[..., Any], tuple[int, ...]]:
    statements = [*lines, f"return {result}"]
    body = "".join(f"        {line}\n" for line in statements)
    text = (
        f"def number({', '.join(facts.values())}):\n    try:\n{body}    except RAISED:\n"
        f"        return {_general(facts)}\n"
    )
    return compile_function(text, "number", scope, "number"), tuple(facts)


def _general(facts: Mapping[int, str]) -> str:
    """The expression that evaluates the number step by step."""
    return f"general({{{', '.join(f'{key}: {name}' for key, name in facts.items())}}})"


def _text(number: HostNumber, operands: Sequence[str], facts: dict[int, str], scope: dict[str, Any]) -> str | None:
    """The expression of one number. facts: the parameters so far, by id, to which it adds."""

    def fact(key: int | None) -> str:
        assert key is not None
        return facts.setdefault(key, f"f{len(facts)}")

    match number:
        case ConstantNumber(value):
            name = f"c{len(scope)}"
            scope[name] = _as_python(value)
            return name
        case FactNumber(key):
            return fact(key)
        case ExtentNumber(extent):
            return f"({python_text(extent, lambda symbol: fact(symbol.id))})"
        case ComputedNumber():
            text = number.text(operands)
            if text is None:
                name = f"op{len(scope)}"
                scope[name] = number.by_reference
                text = f"{name}({', '.join(operands)})"
            return text
        case HeldNumber():
            return number.text(operands[0])
        case PythonNumber(kind=kind):
            scope[f"to_{kind}"] = PYTHON_TYPES[kind]
            return f"to_{kind}({operands[0]})"
    return None


def _facts_of(number: HostNumber) -> set[int]:
    """The ids of the facts that a number depends on."""
    facts: set[int] = set()
    for current in _ordered(number):
        if isinstance(current, FactNumber):
            facts.add(current.id)
        elif isinstance(current, ExtentNumber):
            facts.update(symbol.id for symbol in symbols(current.extent) if symbol.id is not None)
    return facts


def _ordered(number: HostNumber) -> list[HostNumber]:
    """A number and all that it is computed from, operands first."""
    ordered: list[HostNumber] = []
    seen: set[int] = set()
    stack: list[tuple[HostNumber, bool]] = [(number, False)]
    while stack:
        current, is_ready = stack.pop()
        if is_ready:
            ordered.append(current)
        elif id(current) not in seen:
            seen.add(id(current))
            stack.append((current, True))
            stack.extend((operand, False) for operand in reversed(current.operands))
    return ordered


def _bound(value: float) -> str:
    return repr(value) if abs(value) < np.inf else f"float({str(value)!r})"


def _as_python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
