"""How an op is differentiated: the kinds of derivative rule that an op definition can carry.

Forward mode follows the rules as they are; reverse mode follows transposes. A rule records ordinary ops, so a
derivative can be differentiated again. The conventions are those of JAX: the cotangent of a complex value is not
conjugated, and equal largest elements share their derivative evenly.

Must not know: single ops, tracing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol, TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.fusion import Shape


class Application(Protocol):
    """One node while it is differentiated: its operands, results and attributes, and what records new nodes.

    operands, results: values that take Python's operators; an operand may be a Python number. shapes: the extents of
    the operands. result_shapes: those of the results. active: whether each operand has a derivative.
    """

    operands: list[Any]
    results: list[Any]
    attributes: dict[str, Any]
    active: Sequence[bool]

    @property
    def shapes(self) -> list[Shape]: ...

    @property
    def result_shapes(self) -> list[Shape]: ...

    def emit(self, op: str, *operands: Any, **attributes: Any) -> Any:
        """Records an op by name; returns its result, or a tuple of several."""

    def sum_to(self, value: Any, shape: Shape) -> Any:
        """Sums `value` over the axes along which an operand of `shape` was broadcast to it."""

    def zeros(self, shape: Shape, like: Any) -> Any:
        """Returns an array of zeros with the dtype of `like`."""

    def pushed_by_jax(self, name: str, function: Callable[..., Any], given: Sequence[Any]) -> Sequence[Any]:
        """Records the tangents of a function of JAX, as JAX differentiates it; see `TangentRule`.

        name: of the function. Raises UnsupportedError, with the node's line, if JAX has no rule for it.
        """

    def pulled_by_jax(self, name: str, function: Callable[..., Any], given: Sequence[Any]) -> Sequence[Any]:
        """Records the cotangents of the operands of a function of JAX; see `TransposeRule` and `pushed_by_jax`."""

    def require(self, holds: bool, case: str, hint: str) -> None:
        """Raises UnsupportedError, with the node's line, unless `holds`. case: the one that the rule does not cover."""


TransposeRule: TypeAlias = Callable[[Application, Sequence[Any]], Sequence[Any]]
"""Returns the cotangent of each operand, None for none, from those of the results, of which some may be None."""

TangentRule: TypeAlias = Callable[[Application, Sequence[Any]], Sequence[Any]]
"""Returns the tangent of each result from those of the operands, None for zero. It is linear in the tangents."""


@dataclass(frozen=True, slots=True)
class PartialDerivatives:
    """The partial derivatives of a pointwise op: one Python expression for each operand.

    An expression is over the operands a, b, c, ..., the result y, ops by name, and operators. "" is no derivative.
    """

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Linear:
    """An op that is linear in some operands together: its tangent is the op applied to their tangents.

    transpose: its transpose. operands: the positions of these operands; None for all. attributes: attributes that
    differ for tangents, as a pad's value, which is then 0. only: an attribute, and its values for which this holds.
    """

    transpose: TransposeRule
    operands: tuple[int, ...] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    only: tuple[str, tuple[Any, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Multilinear:
    """An op that is linear in each of some operands, as a product: its tangent is a sum over them."""

    transpose: TransposeRule
    operands: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Tangent:
    """An op whose tangent is an expression of other ops; reverse mode transposes that expression.

    transpose: the cotangents of the operands, where the expression contains the op itself.
    """

    rule: TangentRule
    transpose: TransposeRule | None = None


EquivalentRule: TypeAlias = Callable[[Application], Sequence[Any]]
"""Records an expression with the values of the results, and returns them; None for a result without a derivative."""


@dataclass(frozen=True, slots=True)
class Equivalent:
    """An op with the derivative of another expression of its operands, which is recorded only to differentiate it."""

    rule: EquivalentRule


@dataclass(frozen=True, slots=True)
class Flat:
    """An op whose derivative is 0 wherever it exists, as of rounding and comparisons."""


Derivative: TypeAlias = PartialDerivatives | Linear | Multilinear | Tangent | Equivalent | Flat

FLAT = Flat()
