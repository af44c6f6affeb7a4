"""Sorts of few elements, and their medians, as comparisons that exchange two elements.

A library sorts one row after another, and takes as long for three elements as for the call. As a network of smaller and
larger elements, as in a median filter of 3 by 3 pixels, a sort is a pointwise function: it is vectorized over rows and
fused with what surrounds it. A median needs few of the exchanges; the rest is dead code.

The networks are Batcher's merge exchanges (K. E. Batcher, "Sorting networks and their applications", 1968).

Must not know: segments, kernels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from tracefuse.dtypes import DType, bool_
from tracefuse.ir.axes import normalize_axes, normalize_axis
from tracefuse.ir.extents import evaluate
from tracefuse.ir.fusion import Fusion, Literal, Node, Op
from tracefuse.ir.library_kinds import Library
from tracefuse.ops.ordering import MOST_OF_MEDIAN, MOST_SORTED
from tracefuse.ops.roles import (
    ADD,
    AT_MOST,
    BOTH,
    CAST,
    CHOICE,
    JOIN,
    LARGER,
    MULTIPLY,
    NOT,
    SLICE,
    SMALLER,
    SQUEEZE,
)
from tracefuse.passes.rewriter import Rewriter


def sort_in_networks(fusion: Fusion) -> Fusion:
    """Sorts few elements by comparisons that exchange two of them, instead of a library's function."""
    lengths = [_axes(fusion, node) for node in fusion.nodes]
    if not any(lengths):
        return fusion
    rewriter, producers = Rewriter(fusion), fusion.producers
    for node, axes in zip(fusion.nodes, lengths, strict=True):
        if not axes:
            rewriter.keep(node)
        elif node.op.order_statistic == "all":  # type: ignore[attr-defined]
            _Network(fusion, rewriter, node, axes, producers).sort()
        else:
            _Network(fusion, rewriter, node, axes, producers).median()
    return rewriter.build()


def _axes(fusion: Fusion, node: Node) -> tuple[int, ...]:
    """Returns the axes along which a node sorts few elements, whose number is known; none for other nodes."""
    if not isinstance(node.op, Library) or not node.op.order_statistic or not isinstance(node.operands[0], int):
        return ()
    value = fusion.values[node.operands[0]]
    shape = fusion.shape_of(node.operands[0])
    used = [fusion.values[number] for number in (*node.inputs, *node.outputs)]
    if value.dtype.kind not in ("float", "int", "uint") or value.dtype.is_half or not shape:
        return ()
    if any(one.stream or one.sharding for one in used):
        return ()
    if node.op.order_statistic == "all":
        axes: tuple[int, ...] = (normalize_axis(node.attributes["dim"], len(shape)),)
        most = MOST_SORTED
    else:
        axis = node.attributes["axis"]
        listed = range(len(shape)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        axes = normalize_axes(listed, len(shape))
        most = MOST_OF_MEDIAN
    count = 1
    for axis in axes:
        extent = fusion.canonical(shape[axis])
        if not isinstance(extent, int) or extent < 1:
            return ()
        count *= extent
    return axes if 1 < count <= most else ()


class _Network:
    """The nodes in place of one that sorts."""

    def __init__(
        self, fusion: Fusion, rewriter: Rewriter, node: Node, axes: Sequence[int], producers: Mapping[int, Node]
    ) -> None:
        self.fusion, self.rewriter, self.node, self.axes, self._producers = fusion, rewriter, node, axes, producers
        (self.operand,), (self.result,) = node.inputs, node.outputs
        self.shape, self.dtype = fusion.shape_of(self.operand), fusion.values[self.operand].dtype
        self.original = fusion.values[self.result]
        extents = [range(evaluate(fusion.canonical(self.shape[axis]), {})) for axis in axes]
        joined = self._joined()
        self.elements = joined or [self._element(positions) for positions in itertools.product(*extents)]

    def sort(self) -> None:
        """Adds all elements in order; NaN comes last."""
        exchange = self._ordered if self.dtype.kind == "float" else self._exchanged
        self._run(exchange)
        self._add(JOIN, self.elements, {"dim": self.axes[0]}, self.dtype, is_result=True)

    def median(self) -> None:
        """Adds the element in the middle, or the mean of the two there; NaN if any element is."""
        self._run(self._exchanged)
        result, count = self.original.dtype, len(self.elements)
        middle = [self._cast(self.elements[k], result) for k in sorted({(count - 1) // 2, count // 2})]
        value = middle[0]
        if len(middle) == 2:
            total = self._add(ADD, middle, {}, result)
            value = self._add(MULTIPLY, [total, Literal(0.5)], {}, result)
        if self.node.attributes["keepdims"]:
            whole = [0] * len(self.shape)
            bounds = {"start_indices": tuple(whole), "end_indices": self.original.shape}
            self._add(SLICE, [value], {**bounds, "strides": (1,) * len(whole)}, result, is_result=True)
        else:
            self._add(SQUEEZE, [value], {"dims": tuple(self.axes)}, result, is_result=True)

    def _run(self, exchange: object) -> None:
        for low, high in exchanges(len(self.elements)):
            self.elements[low], self.elements[high] = exchange(self.elements[low], self.elements[high])  # type: ignore[operator]

    def _exchanged(self, left: int, right: int) -> tuple[int, int]:
        """Adds the smaller and the larger of two elements; both are NaN if one is."""
        smaller = self._add(SMALLER, [left, right], {}, self.dtype)
        return smaller, self._add(LARGER, [left, right], {}, self.dtype)

    def _ordered(self, left: int, right: int) -> tuple[int, int]:
        """Adds the smaller and the larger of two elements; NaN is larger than all numbers."""
        is_ordered = self._compare(left, right)
        is_number = self._compare(right, right)
        (is_not,) = self.rewriter.node(NOT, [is_ordered], {}, bool_, [bool_], where=self.node.where)
        (swaps,) = self.rewriter.node(BOTH, [is_not, is_number], {}, bool_, [bool_], where=self.node.where)
        first = self._add(CHOICE, [swaps, right, left], {}, self.dtype)
        return first, self._add(CHOICE, [swaps, left, right], {}, self.dtype)

    def _compare(self, left: int, right: int) -> int:
        (number,) = self.rewriter.node(AT_MOST, [left, right], {}, self.dtype, [bool_], where=self.node.where)
        return number

    def _element(self, positions: Sequence[int]) -> int:
        """Adds the elements at some positions of the sorted axes, which keep extent 1."""
        starts, ends = [0] * len(self.shape), list(self.shape)
        for axis, position in zip(self.axes, positions, strict=True):
            starts[axis], ends[axis] = position, position + 1
        bounds = {"start_indices": tuple(starts), "end_indices": tuple(ends), "strides": (1,) * len(starts)}
        return self._add(SLICE, [self.operand], bounds, self.dtype)

    def _joined(self) -> list[int] | None:
        """Returns the operands of the concatenation that is sorted along its axis, if each has one element there."""
        join = self._producers.get(self.operand)
        if join is None or join.op is not JOIN or tuple(self.axes) != (join.attributes["dim"],):
            return None
        parts = [part for part in join.operands if isinstance(part, int)]
        (axis,) = self.axes
        extents = [self.fusion.canonical(self.fusion.shape_of(part)[axis]) for part in parts]
        is_plain = all(extent == 1 for extent in extents) and len(parts) == len(join.operands)
        return parts if is_plain and {self.fusion.values[part].dtype for part in parts} == {self.dtype} else None

    def _cast(self, number: int, dtype: DType) -> int:
        if self.rewriter.values[number].dtype is dtype:
            return number
        return self._add(CAST, [number], {"dtype": dtype}, dtype)

    def _add(
        self, op: Op, operands: Sequence[int | Literal], attributes: Mapping[str, object], dtype: DType, *,
        is_result: bool = False,
    ) -> int:  # fmt: skip
        """Adds a node; returns its value. is_result: it is that of the node that sorts."""
        numbers = [self.result] if is_result else ()
        (number,) = self.rewriter.node(
            op, operands, attributes, dtype, [dtype], where=self.node.where, numbers=numbers
        )  # fmt: skip
        if is_result:
            self.rewriter.values[number] = self.original  # with its name
        else:
            self.rewriter.mark(number, self.result)
        return number


def exchanges(count: int) -> Iterator[tuple[int, int]]:
    """Yields the places of Batcher's exchanges, in order, that sort `count` elements."""
    width = 1
    while width < count:
        step = width
        while step:
            for first in range(step % width, count - step, 2 * step):
                for place in range(first, min(first + step, count - step)):
                    if place // (2 * width) == (place + step) // (2 * width):
                        yield place, place + step
            step //= 2
        width *= 2
