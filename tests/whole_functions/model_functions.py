"""Functions of models, written once for NumPy, tracefuse, JAX and CuPy.

Each takes the library first: `library.np` has NumPy's names, and what NumPy lacks or takes no
symbolic size for is beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracefuse import xp
from tracefuse.frontend.tracer.array_ops import traced_ops


@dataclass(frozen=True)
class LibraryOfArrays:
    """NumPy's names, the error function, and a range whose length may be symbolic."""

    np: Any
    erf: Any
    arange: Any


TRACED = LibraryOfArrays(np, lambda x: traced_ops.apply("erf", x), xp.arange)
PLAIN = LibraryOfArrays(np, np.vectorize(math.erf, otypes=[np.float64]), np.arange)


def jax_library() -> LibraryOfArrays:
    """JAX's; imports it."""
    import jax

    return LibraryOfArrays(jax.numpy, jax.scipy.special.erf, jax.numpy.arange)


def softmax(library: LibraryOfArrays, x: Any, axis: int = -1) -> Any:
    np = library.np
    e = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return e / np.sum(e, axis=axis, keepdims=True)


def softmax_over_axis_0(library: LibraryOfArrays, x: Any) -> Any:
    return softmax(library, x, 0)


def log_softmax(library: LibraryOfArrays, x: Any) -> Any:
    np = library.np
    shifted = x - np.max(x, axis=-1, keepdims=True)
    return shifted - np.log(np.sum(np.exp(shifted), axis=-1, keepdims=True))


def layernorm(library: LibraryOfArrays, x: Any, w: Any, b: Any) -> Any:
    np = library.np
    centred = x - np.mean(x, axis=-1, keepdims=True)
    variance = np.mean(centred * centred, axis=-1, keepdims=True)
    return centred / np.sqrt(variance + 1e-5) * w + b


def rmsnorm(library: LibraryOfArrays, x: Any, w: Any) -> Any:
    np = library.np
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6) * w


def gelu_erf(library: LibraryOfArrays, x: Any) -> Any:
    return 0.5 * x * (1 + library.erf(x * 0.7071067811865476))


def gelu_tanh(library: LibraryOfArrays, x: Any) -> Any:
    return 0.5 * x * (1 + library.np.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def silu(library: LibraryOfArrays, x: Any) -> Any:
    return x / (1 + library.np.exp(-x))


def swiglu(library: LibraryOfArrays, gate: Any, up: Any) -> Any:
    return silu(library, gate) * up


def rotate_half(library: LibraryOfArrays, x: Any) -> Any:
    half = x.shape[-1] // 2
    return library.np.concatenate((-x[..., half:], x[..., :half]), axis=-1)


def rope(library: LibraryOfArrays, x: Any, c: Any, s: Any) -> Any:
    return x * c + rotate_half(library, x) * s


def rope_with_residual(library: LibraryOfArrays, x: Any, c: Any, s: Any, residual: Any) -> Any:
    return residual + rope(library, x, c, s)


def swapped_halves(library: LibraryOfArrays, x: Any) -> Any:
    half = x.shape[0] // 2
    return x + library.np.concatenate((x[half:], x[:half]))


def gathered_cross_entropy(library: LibraryOfArrays, x: Any, target: Any) -> Any:
    np = library.np
    return -np.take_along_axis(log_softmax(library, x), target[:, None], axis=-1)[:, 0]


def masked_cross_entropy(library: LibraryOfArrays, x: Any, target: Any) -> Any:
    np = library.np
    hit = library.arange(x.shape[-1])[None, :] == target[:, None]
    return -np.sum(np.where(hit, log_softmax(library, x), 0), axis=-1)


def batchnorm_statistics(library: LibraryOfArrays, x: Any) -> Any:
    np = library.np
    return np.mean(x, axis=(0, 2, 3)), np.var(x, axis=(0, 2, 3))


def std_over_middle_axes(library: LibraryOfArrays, x: Any) -> Any:
    return library.np.std(x, axis=(1, 2))


def variance(library: LibraryOfArrays, x: Any) -> Any:
    return library.np.var(x, axis=-1)


def attention_scores(library: LibraryOfArrays, q: Any, k: Any) -> Any:
    scores = library.np.matmul(q, library.np.swapaxes(k, -1, -2)) * 0.125
    return softmax(library, scores)


def mlp(library: LibraryOfArrays, x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    np = library.np
    return np.matmul(gelu_tanh(library, np.matmul(x, w1) + b1), w2) + b2


def adam_step(library: LibraryOfArrays, p: Any, g: Any, m: Any, v: Any) -> Any:
    np = library.np
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    return p - 0.01 * (m / 0.1) / (np.sqrt(v / 0.001) + 1e-8), m, v


FUNCTIONS: dict[str, tuple[Any, tuple[tuple[int, ...], ...], bool]] = {
    "softmax": (softmax, ((9, 33),), True),
    "softmax_over_axis_0": (softmax_over_axis_0, ((33, 9),), True),
    "log_softmax": (log_softmax, ((9, 33),), True),
    "layernorm": (layernorm, ((9, 33), (33,), (33,)), True),
    "rmsnorm": (rmsnorm, ((9, 33), (33,)), True),
    "gelu_erf": (gelu_erf, ((7, 19),), True),
    "gelu_tanh": (gelu_tanh, ((7, 19),), True),
    "silu": (silu, ((7, 19),), True),
    "swiglu": (swiglu, ((7, 19), (7, 19)), True),
    "rope": (rope, ((2, 3, 8), (3, 8), (3, 8)), True),
    "rope_with_residual": (rope_with_residual, ((2, 3, 8), (3, 8), (3, 8), (2, 3, 8)), True),
    "gathered_cross_entropy": (gathered_cross_entropy, ((9, 33), (9,)), True),
    "masked_cross_entropy": (masked_cross_entropy, ((9, 33), (9,)), True),
    "batchnorm_statistics": (batchnorm_statistics, ((4, 3, 5, 6),), True),
    "std_over_middle_axes": (std_over_middle_axes, ((4, 3, 5, 6),), True),
    "variance": (variance, ((9, 33),), True),
    "attention_scores": (attention_scores, ((2, 5, 64), (2, 7, 64)), False),
    "mlp": (mlp, ((5, 16), (16, 32), (32,), (32, 8), (8,)), False),
    "adam_step": (adam_step, ((7, 19),) * 4, True),
}
"""By name: the function, the shapes of its arguments, and whether it is one kernel."""

TARGETS = ("gathered_cross_entropy", "masked_cross_entropy")
"""Functions whose last argument is a class for each row."""


def arguments_of(name: str, dtype: Any) -> list[Any]:
    """NumPy arguments of a function; float64 ones have the same values as those of `dtype`."""
    random = np.random.default_rng(5)
    _, shapes, _ = FUNCTIONS[name]
    made = [random.normal(0, 1, shape).astype(dtype) for shape in shapes]
    if name in TARGETS:
        made[-1] = random.integers(0, shapes[0][-1], shapes[-1])
    if name == "adam_step":
        made[3] = np.abs(made[3])
    return made


def in_float64(name: str, arguments: list[Any]) -> Any:
    """What NumPy computes in float64 from these arguments."""
    wide = [a.astype(np.float64) if a.dtype.kind != "i" else a for a in arguments]
    return FUNCTIONS[name][0](PLAIN, *wide)
