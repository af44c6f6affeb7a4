"""Tests the interpreter on handwritten GPU schedules against NumPy, and its errors."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel import cuda_algorithms
from tests.kernel import cuda_kernels as cases
from tracefuse import dtypes
from tracefuse.dtypes import float32, float64, int32, int64
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.interpreter.interpret import InterpreterError, interpret
from tracefuse.kernel.primitives import REFERENCE, apply, convert

RANDOM = np.random.default_rng(7)


def test_the_primitives_are_those_with_a_reference_implementation():
    assert set(REFERENCE) == set(ir.PRIMITIVES)


@pytest.mark.parametrize(("name", "dtype"), cases.PRIMITIVE_CASES, ids=lambda x: getattr(x, "name", x))
def test_a_primitive_keeps_the_type_that_the_ir_says(name, dtype):
    values = [np.array([0, 1, 1], d.numpy) for d in cases.arguments_of(name, dtype)]
    kernel = cases.primitive(name, dtype)
    result = np.zeros(3, kernel.buffers[-1].dtype.numpy)
    interpret(kernel, [*values, result, 3])


@pytest.mark.parametrize(
    ("dtype", "columns", "threads", "width"), [(float32, 64, 16, 2), (dtypes.bfloat16, 512, 64, 4)]
)
def test_softmax_in_registers_equals_numpy(dtype, columns, threads, width):
    x = RANDOM.standard_normal((5, columns)).astype(dtype.numpy)
    y = np.zeros_like(x)
    interpret(cuda_algorithms.softmax(dtype, columns, threads, width), [x, y, 5])
    wide = x.astype(np.float64)
    expected = np.exp(wide - wide.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(y.astype(np.float64), expected, rtol=1e-5 if dtype is float32 else 8e-3)


@pytest.mark.parametrize("dtype", [float32, dtypes.float16, dtypes.int8])
def test_transposition_through_shared_memory_equals_numpy(dtype):
    x = RANDOM.integers(-100, 100, (45, 70)).astype(dtype.numpy)
    y = np.zeros((70, 45), dtype.numpy)
    interpret(cuda_algorithms.transpose(dtype), [x, y, 45, 70])
    np.testing.assert_array_equal(y, x.T)


def test_shared_memory_read_across_threads_without_a_barrier_is_an_error():
    x, y = np.zeros((32, 32), np.float32), np.zeros((32, 32), np.float32)
    with pytest.raises(InterpreterError, match=r"transpose_f32: no barrier: reads tile\[\d+\].*lane \d+ \(down = 0"):
        interpret(cuda_algorithms.transpose(float32, barrier=False), [x, y, 32, 32])


def test_a_column_tile_sums_a_strided_view_in_place():
    base = RANDOM.standard_normal((20, 130)).astype(np.float32)
    view = base[:, :100]
    y = np.zeros(100, np.float32)
    interpret(cuda_algorithms.column_sum(float32), [view, y, 20, 100, 130])
    np.testing.assert_allclose(y, view.sum(0), rtol=1e-5, atol=1e-5)


def test_a_reversed_view_is_addressed_from_its_first_element():
    base = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    y = np.zeros(4, np.float32)
    interpret(cuda_algorithms.column_sum(float32), [base[::-1], y, 3, 4, -4])
    np.testing.assert_array_equal(y, base.sum(0))


@pytest.mark.parametrize("threads", [32, 96, 256])
@pytest.mark.parametrize("blocks", [1, 3])
def test_welford_states_combine_to_mean_and_variance(threads, blocks):
    x = (RANDOM.standard_normal((4, 300)) + 10).astype(np.float32)
    mean, variance = np.zeros(4, np.float32), np.zeros(4, np.float32)
    interpret(cuda_algorithms.moments(threads), [x, mean, variance, 4, 300, blocks])
    np.testing.assert_allclose(mean, x.mean(1, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(variance, x.var(1, dtype=np.float64), rtol=1e-5)


def test_argmax_finds_the_first_of_equals():
    x = np.zeros((3, 200), np.float32)
    x[0, 150] = x[0, 31] = 2
    x[1, 199] = 1
    y = np.zeros(3, np.int64)
    interpret(cuda_algorithms.argmax(64), [x, y, 3, 200])
    np.testing.assert_array_equal(y, [31, 199, 0])


@pytest.mark.parametrize("group", [1, 2, 4, 8, 16, 32, 64, 96])
def test_a_group_reduction_gives_every_thread_its_groups_result(group):
    threads = max(group, 64) if group != 96 else 96
    x = np.arange(2 * threads, dtype=np.int64)
    y = np.zeros_like(x)
    interpret(cases.group_reduce(int64, group, threads), [x, y, 2])
    np.testing.assert_array_equal(y, x.reshape(-1, group).sum(1).repeat(group))


@pytest.mark.parametrize("lanes_at_a_time", [1, 100, 10**6])
def test_chunks_of_blocks_give_the_same_result(lanes_at_a_time):
    x = np.arange(128 * 5, dtype=np.int64)
    y = np.zeros_like(x)
    interpret(cases.group_reduce(int64, 32, 128), [x, y, 5], lanes_at_a_time=lanes_at_a_time)
    np.testing.assert_array_equal(y, x.reshape(-1, 32).sum(1).repeat(32))


def test_no_block_runs_when_an_extent_is_zero():
    y = np.full(0, 5, np.float32)
    interpret(cuda_algorithms.column_sum(float32), [np.zeros((3, 0), np.float32), y, 3, 0, 0])


# ---------------------------------------------------------------------------------------------------------------------
# refusals

N, I = ir.Variable("n", int64), ir.Variable("i", int64)
X, Y = cases.source("x", float32), cases.target("y", float32)
ZERO = cases.number(0, int64)


def small(*body: ir.Statement, threads: int = 4) -> ir.Kernel:
    return ir.Kernel("small", (X, Y, N), (ir.Axis(I, N),), body, "cuda", threads, cases.THREAD)


def run(*body: ir.Statement, n: int = 2, threads: int = 4) -> np.ndarray:
    y = np.zeros(8, np.float32)
    interpret(small(*body, threads=threads), [np.arange(8, dtype=np.float32), y, n])
    return y


LANE = ir.Cast(cases.THREAD, int64)
FIRST = ir.call("eq", LANE, ZERO)


def test_an_index_outside_its_buffer_names_kernel_buffer_index_and_lane():
    with pytest.raises(
        InterpreterError, match=r"kernel small: reads x\[8\] outside \[0, 8\) by lane 5 \(i = 1, thread 1\)"
    ):
        run(ir.Store(Y, LANE, ir.Load(X, cases.add(LANE, ir.call("mul", I, cases.number(7, int64))))))


def test_a_masked_lane_may_hold_any_index():
    y = run(ir.If(FIRST, (ir.Store(Y, I, ir.Load(X, ir.call("mul", LANE, cases.number(99, int64)))),)))
    assert y[0] == 0


def test_two_lanes_that_store_different_values_to_one_element_race():
    with pytest.raises(InterpreterError, match=r"race: two lanes store different values to y\[0\]"):
        run(ir.Store(Y, ZERO, ir.Cast(LANE, float32)))
    run(ir.Store(Y, ZERO, cases.number(1.0, float32)))


@pytest.mark.parametrize(
    "statement", [ir.Barrier(), ir.GroupReduce((ir.Variable("s", float32),), cases.combiner("add", float32), 4)]
)
def test_a_barrier_that_part_of_a_block_misses_is_an_error(statement):
    state = ir.Declare(ir.Variable("s", float32), cases.number(1.0, float32))
    with pytest.raises(InterpreterError, match=r"not reached by all threads of a block: missing lane 1 \(i = 0"):
        run(state, ir.If(FIRST, (statement,)))
    run(state, ir.If(ir.call("eq", I, ZERO), (statement,)))  # a whole block may miss it


def test_new_local_memory_holds_nan_and_the_smallest_integer():
    local, whole = ir.Buffer("local", float32, "local", 2), ir.Buffer("whole", int32, "local", 1)
    value = ir.call("minimum", ir.Cast(ir.Load(whole, ZERO), float32), cases.number(0.0, float32))
    y = run(
        ir.Allocate(local),
        ir.Allocate(whole),
        ir.Store(Y, LANE, ir.Load(local, ZERO)),
        ir.Store(Y, cases.add(LANE, cases.number(4, int64)), value),
    )
    assert np.isnan(y[:4]).all()
    assert (y[4:] == -(2.0**31)).all()


def test_arrays_of_another_type_and_read_only_outputs_are_refused():
    kernel = small(ir.Store(Y, LANE, ir.Load(X, LANE)))
    x, y = np.zeros(8, np.float32), np.zeros(8, np.float32)
    with pytest.raises(InterpreterError, match="x is of float32, got float64 array"):
        interpret(kernel, [x.astype(np.float64), y, 1])
    y.flags.writeable = False
    with pytest.raises(InterpreterError, match="y is written, the array is read-only"):
        interpret(kernel, [x, y, 1])
    with pytest.raises(InterpreterError, match="takes 3 arguments, got 2"):
        interpret(kernel, [x, x])
    with pytest.raises(InterpreterError, match="x and y share memory, but are exclusive"):
        interpret(kernel, [x, x, 1])


def test_a_misaligned_wide_copy_is_an_error():
    kernel = cases.copy(float32, 4, "default")
    x, y = np.zeros(64 * 4 + 1, np.float32), np.zeros(64 * 4, np.float32)
    interpret(kernel, [x[:-1], y, 1])
    with pytest.raises(InterpreterError, match=r"copies 16 bytes at x\[0\], which is not aligned to 16 bytes"):
        interpret(kernel, [x[1:], y, 1])


def test_a_wrong_type_in_the_ir_is_an_error():
    wrong = ir.Call("add", (ir.Load(X, LANE), ir.Load(X, LANE)), float64)
    with pytest.raises(InterpreterError, match="evaluates to float32, but its dtype is float64"):
        run(ir.Store(Y, LANE, ir.Cast(wrong, float32)))


def test_lanes_leave_a_loop_one_by_one():
    total, j = ir.Variable("total", float32), ir.Variable("j", int64)
    body = (ir.Accumulate(total, "add", cases.number(1.0, float32)),)
    y = run(
        ir.Declare(total, cases.number(0.0, float32)),
        ir.For(j, LANE, cases.number(7, int64), cases.number(2, int64), "serial", body),
        ir.Store(Y, LANE, total),
    )
    np.testing.assert_array_equal(y[:4], [4, 3, 3, 2])


# ---------------------------------------------------------------------------------------------------------------------
# reference implementations

INTEGERS = st.sampled_from(dtypes.INTEGERS)
NATURAL = st.integers(0, 2**31 - 1) | st.integers(0, 30).map(lambda k: 2**k)


@given(NATURAL, NATURAL.filter(bool), st.integers(-1, 1))
def test_division_by_an_inverse_is_exact_below_2_to_the_31(quotient, divisor, beside):
    dividend = min(max(quotient // divisor * divisor + beside, 0), 2**31 - 1)  # multiples and their neighbours
    values = [np.array([v], np.int64) for v in (dividend, 2**62 // divisor + 1)]
    assert apply("fast_divide", values, int64)[0] == dividend // divisor


def quietly(name, values, dtype):
    with np.errstate(all="ignore"):
        return apply(name, values, dtype)


def wrapped(value: int, dtype: dtypes.DType) -> int:
    width = 8 * dtype.itemsize
    value %= 2**width
    return value - 2**width if dtype.kind == "int" and value >= 2 ** (width - 1) else value


@given(INTEGERS, st.data())
def test_integer_arithmetic_is_that_of_python_integers_wrapped(dtype, data):
    limits = np.iinfo(dtype.numpy)
    interesting = st.sampled_from([limits.min, limits.max, 0, 1]) | st.integers(int(limits.min), int(limits.max))
    a, b = int(data.draw(interesting)), int(data.draw(interesting))
    values = [np.array([v], dtype.numpy) for v in (a, b)]
    width = 8 * dtype.itemsize
    truncated = 0 if b == 0 else int(Fraction(a, b))
    out = b < 0 or b >= width
    expected = {
        "add": a + b,
        "sub": a - b,
        "mul": a * b,
        "floordiv": a // b if b else 0,
        "mod": a % b if b else 0,
        "truncdiv": truncated,
        "truncmod": a - truncated * b if b else 0,
        "shl": 0 if out else a << b,
        "shr": (-1 if a < 0 else 0) if out else a >> b,
        "shr_logical": 0 if out else (a % 2**width) >> b,
    }
    for name, value in expected.items():
        result = quietly(name, values, dtype)
        assert result.dtype == dtype.numpy
        assert int(result[0]) == wrapped(value, dtype), name


@given(st.floats(width=64) | st.sampled_from([2.0**31, 2.0**63, -(2.0**63), 2.0**64, 1e300]), INTEGERS)
def test_casts_to_integers_saturate_and_take_nan_to_zero(value, dtype):
    limits = np.iinfo(dtype.numpy)
    expected = 0 if value != value else max(limits.min, min(limits.max, int(max(-1e30, min(1e30, value)))))
    with np.errstate(all="ignore"):
        assert int(convert(np.array([value]), dtype)[0]) == expected


@given(st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**26), 2**26))
def test_integers_round_once_to_bfloat16(value):
    with np.errstate(all="ignore"):
        got = Fraction(float(convert(np.array([value], np.int64), dtypes.bfloat16)[0]))
    if value == 0:
        assert got == 0
        return
    unit = Fraction(2) ** (abs(value).bit_length() - 8)
    assert abs(got - value) <= unit / 2
    assert (got / unit).denominator == 1


@given(*(st.floats(width=32, allow_nan=False, allow_infinity=False, min_value=-1e10, max_value=1e10) for _ in "abc"))
def test_fma_of_float32_is_rounded_once(a, b, c):
    values = [np.array([v], np.float32) for v in (a, b, c)]
    result = quietly("fma", values, float32)[0]
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    neighbours = (np.nextafter(result, np.float32(s * np.inf)) for s in (-1, 1))
    distance = abs(Fraction(float(result)) - exact)
    assert all(distance <= abs(Fraction(float(n)) - exact) for n in neighbours)


@given(st.floats(-1, 1, width=32, exclude_min=True, exclude_max=True))
def test_erfinv_undoes_erf(value):
    result = quietly("erfinv", [np.array([value])], float64)
    np.testing.assert_allclose(quietly("erf", [result], float64)[0], value, rtol=1e-14, atol=1e-300)


def test_minimum_and_maximum_pass_nan_on():
    a, b = np.array([np.nan, 1.0], np.float32), np.array([1.0, np.nan], np.float32)
    for name in ("minimum", "maximum"):
        assert np.isnan(quietly(name, [a, b], float32)).all()


def test_a_parameter_of_the_kernel_may_be_renamed_without_changing_the_result():
    kernel = cases.group_reduce(int32, 8, 64)
    renamed = replace(kernel, name="other")
    x, y, z = np.arange(64, dtype=np.int32), np.zeros(64, np.int32), np.zeros(64, np.int32)
    interpret(kernel, [x, y, 1])
    interpret(renamed, [x, z, 1])
    np.testing.assert_array_equal(y, z)


# ---------------------------------------------------------------------------------------------------------------------
# clusters


def run_cluster(kernel: ir.Kernel, clusters: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rows = clusters * kernel.cluster
    x = np.random.default_rng(3).integers(-99, 99, rows * kernel.threads).astype(np.float32)
    y = np.full(rows, np.nan, np.float32)
    # Two clusters at a time, so that the blocks of one are never in two chunks.
    interpret(kernel, [x, y, clusters], lanes_at_a_time=2 * kernel.cluster * kernel.threads + 1)
    return x.reshape(clusters, -1), y.reshape(clusters, -1)


@pytest.mark.parametrize(("cluster", "threads"), [(1, 32), (2, 32), (4, 64), (8, 32), (5, 96)])
def test_blocks_of_a_cluster_write_each_others_shared_memory(cluster, threads):
    x, y = run_cluster(cuda_algorithms.cluster_sum(float32, cluster, threads))
    np.testing.assert_array_equal(y, x.sum(1)[:, None] + np.arange(cluster))


def test_memory_that_another_block_wrote_is_read_only_after_a_barrier_of_the_cluster():
    with pytest.raises(InterpreterError, match=r"no barrier: reads sums\[0\]"):
        run_cluster(cuda_algorithms.cluster_sum(float32, 2, 32, barrier=False))


def test_memory_of_another_block_that_was_touched_is_written_only_after_a_barrier_of_the_cluster():
    kernel = cuda_algorithms.cluster_sum(float32, 2, 32)
    touched = ir.Store(ir.Buffer("sums", float32, "shared", 2), ZERO, cases.number(1.0, float32))
    at = next(k for k, s in enumerate(kernel.body) if isinstance(s, ir.StartCopy))
    with pytest.raises(InterpreterError, match=r"no cluster barrier: writes sums\[0\] of another block"):
        run_cluster(replace(kernel, body=(*kernel.body[:at], touched, ir.Barrier(), *kernel.body[at:])))


def test_what_is_copied_ahead_is_there_only_when_it_was_awaited():
    _, y = run_cluster(cuda_algorithms.cluster_sum(float32, 2, 32, copies=False))
    assert np.isnan(y).all()


@pytest.mark.parametrize(("later", "done"), [(0, 3), (1, 2), (2, 1)])
def test_of_copies_in_batches_the_last_ones_may_be_left_on_their_way(later, done):
    threads, batches = 32, 3
    x, y = cases.source("x", float32), cases.target("y", float32)
    held = ir.Buffer("held", float32, "shared", batches * threads)
    block, lane = ir.Variable("block", int64), ir.Cast(cases.THREAD, int64)
    places = [ir.call("add", lane, cases.number(k * threads, int64)) for k in range(batches)]
    body = [ir.Allocate(held)]
    for place in places:
        body += [ir.StartCopy(held, place, x, place, 1), ir.EndBatch()]
    body += [ir.AwaitCopies(later), *(ir.Store(y, place, ir.Load(held, place)) for place in places)]
    axis = ir.Axis(block, cases.number(1, int64))
    kernel = ir.Kernel("batches", (x, y), (axis,), tuple(body), "cuda", threads, cases.THREAD)
    given_, found = np.arange(96, dtype=np.float32), np.zeros(96, np.float32)
    interpret(kernel, [given_, found])
    np.testing.assert_array_equal(found[: done * threads], given_[: done * threads])
    assert np.isnan(found[done * threads :]).all()


def test_a_grid_that_is_not_a_multiple_of_the_cluster_and_a_rank_outside_it_are_errors():
    kernel = cuda_algorithms.cluster_sum(float32, 4, 32)
    with pytest.raises(InterpreterError, match="12 blocks along the last axis are not a multiple of the cluster 5"):
        run_cluster(replace(kernel, cluster=5, grid=kernel.grid), clusters=3)
    with pytest.raises(InterpreterError, match="block rank 2 outside a cluster of 2, by lane 2"):
        run_cluster(replace(kernel, cluster=2))


def test_a_barrier_that_one_block_of_a_cluster_misses_is_an_error():
    kernel = cuda_algorithms.cluster_sum(float32, 2, 32)
    rank = ir.Variable("rank", int64)
    body = [ir.If(ir.call("eq", rank, ZERO), (s,)) if isinstance(s, ir.Barrier) else s for s in kernel.body]
    with pytest.raises(InterpreterError, match="a cluster barrier is not reached by all blocks of the cluster"):
        run_cluster(replace(kernel, body=tuple(body)))
