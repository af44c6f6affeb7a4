"""Every op row beside its jax counterpart, on the CPU kernels, in each type that both have.

Pointwise rows and reductions find theirs in jax.numpy by the name of their NumPy function; the tables name the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import dtypes
from tracefuse.compiler import compile_fusion
from tracefuse.dtypes import DType
from tracefuse.ir import FusionBuilder, Literal
from tracefuse.ops import REGISTRY, Library, Movement, Pointwise, Reduction

TYPES = (dtypes.float32, dtypes.bfloat16, dtypes.int32, dtypes.bool_)
"""The types that jax has without its 64-bit mode, one of a kind."""

SHAPE = (5, 12)
TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2}


def jax_pointwise() -> dict[str, Callable[..., Any]]:
    import jax
    import jax.numpy as jnp

    return {
        "div": jnp.divide,
        "erf": jax.scipy.special.erf,
        "floor_divide": jnp.floor_divide,
        "remainder": jnp.remainder,
        "rsqrt": jax.lax.rsqrt,
        "sigmoid": jax.nn.sigmoid,
        "set": jnp.asarray,
        "segment_set": jnp.asarray,
    }


def jax_movement() -> dict[str, tuple[dict[str, Any], int, Callable[..., Any]]]:
    """name -> (attributes, number of operands, the jax function)."""
    import jax.numpy as jnp

    return {
        "broadcast": ({"is_broadcast_dim": (False, True, False)}, 1, lambda x: x[:, None, :]),
        "permute": ({"dims": (1, 0)}, 1, jnp.transpose),
        "reshape": ({"new_shape": (12, 5)}, 1, lambda x: x.reshape(12, 5)),
        "slice": (
            {"start_indices": (1, 2), "end_indices": (5, 11), "strides": (2, 3)},
            1,
            lambda x: x[1:5:2, 2:11:3],
        ),
        "pad": ({"pad_widths": (1, 2, 0, 3), "value": 1}, 1, lambda x: jnp.pad(x, ((1, 2), (0, 3)), constant_values=1)),
        "cat": ({"dim": 1}, 2, lambda x, y: jnp.concatenate([x, y], axis=1)),
        "flip": ({"dims": (0, 1)}, 1, jnp.flip),
        "roll": ({"shift": -5, "dim": 1}, 1, lambda x: jnp.roll(x, -5, 1)),
    }


ELSEWHERE = {
    "cast": "compared in test_a_cast_converts_as_jax_does",
    "where": "compared in test_where_chooses_as_jax_does",
    "iota": "compared in test_counting_and_filling_are_those_of_jax",
    "full": "compared in test_counting_and_filling_are_those_of_jax",
    "expand": "compared in test_axes_of_one_element_grow_and_go_as_in_jax",
    "squeeze": "compared in test_axes_of_one_element_grow_and_go_as_in_jax",
    "take_along_axis": "compared in test_elements_are_taken_as_in_jax",
    "extent": "a host scalar, which jax has at trace time only",
}


def values(dtype: DType, seed: int) -> Any:
    random = np.random.default_rng(seed)
    if dtype.kind == "bool":
        return random.integers(0, 2, SHAPE).astype(bool)
    if dtype.is_integer:
        return random.integers(1, 9, SHAPE).astype(dtype.numpy)
    return random.uniform(0.25, 2.0, SHAPE).astype(dtype.numpy)


def counterpart(row: Any) -> Callable[..., Any] | None:
    import jax.numpy as jnp

    if isinstance(row, Movement):
        entry = jax_movement().get(row.name)
        return entry[2] if entry else None
    if row.name in jax_pointwise():
        return jax_pointwise()[row.name]
    return getattr(jnp, getattr(row.numpy, "__name__", ""), None) or getattr(jnp, row.name, None)


def run(row: Any, operands: list[Any], attributes: dict[str, Any], compute: DType, result: DType) -> Any:
    builder = FusionBuilder()
    numbers = [builder.tensor_input(dtypes.dtype_of(o.dtype), [-1] * o.ndim) for o in operands]
    (made,) = builder.node(row, numbers, attributes, compute, (result,))
    builder.output(made)
    (output,) = compile_fusion(builder.build())(operands)
    return output


def compare(actual: Any, expected: Any) -> None:
    wanted = np.asarray(expected)
    assert actual.shape == wanted.shape
    if dtypes.dtype_of(wanted.dtype).is_floating or dtypes.dtype_of(actual.dtype).is_floating:
        coarse = "bfloat16" if "bfloat16" in (actual.dtype.name, wanted.dtype.name) else "float32"
        bound = TOLERANCE[coarse]
        np.testing.assert_allclose(actual.astype(np.float64), wanted.astype(np.float64), rtol=bound, atol=bound)
    else:
        np.testing.assert_array_equal(actual, wanted)


POINTWISE = [row for row in REGISTRY.values() if isinstance(row, Pointwise) and row.name not in ELSEWHERE]
REDUCTIONS = [row for row in REGISTRY.values() if isinstance(row, Reduction)]
MOVEMENTS = [row for row in REGISTRY.values() if isinstance(row, Movement) and row.name not in ELSEWHERE]


@pytest.mark.parametrize("row", [*POINTWISE, *REDUCTIONS, *MOVEMENTS], ids=lambda row: row.name)
def test_every_row_has_a_counterpart_or_says_where_it_is_compared(row: Any) -> None:
    assert counterpart(row) is not None


def typed(rows: list[Any]) -> list[Any]:
    """(row, dtype) for every type of TYPES in a row's domain."""
    return [pytest.param(r, d, id=f"{r.name}-{d.name}") for r in rows for d in TYPES if d in r.domain]


@pytest.mark.parametrize(("row", "dtype"), typed(POINTWISE))
def test_a_pointwise_row_agrees_with_jax(row: Pointwise, dtype: DType) -> None:
    import jax.numpy as jnp

    operands = [values(dtype, k) for k in range(row.arity or 1)]
    compute, result = row.types([dtype] * len(operands), [], "numpy")
    function = counterpart(row)
    assert function is not None
    compare(run(row, operands, {}, compute, result), function(*map(jnp.asarray, operands)))


@pytest.mark.parametrize("dims", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize(("row", "dtype"), typed(REDUCTIONS))
def test_a_reduction_agrees_with_jax(row: Reduction, dtype: DType, dims: tuple[int, ...]) -> None:
    import jax.numpy as jnp

    operand = values(dtype, 0)
    result = row.result_type(dtype, "numpy")
    if result.itemsize == 8:
        result = dtypes.int32  # without its 64-bit mode jax sums integers in their own type
    function = counterpart(row)
    assert function is not None
    compute = dtype if row.result == "bool" else result
    expected = function(jnp.asarray(operand), axis=dims)
    compare(run(row, [operand], {"dims": dims, "keepdim": False}, compute, result), expected)


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("row", MOVEMENTS, ids=lambda row: row.name)
def test_a_movement_agrees_with_jax(row: Movement, dtype: DType) -> None:
    import jax.numpy as jnp

    attributes, count, function = jax_movement()[row.name]
    operands = [values(dtype, k) for k in range(count)]
    compare(run(row, operands, attributes, dtype, dtype), function(*map(jnp.asarray, operands)))


@pytest.mark.parametrize("row", [r for r in REGISTRY.values() if isinstance(r, Library)], ids=lambda row: row.name)
def test_a_matrix_product_agrees_with_jax(row: Library) -> None:
    import jax.numpy as jnp

    products = {"matmul": lambda x, y: jnp.matmul(x, y.T), "linear": lambda x, y: jnp.matmul(x, y.T)}
    x, y = values(dtypes.float32, 0), values(dtypes.float32, 1)
    second = np.ascontiguousarray(y.T) if row.name == "matmul" else y
    result = run(row, [x, second], {}, dtypes.float32, dtypes.float32)
    compare(result, products[row.name](jnp.asarray(x), jnp.asarray(y)))


@pytest.mark.parametrize("target", TYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_a_cast_converts_as_jax_does(dtype: DType, target: DType) -> None:
    import jax.numpy as jnp

    operand = values(dtype, 0)
    result = run(REGISTRY["cast"], [operand], {"dtype": target}, target, target)
    compare(result, jnp.asarray(operand).astype(target.numpy))


@pytest.mark.parametrize("dtype", TYPES, ids=lambda d: d.name)
def test_where_chooses_as_jax_does(dtype: DType) -> None:
    import jax.numpy as jnp

    operands = [values(dtypes.bool_, 0), values(dtype, 1), values(dtype, 2)]
    compare(run(REGISTRY["where"], operands, {}, dtype, dtype), jnp.where(*map(jnp.asarray, operands)))


def test_counting_and_filling_are_those_of_jax() -> None:
    import jax.numpy as jnp

    builder = FusionBuilder()
    cases = (("iota", (Literal(3), Literal(2)), {"length": 9}), ("full", (Literal(7),), {"shape": (3, 4)}))
    for name, operands, attributes in cases:
        (made,) = builder.node(REGISTRY[name], operands, attributes, dtypes.int32, (dtypes.int32,))
        builder.output(made)
    counted, filled = compile_fusion(builder.build())([])
    compare(counted, jnp.arange(3, 21, 2))
    compare(filled, jnp.full((3, 4), 7))


def test_axes_of_one_element_grow_and_go_as_in_jax() -> None:
    import jax.numpy as jnp

    row = values(dtypes.float32, 0)[:1]
    builder = FusionBuilder()
    x = builder.tensor_input(dtypes.float32, [1, -1])
    kinds = (dtypes.float32, (dtypes.float32,))
    (grown,) = builder.node(REGISTRY["expand"], (x,), {"shape": (6, builder.values[x].shape[1])}, *kinds)
    (gone,) = builder.node(REGISTRY["squeeze"], (x,), {"dims": (0,)}, *kinds)
    builder.output(grown)
    builder.output(gone)
    wide, flat = compile_fusion(builder.build())([row])
    compare(wide, jnp.broadcast_to(jnp.asarray(row), (6, 12)))
    compare(flat, jnp.squeeze(jnp.asarray(row), 0))


def test_elements_are_taken_as_in_jax() -> None:
    import jax.numpy as jnp

    data, index = values(dtypes.float32, 0), np.random.default_rng(1).integers(-12, 12, (5, 3))
    result = run(REGISTRY["take_along_axis"], [data, index], {"dim": 1}, dtypes.float32, dtypes.float32)
    compare(result, jnp.take_along_axis(jnp.asarray(data), jnp.asarray(index.astype(np.int32)), axis=1))
