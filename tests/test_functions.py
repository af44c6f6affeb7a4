"""What users write: each function once over a namespace, on NumPy and CuPy arrays, against float64 and against jax.

ONE_KERNEL names those that must be a single segment of a single launch on the CPU; a GPU may need a second launch to
finish a reduction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from functions import ROWS, host_arrays
from ways import why_not

from tracefuse import fuse

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def rmsnorm(xp: Any, x: Any, weight: Any) -> Any:
    return x / xp.sqrt(xp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


def log_softmax_gathered(xp: Any, x: Any, target: Any) -> Any:
    z = x - xp.max(x, axis=-1, keepdims=True)
    log_probability = z - xp.log(xp.sum(xp.exp(z), axis=-1, keepdims=True))
    return -xp.take_along_axis(log_probability, target[:, None], axis=1)[:, 0]


def log_softmax_masked(xp: Any, x: Any, mask: Any) -> Any:
    z = x - xp.max(x, axis=-1, keepdims=True)
    log_probability = z - xp.log(xp.sum(xp.exp(z), axis=-1, keepdims=True))
    return -xp.sum(xp.where(mask, log_probability, 0.0), axis=-1)


def variance(xp: Any, x: Any) -> Any:
    return xp.var(x, axis=-1)


def middle_deviation(xp: Any, x: Any) -> Any:
    return xp.std(x, axis=(1, 2))


def column_softmax(xp: Any, x: Any) -> Any:
    e = xp.exp(x - xp.max(x, axis=0, keepdims=True))
    return e / xp.sum(e, axis=0, keepdims=True)


def silu(xp: Any, x: Any) -> Any:
    return x / (1 + xp.exp(-x))


def attention(xp: Any, q: Any, k: Any, v: Any) -> Any:
    scores = xp.matmul(q, xp.swapaxes(k, -1, -2)) / 4.0
    e = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
    return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)


def mlp(xp: Any, x: Any, first: Any, second: Any) -> Any:
    return x + xp.matmul(xp.tanh(xp.matmul(x, first)), second)


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def labels(count: int, below: int) -> Any:
    return np.random.default_rng(0).integers(0, below, count)


def one_hot(count: int, below: int) -> Any:
    return labels(count, below)[:, None] == np.arange(below)


HERE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "rmsnorm": (rmsnorm, (normal(33, 100), normal(100))),
    "log_softmax_gathered": (log_softmax_gathered, (normal(40, 129), labels(40, 129))),
    "log_softmax_masked": (log_softmax_masked, (normal(40, 129), one_hot(40, 129))),
    "variance": (variance, (normal(21, 300),)),
    "middle_deviation": (middle_deviation, (normal(18, 5, 7, 40),)),
    "column_softmax": (column_softmax, (normal(300, 65),)),
    "silu": (silu, (normal(19, 33),)),
    "attention": (attention, (normal(2, 3, 20, 16), normal(2, 3, 20, 16), normal(2, 3, 20, 16))),
    "mlp": (mlp, (normal(30, 16), normal(16, 64), normal(64, 16))),
}
SMALL = {
    **dict.fromkeys(("bias_gelu", "softmax", "layernorm", "layernorm_backward", "sum_broadcast_add"), (64, 96)),
    **dict.fromkeys(("column_sum", "full_sum", "transpose_add", "swiglu", "cross_entropy", "softmax_long"), (64, 96)),
    "rope_residual": (2, 3, 10, 16),
    "batchnorm": (4, 20, 6, 6),
    "adam": (1000,),
}
ONE_KERNEL = (
    *("bias_gelu", "softmax", "layernorm", "sum_broadcast_add", "column_sum", "rope_residual", "swiglu"),
    *("cross_entropy", "batchnorm", "adam", "transpose_add", "full_sum"),
    *(
        "rmsnorm",
        "log_softmax_gathered",
        "log_softmax_masked",
        "variance",
        "middle_deviation",
        "column_softmax",
        "silu",
    ),
)


def case(name: str, dtype: Any) -> tuple[Callable[..., Any], list[Any]]:
    """(the function over a namespace, its arguments in `dtype`)."""
    if name in HERE:
        function, arguments = HERE[name]
    else:
        row = next(row for row in ROWS if row.name == name)
        function, arguments = row.function, tuple(host_arrays(row, SMALL[name], np.dtype(np.float32)))
    return function, [a.astype(dtype) if a.dtype == np.float32 else a for a in arguments]


def fused(function: Callable[..., Any], **options: Any) -> Any:
    def call(*arguments: Any) -> Any:
        return function(np, *arguments)

    return fuse(call, **options)


def as_tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def reference(function: Callable[..., Any], arguments: list[Any]) -> tuple[Any, ...]:
    wide = [a.astype(np.float64) if a.dtype in (np.float32, BFLOAT16) else a for a in arguments]
    return as_tuple(function(np, *wide))


def assert_close(result: Any, expected: Any, dtype: Any) -> None:
    actual = np.asarray(result)
    assert actual.shape == expected.shape
    tolerance = 2e-5 if dtype == np.float32 else 4e-2
    scale = max(1.0, float(np.abs(expected).max(initial=0.0)))
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=tolerance, atol=tolerance * scale)


NAMES = (*HERE, *SMALL)
DTYPES = pytest.mark.parametrize("dtype", [np.dtype(np.float32), BFLOAT16], ids=["float32", "bfloat16"])
WHERE = pytest.mark.parametrize("where", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


@WHERE
@DTYPES
@pytest.mark.parametrize("name", NAMES)
def test_a_function_gives_what_it_means_in_float64(name: str, dtype: Any, where: str) -> None:
    function, arguments = case(name, dtype)
    given = arguments
    if where == "cuda":
        reason = why_not("cuda")
        if reason is not None:
            pytest.skip(reason)
        import cupy

        given = [cupy.asarray(a) for a in arguments]
    results = as_tuple(fused(function)(*given))
    for result, expected in zip(results, reference(function, arguments), strict=True):
        assert type(result) is type(given[0])
        assert_close(result.get() if where == "cuda" else result, expected, dtype)


@DTYPES
@pytest.mark.parametrize("name", NAMES)
def test_a_function_agrees_with_jax(name: str, dtype: Any) -> None:
    import jax
    import jax.numpy as jnp

    function, arguments = case(name, dtype)
    results = as_tuple(fused(function)(*arguments))
    theirs = as_tuple(jax.jit(lambda *a: function(jnp, *a))(*map(jnp.asarray, arguments)))
    for result, expected in zip(results, theirs, strict=True):
        assert_close(result, np.asarray(expected).astype(np.float64), dtype)


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_a_function_is_one_kernel(name: str) -> None:
    function, arguments = case(name, np.float32)
    parts = fused(function).segments(*arguments)
    assert [part.template == "library" for part in parts] == [False]
    assert len(parts[0].launches) == 1


def test_halves_swapped_and_added_give_numpys_bits_in_one_kernel() -> None:
    def swapped(x: Any) -> Any:
        half = x.shape[0] // 2
        return x + np.concatenate([x[half:], x[:half]])

    x = normal(1001)
    function = fuse(swapped)
    np.testing.assert_array_equal(function(x), swapped(x))
    assert len(function.segments(x)) == 1


@pytest.mark.parametrize("contract", [False, True])
def test_rotary_embedding_is_exact_without_contraction_and_within_two_units_with_it(contract: bool) -> None:
    def rope(x: Any, cosine: Any, sine: Any) -> Any:
        half = x.shape[-1] // 2
        return x * cosine + np.concatenate([-x[..., half:], x[..., :half]], axis=-1) * sine

    x, angle = normal(4, 50, 64), normal(50, 64)
    cosine, sine = np.cos(angle), np.sin(angle)
    function = fuse(rope, contract=contract)
    result, expected = function(x, cosine, sine), rope(x, cosine, sine)
    assert len(function.segments(x, cosine, sine)) == 1
    if not contract:
        np.testing.assert_array_equal(result, expected)
        return
    rotated = np.concatenate([-x[..., 32:], x[..., :32]], axis=-1)
    unit = np.spacing(np.abs(x * cosine) + np.abs(rotated * sine))
    assert np.all(np.abs(result.astype(np.float64) - expected) <= 2 * unit)


def test_jax_arrays_come_and_go_without_a_copy() -> None:
    import jax.numpy as jnp

    x = jnp.asarray(normal(64, 64))
    seen: list[Any] = []

    @fuse
    def shifted(values: Any) -> Any:
        return values + 1.0

    result = shifted(x)
    assert type(result) is type(x)
    np.testing.assert_array_equal(np.asarray(result), np.asarray(x) + 1.0)
    seen.append(np.asarray(x).ctypes.data)
    assert seen[0] == x.unsafe_buffer_pointer()
