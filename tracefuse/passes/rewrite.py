"""Passes from Fusion to Fusion: dead code, common subexpressions, arithmetic on constants.

Every pass is a pure function that keeps the numbers of the values that it keeps, and never removes an input or renames
an output. Requirements stay, since what they ask was asked by the user's code whether or not its result is used.
A pass may change which value is computed, never what is: folding gives the bits that the node would have given, and
literals are told apart by type and bits (1 from 1.0 from True, 0.0 from -0.0, NaN from NaN).

Knows: fusions, and what every row says of itself. Must not know: any single op, segments, kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tracefuse.dtypes import DType
from tracefuse.errors import FusionError, InternalError, ShapeError, TracefuseError
from tracefuse.ir.builder import FusionBuilder
from tracefuse.ir.extents import Expression, Extent, symbol
from tracefuse.ir.fusion import Fusion, Literal, Node, Operand, Shape
from tracefuse.ir.indexing import sources
from tracefuse.ir.op_kinds import Library, Movement, Pointwise, Reduction, Source
from tracefuse.ir.reference import evaluate
from tracefuse.ops import REGISTRY
from tracefuse.ops.movement import broadcast, squeeze
from tracefuse.ops.pointwise import cast
from tracefuse.ops.pointwise import set as copy
from tracefuse.rounding import round_to_half


class Rewriter(FusionBuilder):
    """A builder that starts with a fusion's inputs and values. New values get numbers above the last.

    `keep(node)` takes a node over; `node(...)` makes a new one, whose results get `origin` as theirs.
    """

    def __init__(self, fusion: Fusion) -> None:
        super().__init__()
        self.values = dict(fusion.values)
        self.inputs = list(fusion.inputs)
        self.outputs = list(fusion.outputs)
        self.requirements = list(fusion.requirements)
        self.aliases = dict(fusion.aliases)
        self._next = max(self.values, default=-1) + 1
        self._asked = {(r.left, r.relation, r.right) for r in self.requirements}

    def keep(self, node: Node) -> None:
        self.nodes.append(node)

    def require(
        self, left: Extent, relation: str, right: Extent, message: str, hint: str, where: str | None = None,
        kind: type[TracefuseError] = ShapeError,
    ) -> None:  # fmt: skip
        if (left, relation, right) not in self._asked:
            self._asked.add((left, relation, right))
            super().require(left, relation, right, message, hint, where, kind)

    def start_over(self) -> None:
        """Without nodes and requirements, for a pass that makes all of them anew."""
        self.nodes, self.requirements = [], []
        self._asked.clear()

    def asks(self, left: Extent, right: Extent) -> bool:
        """Whether two extents are required to be equal."""
        return (left, "==", right) in self._asked or (right, "==", left) in self._asked

    def mark(self, number: int, origin: int) -> None:
        """Says which value of the original a made value comes from."""
        self.values[number] = replace(self.values[number], origin=origin)


def with_nodes(fusion: Fusion, nodes: Sequence[Node]) -> Fusion:
    """`fusion` with other nodes; values that nothing makes any more are dropped."""
    made = {*fusion.inputs, *(o for node in nodes for o in node.outputs)}
    values = {number: value for number, value in fusion.values.items() if number in made}
    return Fusion(values, fusion.inputs, tuple(nodes), fusion.outputs, fusion.requirements, dict(fusion.aliases))


def drop_dead(fusion: Fusion) -> Fusion:
    """Without the nodes that no output depends on. Inputs stay, also those that nothing reads."""
    live = set(fusion.outputs)
    kept = []
    for node in reversed(fusion.nodes):
        if not live.isdisjoint(node.outputs):
            live.update(node.inputs)
            kept.append(node)
    return with_nodes(fusion, kept[::-1])


def drop_dead_tensors(fusion: Fusion) -> Fusion:
    """As `drop_dead`, with every host scalar kept: those are computed for the fusion that a call is made of."""
    live = set(drop_dead(fusion).values)
    kept = [n for n in fusion.nodes if n.outputs[0] in live or not fusion.values[n.outputs[0]].is_tensor]
    return replace(with_nodes(fusion, kept), concrete=fusion.concrete)


# ---------------------------------------------------------------------------------------------------------------------
# common subexpressions


def _bits(value: bool | int | float | complex) -> Hashable:
    """What tells two literals apart: type and bits, so that no two that behave differently are equal."""
    if isinstance(value, float | complex):
        return (type(value).__name__, np.asarray(value).tobytes())
    return (type(value).__name__, value)


def _frozen(attribute: Any) -> Hashable:
    if isinstance(attribute, tuple):
        return tuple(map(_frozen, attribute))
    if isinstance(attribute, bool | int | float | complex):
        return _bits(attribute)
    return attribute  # type: ignore[no-any-return]


def node_key(fusion: Fusion, node: Node, leave_out: str | None = None) -> Hashable:
    """Two nodes with one key compute one value. leave_out: an attribute that is not looked at."""
    operands = tuple(_bits(o.value) if isinstance(o, Literal) else o for o in node.operands)
    attributes = tuple((k, _frozen(_canonical(fusion, v))) for k, v in node.attributes.items() if k != leave_out)
    types = tuple(fusion.values[o].dtype.name for o in node.outputs)
    return (node.op.name, operands, attributes, node.compute.name, types)


def _canonical(fusion: Fusion, attribute: Any) -> Any:
    if isinstance(attribute, Expression):
        return fusion.canonical(attribute)
    if isinstance(attribute, tuple):
        return tuple(_canonical(fusion, a) for a in attribute)
    return attribute


def renamed(node: Node, names: Mapping[int, int]) -> Node:
    """The node with operands replaced by others that are the same value."""
    if not any(o in names for o in node.inputs):
        return node
    operands = tuple(names.get(o, o) if isinstance(o, int) else o for o in node.operands)
    return replace(node, operands=operands)


def merge_common(fusion: Fusion) -> Fusion:
    """Each value computed once: a node equal to an earlier one goes, and its readers read the earlier one.

    Equal means the same row, operands, attributes, compute and result types, extents being compared as the fusion
    knows them. Rows that are `distinct` and values on streams are never merged, and a node that makes an output keeps
    making it. A reduction that differs from an earlier one in `keepdim` alone becomes a movement of that one's result.
    """
    names: dict[int, int] = {}
    seen: dict[Hashable, Node] = {}
    kept: list[Node] = []
    for original in fusion.nodes:
        node = renamed(original, names)
        if node.op.distinct or any(fusion.values[o].stream for o in node.outputs):
            kept.append(node)
            continue
        node = _as_movement(fusion, node, seen)
        key = node_key(fusion, node)
        first = seen.get(key)
        if first is not None and not any(o in fusion.outputs for o in node.outputs):
            names.update(zip(node.outputs, first.outputs, strict=True))
            continue
        kept.append(node)
        seen.setdefault(key, node)
    return with_nodes(fusion, kept)


def _as_movement(fusion: Fusion, node: Node, seen: dict[Hashable, Node]) -> Node:
    """A reduction whose twin with the other `keepdim` is there becomes axes added to, or dropped from, its result."""
    if not isinstance(node.op, Reduction):
        return node
    key = ("any keepdim", node_key(fusion, node, leave_out="keepdim"))
    twin = seen.setdefault(key, node)
    if twin.attributes["keepdim"] == node.attributes["keepdim"]:
        return node
    dims = node.attributes["dims"]
    rank = len(fusion.values[node.inputs[0]].shape)
    dtype = fusion.values[node.outputs[0]].dtype
    if node.attributes["keepdim"]:
        flags = {"is_broadcast_dim": tuple(axis in dims for axis in range(rank))}
        return Node(broadcast, twin.outputs, flags, dtype, node.outputs, node.where)
    return Node(squeeze, twin.outputs, {"dims": dims}, dtype, node.outputs, node.where)


# ---------------------------------------------------------------------------------------------------------------------
# products


def read_transposed(fusion: Fusion) -> Fusion:
    """A product with the transpose of a matrix reads the matrix itself: BLAS needs no transposed copy.

    That is the row whose product is "ab'" in place of the one whose is "ab". The transpose stays where others read it.
    """
    producers = fusion.producers
    return with_nodes(fusion, [_with_transposed(fusion, node, producers) for node in fusion.nodes])


def _with_transposed(fusion: Fusion, node: Node, producers: Mapping[int, Node]) -> Node:
    if not isinstance(node.op, Library) or node.op.product != "ab":
        return node
    left, right = node.operands
    made = producers.get(right) if isinstance(right, int) else None
    if made is None or not isinstance(made.op, Movement) or not _is_transpose(fusion, made):
        return node
    if any(fusion.values[o].stream or fusion.values[o].sharding for o in (*made.outputs, *node.outputs)):
        return node
    other = next(op for op in REGISTRY.values() if isinstance(op, Library) and op.product == "ab'")
    return Node(other, (left, made.operands[0]), dict(other.attributes), node.compute, node.outputs, node.where)


MOST_OPERANDS = 32
"""Operands of an associative row at most. Each is a branch and a parameter of its kernel, and a kernel has room for no
more than a bounded number of them; a run of this many goes through memory once more."""


def join_in_runs(fusion: Fusion) -> Fusion:
    """An associative row with many operands is applied to runs of them, and then to what that gives."""
    if not any(_is_long(node) for node in fusion.nodes):
        return fusion
    rewriter = Rewriter(fusion)
    for node in fusion.nodes:
        operands = node.operands
        while _is_long(node) and len(operands) > MOST_OPERANDS:
            runs = [operands[first : first + MOST_OPERANDS] for first in range(0, len(operands), MOST_OPERANDS)]
            operands = tuple(_run(rewriter, fusion, node, run) for run in runs)
        rewriter.keep(node if operands == node.operands else replace(node, operands=operands))
    return rewriter.build()


def _is_long(node: Node) -> bool:
    return isinstance(node.op, Movement) and node.op.associative and len(node.operands) > MOST_OPERANDS


def _run(rewriter: Rewriter, fusion: Fusion, node: Node, run: Sequence[Operand]) -> Operand:
    """What a node makes of some of its operands."""
    if len(run) == 1:
        return run[0]
    dtype = fusion.values[node.outputs[0]].dtype
    (made,) = rewriter.node(node.op, run, node.attributes, node.compute, [dtype], where=node.where)
    return made


def _is_transpose(fusion: Fusion, node: Node) -> bool:
    """Whether a movement is that of a matrix to its transpose."""
    shapes = [fusion.shape_of(operand) for operand in node.operands]
    if len(shapes) != 1 or len(shapes[0]) != 2 or 1 in shapes[0]:
        return False
    row, column = symbol("row"), symbol("column")
    result = tuple(fusion.canonical(e) for e in fusion.values[node.outputs[0]].shape)
    found = sources(fusion, node, (row, column), _no_positions) if len(result) == 2 else ()
    return len(found) == 1 and found[0] == Source(0, (column, row)) and result == shapes[0][::-1]


def _no_positions(operand: int, coordinates: Shape) -> Extent:
    raise InternalError("a row with one operand has no positions")


# ---------------------------------------------------------------------------------------------------------------------
# constants


def fold_constants(fusion: Fusion) -> Fusion:
    """Host scalars that are made of literals alone become literals where they are read.

    The value is what `evaluate` gives for the node; halves are left alone, since no Python constant has their
    rounding. A scalar that is an output keeps its node.
    """
    known: dict[int, Literal] = {}
    kept = []
    for node in fusion.nodes:
        operands = tuple(known.get(o, o) if isinstance(o, int) else o for o in node.operands)
        changed = node if operands == node.operands else replace(node, operands=operands)
        literal = _folded(fusion, changed)
        if literal is not None:
            known[node.outputs[0]] = literal
            if node.outputs[0] not in fusion.outputs:
                continue
        kept.append(changed)
    return with_nodes(fusion, kept)


def _folded(fusion: Fusion, node: Node) -> Literal | None:
    output = fusion.values[node.outputs[0]]
    operands: tuple[Operand, ...] = node.operands
    symbolic = any(isinstance(_canonical(fusion, a), Expression) for a in node.attributes.values())
    if output.is_tensor or symbolic or not all(isinstance(o, Literal) for o in operands):
        return None
    if isinstance(node.op, Pointwise) and node.op.varies:
        return None
    if output.dtype.is_half or node.compute.is_half:
        return None
    alone = replace(node, attributes={k: _canonical(fusion, v) for k, v in node.attributes.items()})
    (result,) = evaluate(Fusion({output.number: output}, (), (alone,), (output.number,)), [])
    value = result.item()
    if not isinstance(value, bool | int | float | complex):
        raise FusionError(f"{node.op.name} of constants gave {value!r}, which is no scalar", where=node.where)
    return Literal(value)


def round_halves(fusion: Fusion) -> Fusion:
    """Every computed half rounded as if it were stored: a cast to its own type, which takes over its number."""
    rewriter = Rewriter(fusion)
    for node in fusion.nodes:
        number = node.outputs[0]
        value = fusion.values[number]
        if len(node.outputs) > 1 or not value.dtype.is_half or isinstance(node.op, Movement):
            rewriter.keep(node)
            continue
        exact = rewriter.new_number()
        rewriter.values[exact] = replace(value, number=exact, origin=number)
        rewriter.keep(replace(node, outputs=(exact,)))
        rewriter.keep(Node(cast, (exact,), {"dtype": value.dtype}, value.dtype, (number,), node.where))
    return rewriter.build()


def round_scalars(fusion: Fusion) -> Fusion:
    """The numbers and host scalars that arithmetic on halves meets, rounded to the half type first, as NumPy does.

    What a comparison meets has its type from the trace.
    """
    rewriter = Rewriter(fusion)
    for node in fusion.nodes:
        op = node.op
        if not isinstance(op, Pointwise) or not node.compute.is_half or op.result in ("bool", "dtype"):
            rewriter.keep(node)
            continue
        first = 1 if op.promotion == "where" else 0
        operands = [*node.operands[:first]]
        operands += [_rounded_scalar(rewriter, o, node.compute) for o in node.operands[first:]]
        rewriter.keep(replace(node, operands=tuple(operands)))
    return rewriter.build()


def _rounded_scalar(rewriter: Rewriter, operand: Operand, dtype: DType) -> Operand:
    if isinstance(operand, Literal):
        return Literal(float(round_to_half(operand.value, dtype)))
    value = rewriter.values[operand]
    if value.is_tensor or value.dtype is dtype:
        return operand
    return rewriter.node(cast, (operand,), {"dtype": dtype}, dtype, (dtype,))[0]


def separate_outputs(fusion: Fusion) -> Fusion:
    """Gives every output memory of its own: one that is returned twice, or that is an input, becomes a copy.

    An input that is an output as it is stays one; the frontends return the very object.
    """
    seen: dict[int, None] = {}
    if len(set(fusion.outputs)) == len(fusion.outputs):
        return fusion
    rewriter = Rewriter(fusion)
    for node in fusion.nodes:
        rewriter.keep(node)
    outputs = []
    for number in fusion.outputs:
        if number in seen and fusion.values[number].is_tensor:
            dtype = fusion.values[number].dtype
            (number,) = rewriter.node(copy, (number,), {}, dtype, (dtype,))
        seen[number] = None
        outputs.append(number)
    rewriter.outputs = outputs
    return rewriter.build()
