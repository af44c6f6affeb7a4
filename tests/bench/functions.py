"""The functions that every benchmark runs, each written once over an array namespace `xp`.

`xp` is NumPy (also inside `@fuse`), jax.numpy, or a namespace with the same names over another library. A row says
which arrays a function takes at which sizes; the bytes that a row must move are each input once and each output once.
Nothing here knows who runs a row or how it is timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Shape = tuple[int, ...]

EPSILON = 1e-5


@dataclass(frozen=True)
class Input:
    """One argument. kind: "data" (normal numbers of the row's dtype), "positive" (between 0.5 and 1.5, of the row's
    dtype), "labels" (int32 from 0 to `below`)."""

    shape: Shape
    kind: str = "data"
    below: int = 0


@dataclass(frozen=True)
class Row:
    """A function and the sizes that it is measured at. inputs: the arguments for a size; halves: also in bfloat16."""

    name: str
    function: Callable[..., Any]
    inputs: Callable[[Shape], tuple[Input, ...]]
    cpu: Shape
    gpu: Shape
    halves: bool = True

    def closed(self, xp: Any) -> Callable[..., Any]:
        """The function of the arrays alone, over one namespace."""

        def call(*arguments: Any) -> Any:
            return self.function(xp, *arguments)

        call.__name__ = call.__qualname__ = self.name
        return call


# ---------------------------------------------------------------------------------------------------------------------
# the functions


def bias_gelu(xp: Any, x: Any, bias: Any) -> Any:
    """GELU of x + bias in its tanh form (Hendrycks and Gimpel, 2016)."""
    z = x + bias
    return 0.5 * z * (1.0 + xp.tanh(math.sqrt(2.0 / math.pi) * (z + 0.044715 * z * z * z)))


def softmax(xp: Any, x: Any) -> Any:
    """Softmax over the last axis, shifted by its maximum."""
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def layernorm(xp: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Layer normalisation over the last axis."""
    mean = xp.mean(x, axis=-1, keepdims=True)
    variance = xp.var(x, axis=-1, keepdims=True)
    return (x - mean) / xp.sqrt(variance + EPSILON) * weight + bias


def layernorm_backward(xp: Any, dy: Any, x: Any, mean: Any, rstd: Any, weight: Any) -> Any:
    """Gradients of layernorm (dx, dweight, dbias) from the mean and 1 / deviation that the forward pass kept."""
    normal = (x - mean) * rstd
    scaled = dy * weight
    first = xp.mean(scaled * normal, axis=-1, keepdims=True)
    second = xp.mean(scaled, axis=-1, keepdims=True)
    dx = (scaled - normal * first - second) * rstd
    return dx, xp.sum(dy * normal, axis=0), xp.sum(dy, axis=0)


def sum_broadcast_add(xp: Any, x: Any, y: Any) -> Any:
    """The sum of each row of x, added to the row of y."""
    return y + xp.sum(x, axis=-1, keepdims=True)


def column_sum(xp: Any, x: Any) -> Any:
    """Sum over the first axis."""
    return xp.sum(x, axis=0)


def full_sum(xp: Any, x: Any) -> Any:
    """Sum of all elements."""
    return xp.sum(x)


def transpose_add(xp: Any, x: Any, y: Any) -> Any:
    """The transpose of a matrix plus another."""
    return xp.permute_dims(x, (1, 0)) + y


def rope_residual(xp: Any, x: Any, cosine: Any, sine: Any) -> Any:
    """x plus its rotary embedding, halves rotated (Su et al., 2021)."""
    half = x.shape[-1] // 2
    rotated = xp.concatenate([-x[..., half:], x[..., :half]], axis=-1)
    return x + (x * cosine + rotated * sine)


def swiglu(xp: Any, gate: Any, up: Any) -> Any:
    """SiLU of the gate times the other half (Shazeer, 2020)."""
    return gate / (1.0 + xp.exp(-gate)) * up


def cross_entropy(xp: Any, logits: Any, labels: Any) -> Any:
    """The negative log-probability of each row's label."""
    largest = xp.max(logits, axis=-1, keepdims=True)
    total = xp.sum(xp.exp(logits - largest), axis=-1)
    chosen = xp.take_along_axis(logits, labels[:, None], axis=-1)[:, 0]
    return xp.log(total) + largest[:, 0] - chosen


def batchnorm(xp: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Batch normalisation of (batch, channel, height, width) by the batch's own statistics."""
    mean = xp.mean(x, axis=(0, 2, 3), keepdims=True)
    variance = xp.var(x, axis=(0, 2, 3), keepdims=True)
    return (x - mean) / xp.sqrt(variance + EPSILON) * weight[:, None, None] + bias[:, None, None]


def adam(xp: Any, parameter: Any, gradient: Any, first: Any, second: Any) -> Any:
    """One step of Adam (Kingma and Ba, 2015) at its 10th step: the parameter and both moments."""
    first = 0.9 * first + 0.1 * gradient
    second = 0.999 * second + 0.001 * gradient * gradient
    scaled = first / (1.0 - 0.9**10)
    parameter = parameter - 0.001 * scaled / (xp.sqrt(second / (1.0 - 0.999**10)) + 1e-8)
    return parameter, first, second


# ---------------------------------------------------------------------------------------------------------------------
# the rows


def _same(count: int) -> Callable[[Shape], tuple[Input, ...]]:
    return lambda shape: (Input(shape),) * count


def _with_vectors(count: int, axis: int) -> Callable[[Shape], tuple[Input, ...]]:
    return lambda shape: (Input(shape), *[Input((shape[axis],))] * count)


def _backward(shape: Shape) -> tuple[Input, ...]:
    column = (shape[0], 1)
    return Input(shape), Input(shape), Input(column), Input(column, "positive"), Input((shape[1],))


def _transposed(shape: Shape) -> tuple[Input, ...]:
    return Input(shape), Input(shape[::-1])


def _rope(shape: Shape) -> tuple[Input, ...]:
    return Input(shape), Input(shape[-2:]), Input(shape[-2:])


def _labelled(shape: Shape) -> tuple[Input, ...]:
    return Input(shape), Input(shape[:1], "labels", shape[1])


def _moments(shape: Shape) -> tuple[Input, ...]:
    return Input(shape), Input(shape), Input(shape), Input(shape, "positive")


ROWS = (
    Row("bias_gelu", bias_gelu, _with_vectors(1, -1), (4096, 1024), (16384, 4096)),
    Row("softmax", softmax, _same(1), (2048, 2048), (16384, 4096)),
    Row("softmax_long", softmax, _same(1), (256, 32768), (4096, 32768)),
    Row("layernorm", layernorm, _with_vectors(2, -1), (2048, 1024), (16384, 4096)),
    Row("layernorm_backward", layernorm_backward, _backward, (2048, 1024), (16384, 4096)),
    Row("sum_broadcast_add", sum_broadcast_add, _same(2), (2048, 2048), (16384, 4096)),
    Row("column_sum", column_sum, _same(1), (4096, 2048), (16384, 4096)),
    Row("full_sum", full_sum, _same(1), (4096, 2048), (16384, 4096)),
    Row("transpose_add", transpose_add, _transposed, (2048, 2048), (8192, 8192)),
    Row("rope_residual", rope_residual, _rope, (8, 16, 512, 128), (8, 32, 4096, 128)),
    Row("swiglu", swiglu, _same(2), (2048, 2048), (16384, 4096)),
    Row("cross_entropy", cross_entropy, _labelled, (256, 50304), (8192, 50304)),
    Row("batchnorm", batchnorm, _with_vectors(2, 1), (16, 64, 56, 56), (64, 256, 56, 56)),
    Row("adam", adam, _moments, (4 * 1024 * 1024,), (64 * 1024 * 1024,), halves=False),
)


def select(names: str) -> tuple[Row, ...]:
    """The rows whose names a comma list holds; all for an empty one. Raises SystemExit for a name that is none."""
    wanted = [name for name in names.split(",") if name]
    unknown = set(wanted) - {row.name for row in ROWS}
    if unknown:
        raise SystemExit(f"no rows {sorted(unknown)}; there are {', '.join(row.name for row in ROWS)}")
    return tuple(row for row in ROWS if not wanted or row.name in wanted)


def host_arrays(row: Row, shape: Shape, dtype: Any, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    """Random NumPy arguments of a row."""
    random = np.random.default_rng(seed)
    made: list[np.ndarray[Any, Any]] = []
    for given in row.inputs(shape):
        if given.kind == "labels":
            made.append(random.integers(0, given.below, given.shape, dtype=np.int32))
        elif given.kind == "positive":
            made.append((random.random(given.shape, dtype=np.float32) + 0.5).astype(dtype))
        else:
            made.append(random.standard_normal(given.shape, dtype=np.float32).astype(dtype))
    return made


def bytes_moved(arguments: list[Any], results: Any) -> int:
    """Each argument once and each result once, in bytes."""
    outputs = results if isinstance(results, (tuple, list)) else [results]
    return sum(array.size * array.dtype.itemsize for array in [*arguments, *outputs])


def geometric_mean(values: list[float]) -> float:
    """NaN for an empty list."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan
