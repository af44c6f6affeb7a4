"""tracefuse against jax.jit on the CPU: every op that jax.numpy has, functions of models, arrays in and out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.session.samples import in_suite
from tests.whole_functions.model_functions import FUNCTIONS, TRACED, arguments_of, in_float64, jax_library
from tracefuse import fuse
from tracefuse.dtypes import bool_, complex64, float32, int32
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ops import REGISTRY, Pointwise, Reduction

jax = pytest.importorskip("jax")
jnp = jax.numpy

DTYPES = [np.float32, ml_dtypes.bfloat16]
UNIT = {"float32": 2.0**-23, "complex64": 2.0**-23, "bfloat16": 2.0**-7, "int32": 0.0}

COUNTERPARTS: dict[str, Callable[..., Any]] = {
    "integer_power": jnp.power, "rounded_product": jnp.multiply,
    "neg": jnp.negative, "sub": jnp.subtract, "mul": jnp.multiply, "div": jnp.divide, "eq": jnp.equal,
    "ne": jnp.not_equal, "lt": jnp.less, "le": jnp.less_equal, "gt": jnp.greater, "ge": jnp.greater_equal,
    "set": jnp.copy, "ordered_set": jnp.copy, "segment_set": jnp.copy,
    "frac": lambda x: x - jnp.trunc(x),
    "erfcinv": lambda x: jax.scipy.special.erfinv(1 - x), "lerp": lambda a, b, w: a + w * (b - a),
    "clamp": lambda x, low, high: jnp.minimum(jnp.maximum(x, low), high),
    "threshold": lambda x, limit, value: jnp.where(x > limit, x, value),
    "addcmul": lambda x, a, b, value: x + value * a * b, "logical_right_shift": jax.lax.shift_right_logical,
    "trunc_divide": lambda a, b: jax.lax.div(a, b) if a.dtype.kind == "i" else jnp.trunc(a / b),
}  # fmt: skip
"""Counterparts of rows that jax spells otherwise; the others are found by name."""

DOMAINS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("sqrt", "rsqrt", "log", "log2", "log10", "log1p", "pow", "lgamma"), lambda x: np.abs(x) + 0.25),
    **dict.fromkeys(("asin", "acos", "atanh", "erfinv"), lambda x: np.tanh(x) * 0.9),
    "erfcinv": lambda x: np.tanh(x) * 0.9 + 1,
    "acosh": lambda x: np.abs(x) + 1.25,
}
"""What is done to the operands of a row that is not defined everywhere."""

MOVES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "broadcast": (lambda x: x[:, None], lambda x: x[:, None]),
    "expand": (lambda x: np.broadcast_to(x, (3, *x.shape)), lambda x: jnp.broadcast_to(x, (3, *x.shape))),
    "permute": (lambda x: x.T, lambda x: x.T),
    "squeeze": (lambda x: np.squeeze(x[:1], 0), lambda x: jnp.squeeze(x[:1], 0)),
    "reshape": (lambda x: x.reshape(-1, 2), lambda x: x.reshape(-1, 2)),
    "slice": (lambda x: x[1:, ::3], lambda x: x[1:, ::3]),
    "pad": (lambda x: np.pad(x, ((1, 2), (0, 3))), lambda x: jnp.pad(x, ((1, 2), (0, 3)))),
    "cat": (lambda x: np.concatenate((x, x), 1), lambda x: jnp.concatenate((x, x), 1)),
    "diagonal": (lambda x: np.diagonal(x, 1), lambda x: jnp.diagonal(x, 1)),
    "flip": (lambda x: np.flip(x, 0), lambda x: jnp.flip(x, 0)),
    "roll": (lambda x: np.roll(x, -2, 1), lambda x: jnp.roll(x, -2, 1)),
    "full": (lambda x: np.full_like(x, 2), lambda x: jnp.full_like(x, 2)),
    "where": (lambda x: np.where(x > 0, x, -1), lambda x: jnp.where(x > 0, x, -1)),
    "cast": (lambda x: x.astype(np.int32), lambda x: x.astype(np.int32)),
    "iota": (lambda x: x + TRACED.arange(8), lambda x: x + jnp.arange(8).astype(x.dtype)),
    "matmul": (lambda x: x @ x.T, lambda x: x @ x.T),
    "take": (lambda x: np.take(x, TRACED.arange(3) * 2, 1), lambda x: jnp.take(x, jnp.arange(3) * 2, 1)),
    "windows": (
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 3, 1),
        lambda x: jnp.stack([x[:, k : x.shape[1] - 2 + k] for k in range(3)], -1),
    ),
    "triu": (lambda x: np.triu(x, 1), lambda x: jnp.triu(x, 1)),
    "tril": (lambda x: np.tril(x, -1), lambda x: jnp.tril(x, -1)),
    "cumsum": (lambda x: np.cumsum(x, 1), lambda x: jnp.cumsum(x, 1)),
    "cumprod": (lambda x: np.cumprod(x, 0), lambda x: jnp.cumprod(x, 0)),
    "cummax": (lambda x: np.maximum.accumulate(x, 1), lambda x: jax.lax.cummax(x, 1)),
    "cummin": (lambda x: np.minimum.accumulate(x, 1), lambda x: jax.lax.cummin(x, 1)),
    "sort": (lambda x: np.sort(x, 0), lambda x: jnp.sort(x, 0)),
    "argsort": (lambda x: np.argsort(x, 1), lambda x: jnp.argsort(x, 1)),
}
"""Ops that take more than operands, as both libraries write them."""

WITHOUT = {
    "take_along_axis": "compared with positions in a test of its own",
    "permuted_matmul": "a pass makes it of permute and matmul, which are compared",
    "contract_axes": "compared as dot_general of functions of jax.numpy",
    **dict.fromkeys(
        ("float32_of_bits", "float64_of_bits", "bits_of_float32", "bits_of_float64"),
        "compared as bitcast_convert_type of functions of jax.numpy",
    ),
    "checked_range": "raises for numbers outside, which jax does not; compared with NumPy",
    "checked_position": "raises for positions outside, which jax does not; compared with NumPy",
    "unless_empty": "raises where nothing is selected, which jax does not; compared with NumPy",
    "extent": "a host scalar, which jax does not have",
    "linear": "jax has no such function; it is matmul and add",
    "sum_of_squares": "a part of welford, which jax does not have",
    "sum_of_exponentials": "a part of softmax, which jax writes as several",
    "random_bits": "jax's generators have another counter; compared with the authors' test vectors",
    "fresh_seed": "another value in each call",
    "grouped_mm": "jax has ragged_dot, with sizes and not offsets; compared with NumPy",
    **dict.fromkeys(
        ("scatter", "slice_scatter", "diagonal_scatter", "index_put", "index_put_accumulate"),
        "methods of x.at in jax, compared with NumPy",
    ),
}
"""Ops that no table compares, with the reason."""

NOT_IN_BFLOAT16 = {
    **dict.fromkeys(
        ("floor_divide", "remainder", "fmod", "trunc_divide", "frac"), "XLA rounds the quotient before it cuts it"
    ),
    "nextafter": "computed in float32, as every op of halves: the next number there rounds to the number itself",
    "complex": "jax makes complex numbers of float32 and float64 alone",
}

REDUCTIONS = {
    op.name: getattr(jnp, op.name) for op in REGISTRY.values() if isinstance(op, Reduction) and op.name not in WITHOUT
}


def counterpart(op: Pointwise) -> Callable[..., Any] | None:
    """Returns jax's function for an op: the one in COUNTERPARTS, or the one of the same name."""
    if op.name in COUNTERPARTS:
        return COUNTERPARTS[op.name]
    for module in (jnp, jax.lax, jax.nn, jax.scipy.special):
        if hasattr(module, op.name):
            return getattr(module, op.name)  # type: ignore[no-any-return]
    return None


POINTWISE = [op for op in REGISTRY.values() if isinstance(op, Pointwise) and op.name not in {*MOVES, *WITHOUT}]


def close(actual: Any, expected: Any, dtype: Any, what: str, ulps: float = 6) -> None:
    own, wanted = np.asarray(actual), np.asarray(expected)
    assert own.shape == wanted.shape, what
    if own.dtype.kind in "biu":
        np.testing.assert_array_equal(own, wanted, err_msg=what)
        return
    unit, wide = ulps * UNIT[np.dtype(dtype).name], np.complex128 if own.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(own.astype(wide), wanted.astype(wide), rtol=unit, atol=unit, err_msg=what)


def values(dtype: Any, seed: int = 0, shape: tuple[int, ...] = (6, 8)) -> Any:
    return np.random.default_rng(seed).normal(0, 2, shape).astype(dtype)


def test_every_op_is_compared_or_has_a_reason_not_to_be() -> None:
    missing = [op.name for op in POINTWISE if counterpart(op) is None]
    assert not missing, "say in COUNTERPARTS how jax writes these, or in WITHOUT why they are not compared"
    compared = {*(op.name for op in POINTWISE), *REDUCTIONS, *MOVES, *WITHOUT}
    by_kernels = {name for name, op in REGISTRY.items() if not isinstance(op, WholeArrayOp)}
    assert by_kernels - compared == set()


def operands_of(op: Pointwise, dtype: Any) -> list[Any]:
    assert op.arity is not None
    change = DOMAINS.get(op.name, lambda x: x)
    return [np.asarray(change(values(np.float32, seed))).astype(dtype) for seed in range(op.arity)]


def compare_ops(ops: list[Pointwise], operands: list[list[Any]], dtype: Any) -> None:
    """All ops in one function of each library."""

    def ours(operands: Any) -> list[Any]:
        return [traced_ops.apply(op.name, *given) for op, given in zip(ops, operands, strict=True)]

    def theirs(operands: Any) -> list[Any]:
        return [counterpart(op)(*given) for op, given in zip(ops, operands, strict=True)]  # type: ignore[misc]

    for op, own, wanted in zip(ops, fuse(ours)(operands), jax.jit(theirs)(operands), strict=True):
        # jax's own functions are off by as much: gamma, the inverses of erf.
        close(own, wanted, dtype, op.name, ulps=8 if op.exact else 40)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_pointwise_ops_of_floats(dtype: Any) -> None:
    exact = dtype is np.float32
    ops = [op for op in POINTWISE if float32 in op.domain and (exact or op.name not in NOT_IN_BFLOAT16)]
    ops = in_suite(ops[exact::2], ops)  # bfloat16 is computed in float32, and rounded
    compare_ops(ops, [operands_of(op, dtype) for op in ops], dtype)


def complex_values(seed: int = 0) -> Any:
    return (values(np.float32, seed) + 1j * values(np.float32, seed + 10)).astype(np.complex64)


def test_pointwise_ops_of_complex_numbers() -> None:
    ops = [op for op in POINTWISE if complex64 in op.domain]
    assert len(ops) > 40
    ops = in_suite(ops[::2], ops)
    compare_ops(ops, [[complex_values(seed) for seed in range(op.arity or 0)] for op in ops], np.complex64)


def compare_moves(names: Sequence[str], x: Any) -> None:
    """All movement ops in one function of each library, which compile in less time than one by one."""
    own = fuse(lambda x: [MOVES[name][0](x) for name in names])(x)
    wanted = jax.jit(lambda x: [MOVES[name][1](x) for name in names])(x)
    for name, a, b in zip(names, own, wanted, strict=True):
        close(a, b, x.dtype, name, ulps=32)


def test_movement_of_complex_numbers() -> None:
    ordered = ("where", "cast", "cummax", "cummin")  # written with an order or an integer type
    compare_moves([name for name in MOVES if name not in ordered], complex_values())


def test_pointwise_ops_of_integers() -> None:
    x = np.array([7, -7, 3, 0, -2, 100, -128, 5], np.int32)
    y = np.array([2, 3, 5, 4, 1, 7, 3, 5], np.int32)
    z = np.array([5, 3, 9, 4, 0, 7, 30, 6], np.int32)
    ops = [op for op in POINTWISE if int32 in op.domain]
    compare_ops(ops, [[x, y, z, y][: op.arity] for op in ops], np.int32)


def test_pointwise_ops_of_bools() -> None:
    x, y = np.array([True, True, False, False]), np.array([True, False, True, False])
    names = ("floor", "ceil", "trunc", "isreal")  # jax takes no truth values for these
    ops = [op for op in POINTWISE if bool_ in op.domain and op.name not in names]
    compare_ops(ops, [[x, y, x][: op.arity] for op in ops], np.int32)


@pytest.mark.parametrize("axis", [0, 1, (0, 1)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_reductions(dtype: Any, axis: Any) -> None:
    x = (values(dtype) / 2).astype(dtype)
    # NumPy and jax find positions along one axis.
    names = [n for n in REDUCTIONS if not (n.startswith("arg") and isinstance(axis, tuple))]
    own = fuse(lambda x: [getattr(np, name)(x, axis=axis) for name in names])(x)
    wide = jax.jit(lambda x: [REDUCTIONS[name](x, axis=axis) for name in names])(x.astype(np.float32))
    for name, a, b in zip(names, own, wide, strict=True):
        close(a, b, dtype, name, ulps=32)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_movement_of_floats(dtype: Any) -> None:
    compare_moves(list(MOVES), values(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_gathers(dtype: Any) -> None:
    x, index = values(dtype), np.random.default_rng(2).integers(-8, 8, (6, 5))
    own = fuse(lambda x, i: np.take_along_axis(x, i, axis=1))(x, index)
    close(own, jax.jit(lambda x, i: jnp.take_along_axis(x, i, axis=1))(x, index), dtype, "take_along_axis")


LIMIT = {"float32": 3e-6, "bfloat16": 2e-2}


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_models(name: str, dtype: Any) -> None:
    function = FUNCTIONS[name][0]
    arguments = arguments_of(name, dtype)
    library = jax_library()
    own = fuse(lambda *a: function(TRACED, *a))(*arguments)
    theirs = jax.jit(lambda *a: function(library, *a))(*arguments)
    exact = in_float64(name, arguments)
    for a, b, wide in zip(*(r if isinstance(r, tuple) else (r,) for r in (own, theirs, exact)), strict=True):
        scale = max(1.0, float(np.abs(wide).max()))
        ours = np.abs(np.asarray(a).astype(np.float64) - wide).max() / scale
        jaxs = np.abs(np.asarray(b).astype(np.float64) - wide).max() / scale
        # XLA rounds halves after every op: there it may be further from the truth than the fused function.
        assert ours <= LIMIT[np.dtype(dtype).name], (ours, jaxs)
        assert ours <= 2 * jaxs + 2 * UNIT[np.dtype(dtype).name], (ours, jaxs)


# ---------------------------------------------------------------------------------------------------------------------
# arrays in and out


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_], ids=lambda d: d.__name__)
def test_jax_arrays_come_in_and_go_out(dtype: Any) -> None:
    x = jnp.asarray(np.arange(12).reshape(3, 4) % 5, dtype)
    result = fuse(lambda x: np.flip(x, 0))(x)
    assert isinstance(result, jax.Array)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(result), np.flip(np.asarray(x), 0))


def test_jax_arrays_are_read_where_they_are_and_results_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    from tracefuse.runtime.devices import cpu_memory

    made: list[int] = []
    empty = cpu_memory.empty

    def recorded(shape: Any, dtype: Any) -> Any:
        array = empty(shape, dtype)
        made.append(cpu_memory.address(array))
        return array

    monkeypatch.setattr(cpu_memory, "empty", recorded)
    x = jnp.arange(16384, dtype=jnp.float32)  # small results are copied
    seen: list[int] = []
    from tracefuse.runtime.devices import arrays

    enter = arrays.entering("jax")(x)
    seen.append(cpu_memory.address(enter))
    assert seen == [x.unsafe_buffer_pointer()]
    result = fuse(lambda x: x + 1)(x)
    assert result.unsafe_buffer_pointer() in made


def test_numpy_beside_jax_gives_jax() -> None:
    result = fuse(lambda x, y: x + y)(jnp.ones(3), np.ones(3, np.float32))
    assert isinstance(result, jax.Array)
