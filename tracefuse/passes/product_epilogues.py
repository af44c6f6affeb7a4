"""What follows a matrix product that a library computes with it: a factor, a bias, a residual, and an activation.

    activation(scale * (left @ right) + residual + bias)

The result of the product passes through them in the library's registers, so it is neither stored nor read again.

Must not know: segments, kernels, sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.fusion import Fusion, Literal, Node
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.ops.roles import ADD, BROADCAST, COMBINERS, DIVIDE, EXPAND, MULTIPLY, POSITIVE_PART

RELU = "relu"
"""maximum(x, 0), which keeps NaN."""
GELU = "gelu"
"""x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3))) / 2."""


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The function of an element of a product. bias: one value for each column. residual: one for each element."""

    scale: float = 1.0
    bias: bool = False
    residual: bool = False
    activation: str = ""

    def __str__(self) -> str:
        scale = [] if self.scale == 1 else [f"scale {self.scale:g}"]
        parts = [name for name in ("bias", "residual") if getattr(self, name)]
        return " + ".join([*scale, *parts, *([self.activation] if self.activation else [])])


@dataclass(frozen=True, slots=True)
class EpilogueMatch:
    """A product with the nodes of an epilogue, by the numbers of values.

    nodes: the epilogue's, and those that spread the bias over the rows. bias, residual: the values, None without one.
    """

    product: Node
    result: int
    epilogue: Epilogue = Epilogue()
    nodes: tuple[Node, ...] = ()
    bias: int | None = None
    residual: int | None = None

    @property
    def operands(self) -> tuple[int, ...]:
        """The operands of the product, then the bias and the residual if there are any."""
        left, right = (operand for operand in self.product.operands if isinstance(operand, int))
        return left, right, *(number for number in (self.bias, self.residual) if number is not None)


def epilogues_of(fusion: Fusion, product: Node, readers: Mapping[int, Sequence[Node]]) -> list[EpilogueMatch]:
    """Returns the epilogues of a product of two arrays, each with one node more than the one before.

    readers: the nodes that read each value. Every value but the result is read by the next node alone.
    """
    if len(product.inputs) != 2 or len(product.operands) != 2:
        return []
    found: list[EpilogueMatch] = []
    match: EpilogueMatch | None = EpilogueMatch(product, product.outputs[0])
    while match is not None and not match.epilogue.activation and match.result not in fusion.outputs:
        following = readers.get(match.result, ())
        if len(following) == 1:
            match = _extended(fusion, match, following[0])
        else:
            match = _with_gelu(fusion, match, readers) if following else None
        if match is not None:
            found.append(match)
    return found


def readers_of(fusion: Fusion) -> dict[int, list[Node]]:
    """Returns the nodes that read each value; a node counts once for each of its operands that is the value."""
    readers: dict[int, list[Node]] = {}
    for node in fusion.nodes:
        for number in node.inputs:
            readers.setdefault(number, []).append(node)
    return readers


def _extended(fusion: Fusion, match: EpilogueMatch, node: Node) -> EpilogueMatch | None:
    """Returns the epilogue with one more node, None if there is none that computes it."""
    if len(node.outputs) != 1 or list(node.operands).count(match.result) != 1:
        return None
    (result,) = node.outputs
    before, after = fusion.values[match.result], fusion.values[result]
    if after.dtype is not before.dtype or fusion.shape_of(result) != fusion.shape_of(match.result):
        return None
    if result in fusion.aliases or after.stream or after.sharding:
        return None
    nodes, epilogue = (*match.nodes, node), match.epilogue
    if node.op is POSITIVE_PART:
        return replace(match, result=result, nodes=nodes, epilogue=replace(epilogue, activation=RELU))
    if len(node.operands) != 2:
        return None
    position = node.operands.index(match.result)
    other = node.operands[1 - position]
    if isinstance(other, Literal):
        changed = _with_number(epilogue, node, other.value, position)
        return None if changed is None else replace(match, result=result, nodes=nodes, epilogue=changed)
    if node.op is not ADD or not isinstance(other, int) or fusion.values[other].dtype is not before.dtype:
        return None
    if not epilogue.residual and fusion.shape_of(other) == fusion.shape_of(result):
        spread = _column_values(fusion, other, result)
        if spread is None or epilogue.bias:
            added = replace(epilogue, residual=True)
            return replace(match, result=result, nodes=nodes, epilogue=added, residual=other)
    spread = None if epilogue.bias else _column_values(fusion, other, result)
    if spread is None:
        return None
    bias, moves = spread
    added = replace(epilogue, bias=True)
    return replace(match, result=result, nodes=(*moves, *nodes), epilogue=added, bias=bias)


def _with_number(epilogue: Epilogue, node: Node, number: object, position: int) -> Epilogue | None:
    """Returns the epilogue followed by an op of its result and a number. position: of the result in the operands."""
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        return None
    if node.op is COMBINERS["maximum"] and number == 0:
        return replace(epilogue, activation=RELU)
    is_plain = epilogue == Epilogue() and math.isfinite(number) and number != 0
    if is_plain and node.op is MULTIPLY:
        return Epilogue(scale=float(number))
    # The reciprocal of a power of two is exact.
    if is_plain and node.op is DIVIDE and position == 0 and abs(math.frexp(number)[0]) == 0.5:
        return Epilogue(scale=1 / number)
    return None


# ---------------------------------------------------------------------------------------------------------------------
# functions of one variable


def _with_gelu(fusion: Fusion, match: EpilogueMatch, readers: Mapping[int, Sequence[Node]]) -> EpilogueMatch | None:
    """Returns the epilogue followed by the nodes of a GELU, None if other nodes follow.

    A GELU has many spellings: the nodes are one if their values are its values, and if they cannot branch.
    """
    if not fusion.values[match.result].dtype.is_half:
        return None  # the library's tanh has errors beyond the last place of float32
    function = _function_of(fusion, match.result, readers)
    if function is None:
        return None
    values: dict[int, np.ndarray[Any, Any]] = {match.result: _SAMPLES}
    with np.errstate(all="ignore"):
        for node in function:
            operands = (values[o] if isinstance(o, int) else o.value for o in node.operands)
            values[node.outputs[0]] = node.op.numpy(*operands, **node.attributes)  # type: ignore[attr-defined]
    (result,) = function[-1].outputs
    if not np.allclose(values[result], _gelu(_SAMPLES), rtol=1e-5, atol=1e-7):
        return None
    added = replace(match.epilogue, activation=GELU)
    return replace(match, result=result, nodes=(*match.nodes, *function), epilogue=added)


_SAMPLES = np.concatenate([np.linspace(-9, 9, 700), np.geomspace(1e-3, 1e3, 200), -np.geomspace(1e-3, 1e3, 200)])
MOST_NODES = 16
"""Of a function of one variable."""


def _gelu(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The approximation of the GELU by tanh: Hendrycks and Gimpel, arXiv:1606.08415, section 2."""
    result: np.ndarray[Any, Any] = x * (0.5 + 0.5 * np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return result


def _function_of(fusion: Fusion, number: int, readers: Mapping[int, Sequence[Node]]) -> tuple[Node, ...] | None:
    """Returns the nodes of an elementwise function of a value alone, of whose values only the last is read elsewhere.

    None if there are none. They compute floats from floats and numbers, so that no node chooses between two values.
    """
    inside, nodes = {number}, list[Node]()
    waiting = list(readers.get(number, ()))
    while len(nodes) < MOST_NODES:
        ready = next(
            (node for node in waiting if _is_smooth(fusion, node, number) and inside.issuperset(node.inputs)), None
        )
        if ready is None:
            return None
        waiting = [node for node in waiting if node is not ready]
        (result,) = ready.outputs
        nodes.append(ready)
        inside.add(result)
        if not waiting:
            return tuple(nodes)
        if result in fusion.outputs:
            return None
        waiting += [node for node in readers.get(result, ()) if all(node is not other for other in waiting)]
    return None


def _is_smooth(fusion: Fusion, node: Node, number: int) -> bool:
    """Whether a node computes an element of a float array from floats at the same place and from numbers."""
    if not isinstance(node.op, Pointwise) or node.op.ends_segment or len(node.outputs) != 1 or not node.inputs:
        return False
    (result,) = node.outputs
    value, kind = fusion.values[result], fusion.values[number].dtype
    is_plain = value.dtype is kind and not value.stream and not value.sharding and result not in fusion.aliases
    return is_plain and fusion.shape_of(result) == fusion.shape_of(number)


def _column_values(fusion: Fusion, number: int, result: int) -> tuple[int, tuple[Node, ...]] | None:
    """Returns the array with one element for each column that a value repeats in every row, and the nodes between."""
    columns = fusion.canonical(fusion.shape_of(result)[-1])
    moves: list[Node] = []
    while True:
        shape = fusion.shape_of(number)
        if not shape or fusion.canonical(shape[-1]) != columns:
            return None
        node = fusion.producers.get(number)
        if node is None or not _repeats_rows(node):
            is_row = all(extent == 1 for extent in shape[:-1]) and len(shape) <= len(fusion.shape_of(result))
            return (number, tuple(reversed(moves))) if is_row else None
        moves.append(node)
        (number,) = node.inputs


def _repeats_rows(node: Node) -> bool:
    """Whether a node repeats its operand along axes other than the last."""
    if node.op is BROADCAST:
        return not node.attributes["is_broadcast_dim"][-1]
    return node.op is EXPAND and len(node.inputs) == 1
