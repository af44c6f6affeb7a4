"""Families of functions with drawn shapes, types, layouts and axes: what `sweep.py` measures.

A family is a function of a random generator and a number of bytes; it returns a Sample: a function over an array
namespace, and the arrays that it takes. Nothing here is tuned to a schedule: extents are odd, prime, or powers of two
with equal probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Random = np.random.Generator
FLOATS = ("float32", "float32", "float16", "float64")


@dataclass(frozen=True)
class Array:
    """One argument. order: the permutation of the axes in memory, from the outermost; below: for labels."""

    shape: Shape
    dtype: str = "float32"
    order: Shape | None = None
    below: int = 0


@dataclass(frozen=True)
class Sample:
    """A function over a namespace, its arguments, and what was drawn, as text.

    ordered: it adds floats at positions that are data, which the peers do in an order of their own in the deterministic
    modes alone.
    """

    text: str
    function: Callable[..., Any]
    arrays: tuple[Array, ...]
    ordered: bool = False


def extent(random: Random, low: int, high: int) -> int:
    """An extent between low and high: a power of two, a prime, or any, spread evenly over the magnitudes."""
    value = round(math.exp(random.uniform(math.log(low), math.log(high))))
    kind = random.integers(3)
    if kind == 0:
        return int(min(max(2 ** round(math.log2(value)), low), high))
    if kind == 1:
        while value < high and any(value % k == 0 for k in range(2, math.isqrt(value) + 1)):
            value += 1
    return int(max(low, min(value, high)))


def _of_size(random: Random, elements: int, inner: int) -> int:
    """The rows that `inner` columns need for about that many elements."""
    return max(1, int(elements * random.uniform(0.5, 1.0)) // inner)


def _dtype(random: Random) -> str:
    return str(random.choice(FLOATS))


def pointwise(random: Random, size: int) -> Sample:
    """Broadcasts of several ranks, with mixed widths."""
    source, target = random.choice(["int8", "int16", "float16", "float32", "int32"], 2)
    columns = extent(random, 3, 30000)
    rows = _of_size(random, size // 6, columns)
    flags = [bool(random.integers(2)) for _ in range(2)]

    def function(xp: Any, x: Any, row: Any, column: Any) -> Any:
        y = xp.astype(x, target) * row + column
        return xp.where(y > 0, y, y * 0.5) if target.startswith("float") else y + 1

    arrays = (
        Array((rows, columns), source), Array((columns,), target), Array((rows, 1) if flags[0] else (1, 1), target)
    )  # fmt: skip
    return Sample(f"{source} -> {target} {rows}x{columns}", function, arrays)


def permutation(random: Random, size: int) -> Sample:
    """Any permutation of 2 to 5 axes, with work."""
    rank, dtype = int(random.integers(2, 6)), _dtype(random)
    itemsize = np.dtype(dtype).itemsize
    dims = [extent(random, 2, max(3, round((size / itemsize / 3) ** (1 / rank)) * 3)) for _ in range(rank - 1)]
    dims.append(_of_size(random, size // itemsize // 3, math.prod(dims)))
    order = tuple(int(k) for k in random.permutation(rank))
    shape = tuple(dims)
    result = tuple(shape[k] for k in order)

    def function(xp: Any, x: Any, y: Any) -> Any:
        return xp.permute_dims(x, order) * 2 + y

    return Sample(f"{shape} by {order} {dtype}", function, (Array(shape, dtype), Array(result, dtype)))


def rows(random: Random, size: int, least: int = 1, most: int = 1_000_000) -> Sample:
    """Reductions and normalisations over the last axis, of 1 to 1e6 columns."""
    dtype, columns = _dtype(random), extent(random, least, most)
    count = _of_size(random, size // np.dtype(dtype).itemsize // 2, columns)
    kind = str(random.choice(["softmax", "layernorm", "rms", "sum", "max", "logsumexp", "var"]))

    def function(xp: Any, x: Any) -> Any:
        if kind == "softmax":
            e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
            return e / xp.sum(e, axis=-1, keepdims=True)
        if kind == "layernorm":
            mean = xp.mean(x, axis=-1, keepdims=True)
            return (x - mean) / xp.sqrt(xp.var(x, axis=-1, keepdims=True) + 1e-5)
        if kind == "rms":
            return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-5)
        if kind == "logsumexp":
            top = xp.max(x, axis=-1, keepdims=True)
            return xp.log(xp.sum(xp.exp(x - top), axis=-1, keepdims=True)) + top
        return getattr(xp, kind)(x, axis=-1)

    return Sample(f"{kind} {count}x{columns} {dtype}", function, (Array((count, columns), dtype),))


def few_columns(random: Random, size: int) -> Sample:
    """As `rows`, of 9 to 64 columns."""
    return rows(random, size, 9, 64)


def pads(random: Random, size: int) -> Sample:
    """Matrices with padded borders, with work."""
    columns, width = extent(random, 64, 10_000), int(random.integers(1, 9))
    count = max(width + 1, _of_size(random, size // 8, columns))
    mode = str(random.choice(["constant", "edge", "reflect", "symmetric", "wrap"]))
    text = f"{mode} {count}x{columns} by {width}"
    return Sample(text, lambda xp, x: xp.pad(x * 2, width, mode=mode), (Array((count, columns)),))


def tiny_axis(random: Random, size: int) -> Sample:
    """Reductions over an inner axis of 2 to 32 elements."""
    columns = int(random.integers(2, 33))
    count = _of_size(random, size // 8, columns)
    kind = str(random.choice(["normalise", "sum", "softmax", "norm"]))

    def function(xp: Any, x: Any) -> Any:
        if kind == "normalise":
            return x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True))
        if kind == "softmax":
            e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
            return e / xp.sum(e, axis=-1, keepdims=True)
        return xp.sum(x, axis=-1) if kind == "sum" else xp.sqrt(xp.sum(x * x, axis=-1))

    return Sample(f"{kind} {count}x{columns}", function, (Array((count, columns)),))


def axes(random: Random, size: int) -> Sample:
    """Reductions over outer, middle and several axes."""
    a, b, c = (extent(random, 2, 2000) for _ in range(3))
    a = max(1, size // 4 // b // c)
    shape = (a, b, c)
    over = [(0,), (1,), (0, 1), (0, 2), (1, 2), (0, 1, 2)][int(random.integers(6))]
    normalised = bool(random.integers(2))

    def function(xp: Any, x: Any) -> Any:
        total = xp.sum(x * x, axis=over, keepdims=normalised)
        return x / xp.sqrt(total + 1) if normalised else total

    text = f"{shape} over {over}{' normalised' if normalised else ''}"
    return Sample(text, function, (Array(shape),))


def positions(random: Random, size: int) -> Sample:
    """argmax and argmin over either axis."""
    columns = extent(random, 8, 100_000)
    count = _of_size(random, size // 4, columns)
    axis, kind = int(random.integers(2)), str(random.choice(["argmax", "argmin"]))
    return Sample(
        f"{kind} over {axis} of {count}x{columns}", lambda xp, x: getattr(xp, kind)(x, axis=axis),
        (Array((count, columns)),),
    )  # fmt: skip


def two_axes(random: Random, size: int) -> Sample:
    """Chains over different axes: a matrix normalised by rows, then by columns."""
    columns = extent(random, 16, 20_000)
    count = _of_size(random, size // 8, columns)

    def function(xp: Any, x: Any) -> Any:
        y = x / (xp.sum(xp.abs(x), axis=1, keepdims=True) + 1)
        return y / (xp.sum(xp.abs(y), axis=0, keepdims=True) + 1)

    return Sample(f"{count}x{columns}", function, (Array((count, columns)),))


def nested(random: Random, size: int) -> Sample:
    """Pairwise distances and small products by einsum."""
    if random.integers(2):
        k = int(random.integers(2, 17))
        n = round(math.sqrt(size / 4))

        def function(xp: Any, x: Any, y: Any) -> Any:
            difference = x[:, None, :] - y[None, :, :]
            return xp.sqrt(xp.sum(difference * difference, axis=-1))

        return Sample(f"distances {n}x{n} in {k}", function, (Array((n, k)), Array((n, k))))
    k = int(random.integers(2, 9))
    n = size // 12 // k // k
    return Sample(
        f"einsum {n} of {k}x{k}", lambda xp, a, b: xp.einsum("nij,njk->nik", a, b),
        (Array((n, k, k)), Array((n, k, k))),
    )  # fmt: skip


def scans(random: Random, size: int) -> Sample:
    """Cumulative sums over either axis, with work before."""
    columns = extent(random, 16, 1_000_000)
    count = _of_size(random, size // 8, columns)
    axis = int(random.integers(2))
    return Sample(
        f"over {axis} of {count}x{columns}", lambda xp, x: xp.cumsum(x * 0.5, axis=axis), (Array((count, columns)),)
    )


def gathers(random: Random, size: int) -> Sample:
    """Embedding lookups and take_along_axis."""
    columns = extent(random, 8, 4096)
    count = _of_size(random, size // 8, columns)
    table = extent(random, 100, 100_000)
    if random.integers(2):
        return Sample(
            f"embedding {table}x{columns}, {count} labels", lambda xp, w, k: xp.take(w, k, axis=0) * 2,
            (Array((table, columns)), Array((count,), "int32", below=table)),
        )  # fmt: skip
    return Sample(
        f"take_along_axis {count}x{columns}", lambda xp, x, k: xp.take_along_axis(x, k, axis=1) + x,
        (Array((count, columns)), Array((count, columns), "int32", below=columns)),
    )  # fmt: skip


def stencils(random: Random, size: int) -> Sample:
    """Updates of the interior in 1 to 3 dimensions."""
    rank = int(random.integers(1, 4))
    dims = [extent(random, 30, 3000 if rank == 2 else 300) for _ in range(rank - 1)]
    shape = (max(4, size // 8 // math.prod(dims)), *dims)
    inner = (slice(1, -1),) * rank

    def function(xp: Any, x: Any) -> Any:
        total = x[inner] * (-2.0 * rank)
        for axis in range(rank):
            for part in (slice(None, -2), slice(2, None)):
                total = total + x[(*inner[:axis], part, *inner[axis + 1 :])]
        return x[inner] + 0.1 * total

    return Sample(f"{shape}", function, (Array(shape),))


def shifts(random: Random, size: int) -> Sample:
    """Mixtures of roll, concatenation, slices and flips."""
    columns = extent(random, 8, 10_000)
    count = _of_size(random, size // 12, columns)
    shift, axis = int(random.integers(1, columns)), int(random.integers(2))
    kind = str(random.choice(["roll", "concat", "halves"]))

    def function(xp: Any, x: Any, y: Any) -> Any:
        if kind == "roll":
            return xp.roll(x, shift, axis=axis) - y
        if kind == "concat":
            return xp.concatenate([x * 2, y], axis=axis)
        half = columns // 2
        return xp.concatenate([-x[:, half:], x[:, :half]], axis=1) * y + x

    return Sample(f"{kind} {count}x{columns} axis {axis} by {shift}", function, (Array((count, columns)),) * 2)


def groups(random: Random, size: int) -> Sample:
    """Normalisation of groups of channels, through a reshape."""
    group, each, pixels = int(2 ** random.integers(0, 6)), int(random.integers(1, 17)), extent(random, 16, 4096)
    batch = max(1, size // 8 // (group * each * pixels))

    def function(xp: Any, x: Any, scale: Any) -> Any:
        y = xp.reshape(x, (x.shape[0], group, -1))
        mean, variance = xp.mean(y, axis=-1, keepdims=True), xp.var(y, axis=-1, keepdims=True)
        return xp.reshape((y - mean) / xp.sqrt(variance + 1e-5), x.shape) * scale

    shape = (batch, group * each, pixels)
    return Sample(f"{shape} in {group} groups", function, (Array(shape), Array((group * each, 1))))


def many_outputs(random: Random, size: int) -> Sample:
    """Several results from one pass."""
    columns = extent(random, 8, 100_000)
    count = _of_size(random, size // 20, columns)
    return Sample(f"{count}x{columns}", lambda xp, x, y: (x + y, x - y, xp.exp(x) * y), (Array((count, columns)),) * 2)


def separable(random: Random, size: int) -> Sample:
    """Separable filters of several taps over both axes of an image."""
    columns, taps = extent(random, 64, 8000), int(random.integers(3, 14))
    count = max(taps + 1, _of_size(random, size // 8, columns))
    weights = [round(1 / (1 + abs(k - taps // 2)), 3) for k in range(taps)]

    def along(x: Any, axis: int) -> Any:
        length = x.shape[axis] - taps + 1
        cut = (slice(None),) * axis
        return sum(w * x[(*cut, slice(k, k + length))] for k, w in enumerate(weights))

    return Sample(f"{taps} taps {count}x{columns}", lambda xp, x: along(along(x, 0), 1), (Array((count, columns)),))


def copies(random: Random, size: int) -> Sample:
    """Mixtures of tile, repeat and broadcast, with work."""
    columns, times = extent(random, 3, 4096), int(random.integers(2, 9))
    count = _of_size(random, size // 4 // (times + 1), columns)
    kind, axis = str(random.choice(["tile", "repeat"])), int(random.integers(2))

    def function(xp: Any, x: Any) -> Any:
        if kind == "tile":
            return xp.tile(x * 2, (times, 1) if axis == 0 else (1, times))
        return xp.repeat(x * 2, times, axis=axis)

    return Sample(f"{kind} {times} along {axis} of {count}x{columns}", function, (Array((count, columns)),))


def small_arrays(random: Random, size: int) -> Sample:
    """The same update of many arrays."""
    count = int(random.integers(8, 33))
    shapes = [(_of_size(random, size // 12 // count, columns := extent(random, 3, 300)), columns) for _ in range(count)]

    def function(xp: Any, *arrays: Any) -> Any:
        half = len(arrays) // 2
        return tuple(p - 0.01 * g for p, g in zip(arrays[:half], arrays[half:], strict=True))

    return Sample(f"{count} arrays of {shapes[0]}, ...", function, tuple(Array(s) for s in (*shapes, *shapes)))


def matrix_products(random: Random, size: int) -> Sample:
    """A product of matrices with a bias and a function of the result, in a stack or alone."""
    dtype = str(random.choice(["float32", "float16"]))
    inner = extent(random, 17, 2048)
    elements = size // np.dtype(dtype).itemsize
    columns = extent(random, 17, max(18, min(4096, elements // 4 // inner)))
    rows_ = max(16, min(8192, elements // (inner + 2 * columns)))
    batch = max(1, elements // (rows_ * (inner + columns) + inner * columns))
    shapes = ((batch, rows_, inner), (batch, inner, columns)) if batch > 1 else ((rows_, inner), (inner, columns))

    def function(xp: Any, a: Any, b: Any, bias: Any) -> Any:
        y = xp.matmul(a, b) + bias
        return y * (y > 0)

    text = f"{batch} of {rows_}x{inner}x{columns} {dtype}"
    return Sample(text, function, (Array(shapes[0], dtype), Array(shapes[1], dtype), Array((columns,), dtype)))


def attention(random: Random, size: int) -> Sample:
    """Attention of several heads with scores in memory or not, as the compiler decides."""
    heads, width = int(2 ** random.integers(0, 5)), int(random.choice([32, 64, 128]))
    length = int(min(4096, max(16, extent(random, 16, 4096))))
    batch = max(1, size // 2 // (heads * length * (4 * width + length)))
    causal = bool(random.integers(2))

    def function(xp: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = xp.matmul(q, xp.permute_dims(k, (0, 1, 3, 2))) * width**-0.5
        scores = scores + mask if causal else scores
        e = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
        return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)

    shape = (batch, heads, length, width)
    text = f"{shape} {'with a mask' if causal else ''}"
    return Sample(text, function, (*(Array(shape, "float16"),) * 3, Array((length, length), "float16")))


def scatters(random: Random, size: int) -> Sample:
    """Rows added to the rows that labels name: scatter-add, and histograms of one column."""
    columns = 1 if random.integers(2) else extent(random, 2, 1024)
    count = _of_size(random, size // 8, columns + 1)
    table = extent(random, 10, 100_000)
    dtype = str(random.choice(["float32", "int32"]))

    def function(xp: Any, x: Any, k: Any, v: Any) -> Any:
        if hasattr(x, "index_add"):
            return x.index_add(0, k, v)
        if xp.__name__.startswith("jax"):
            return x.at[k].add(v)
        y = x.copy()
        np.add.at(y, k, v)
        return y

    arrays = (Array((table, columns), dtype), Array((count,), "int32", below=table), Array((count, columns), dtype))
    return Sample(f"{count}x{columns} {dtype} into {table}", function, arrays, dtype.startswith("float"))


FAMILIES: dict[str, Callable[[Random, int], Sample]] = {
    "pointwise": pointwise, "permutation": permutation, "rows": rows, "few_columns": few_columns, "pads": pads,
    "tiny_axis": tiny_axis, "axes": axes, "positions": positions, "two_axes": two_axes, "nested": nested,
    "scans": scans, "gathers": gathers, "stencils": stencils, "shifts": shifts, "groups": groups,
    "many_outputs": many_outputs, "separable": separable, "copies": copies, "small_arrays": small_arrays,
    "products": matrix_products, "attention": attention, "scatters": scatters,
}  # fmt: skip
