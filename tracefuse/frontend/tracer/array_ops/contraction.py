"""Sums of products over named axes, on traced values: the shared core of einsum, tensordot and similar functions.

Each axis of an operand has a letter. Axes with equal letters are aligned, and letters that are not in the result are
summed. If two operands share a summed letter and each has a letter of its own, they become a matrix product.
Everything else becomes multiplications and sums, which fuse with the ops around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse import source
from tracefuse.dtypes import promote_numpy
from tracefuse.frontend.tracer.array_ops import arithmetic, shaping, traced_ops
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, as_tensor
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.extents import Extent, product


@dataclass(frozen=True, slots=True)
class Lettered:
    """A value with a distinct letter for each axis."""

    value: Traced
    letters: str

    def extent(self, letter: str) -> Extent:
        return self.value.extents[self.letters.index(letter)]


def contract(operands: Sequence[tuple[Any, str]], result: str) -> Any:
    """Sums the product of the operands over every letter that is not in `result`, which gives the order of axes.

    A letter twice in one operand takes its diagonal. Every letter of the result is in an operand. Raises ShapeError if
    the axes of a letter have different extents, neither of them 1.
    """
    tensors = [as_tensor(value) for value, _ in operands]
    common = promote_numpy([tensor.value.dtype for tensor in tensors])
    alike = [traced_ops.astype(tensor, common, copy=False) for tensor in tensors]
    parts = [_diagonals(tensor, letters) for tensor, (_, letters) in zip(alike, operands, strict=True)]
    current = parts[0]
    for position, part in enumerate(parts[1:], start=1):
        later = {letter for other in parts[position + 1 :] for letter in other.letters}
        current = _pair(current, part, later.union(result))
    current = _summed(current, set(result))
    if current.letters == result:
        is_operand = len(operands) == 1 and current is parts[0]
        return views.alias(current.value) if is_operand and current.value is tensors[0] else current.value
    return shaping.transpose(current.value, tuple(current.letters.index(letter) for letter in result))


def _diagonals(value: Traced, letters: str) -> Lettered:
    for letter in letters:
        while letters.count(letter) > 1:
            first = letters.index(letter)
            second = letters.index(letter, first + 1)
            value = diagonal(value, first, second)
            letters = letters.replace(letter, "", 2) + letter
    return Lettered(value, letters)


def diagonal(value: Traced, first: int, second: int) -> Traced:
    """Returns the elements whose coordinates on two axes of equal extent are equal, along the last axis of a view."""
    extents = value.extents
    message = f"the diagonal of axes {first} and {second}: extents {{left}} and {{right}} differ"
    hint = "slice the longer one first"
    value.recorder.builder.require(extents[first], "==", extents[second], message, hint, source.user_line())
    starts, steps = (0,) * len(extents), (1,) * len(extents)
    dims = tuple(sorted((first, second)))
    return views.take_view("diagonal", value, start_indices=starts, end_indices=extents, strides=steps, dims=dims)


def _summed(part: Lettered, remaining: set[str]) -> Lettered:
    """Sums over the letters outside `remaining`."""
    axes = tuple(axis for axis, letter in enumerate(part.letters) if letter not in remaining)
    if not axes:
        return part
    total = traced_ops.sum_of_products(part.value, axes)
    return Lettered(total, "".join(letter for letter in part.letters if letter in remaining))


def _pair(left: Lettered, right: Lettered, remaining: set[str]) -> Lettered:
    left, right = _without_ones(left, right), _without_ones(right, left)
    left, right = _summed(left, remaining.union(right.letters)), _summed(right, remaining.union(left.letters))
    shared = [letter for letter in left.letters if letter in right.letters]
    inner = [letter for letter in shared if letter not in remaining]
    rows = [letter for letter in left.letters if letter not in shared]
    columns = [letter for letter in right.letters if letter not in shared]
    if inner and rows and columns:
        return _matrices(left, right, [letter for letter in shared if letter in remaining], rows, columns, inner)
    letters = left.letters + "".join(columns)
    scaled = apply("mul", _lined_up(left, letters), _lined_up(right, letters))
    return _summed(Lettered(scaled, letters), remaining)


def _without_ones(part: Lettered, other: Lettered) -> Lettered:
    """Drops axes of extent 1 that are longer in the other operand: they broadcast."""
    shared = [letter for letter in part.letters if letter in other.letters]
    ones = [letter for letter in shared if part.extent(letter) == 1 and other.extent(letter) != 1]
    if not ones:
        return part
    value = shaping.squeeze(part.value, tuple(part.letters.index(letter) for letter in ones))
    return Lettered(value, "".join(letter for letter in part.letters if letter not in ones))


def _lined_up(part: Lettered, letters: str) -> Traced:
    """Returns the value with axes in the order of `letters`, and an axis of extent 1 for each missing letter."""
    present = [letter for letter in letters if letter in part.letters]
    ordered = shaping.transpose(part.value, tuple(part.letters.index(letter) for letter in present))
    absent = tuple(axis for axis, letter in enumerate(letters) if letter not in part.letters)
    return shaping.expand_dims(ordered, absent) if absent else ordered  # type: ignore[no-any-return]


def _matrices(
    left: Lettered, right: Lettered, batch: list[str], rows: list[str], columns: list[str], inner: list[str]
) -> Lettered:
    """Computes a matrix product: joins the axes of each group, and splits them again in the result."""
    recorder = left.value.recorder
    for letter in inner:
        message = f"einsum: the extents of {letter!r} differ: {{left}} and {{right}}"
        hint = "axes with the same letter need the same extent"
        extents = left.extent(letter), right.extent(letter)
        recorder.builder.require(extents[0], "==", extents[1], message, hint, source.user_line())
    result = arithmetic.matmul(_grouped(left, batch, rows, inner), _grouped(right, batch, inner, columns))
    shape = [*result.extents[: len(batch)], *map(left.extent, rows), *map(right.extent, columns)]
    letters = "".join([*batch, *rows, *columns])
    return Lettered(shaping.reshape(result, recorder.sizes(shape)), letters)


def _grouped(part: Lettered, batch: list[str], first: list[str], second: list[str]) -> Traced:
    """Returns a matrix for each element of the batch: the joined axes `first` by the joined axes `second`."""
    order = [*batch, *first, *second]
    ordered = shaping.transpose(part.value, tuple(part.letters.index(letter) for letter in order))
    joined = [*map(part.extent, batch), product(map(part.extent, first)), product(map(part.extent, second))]
    return shaping.reshape(ordered, part.value.recorder.sizes(joined))  # type: ignore[no-any-return]
