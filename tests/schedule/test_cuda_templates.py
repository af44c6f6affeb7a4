"""Tests the GPU templates: interpreted against the reference implementation, and compiled by NVRTC."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.schedule.cuda_lowering import (
    Case,
    bias_gelu,
    case,
    global_accesses,
    layernorm,
    numbers,
    rotate_half,
    softmax,
)
from tests.session.samples import in_suite, times
from tracefuse import dtypes
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.cuda_compiler import compile_many
from tracefuse.kernel.cuda.emit_cuda import emit_cuda
from tracefuse.kernel.cuda.nvrtc import compile_with_log
from tracefuse.schedule.gpu import gpu_problem, gpu_transpose

BF16 = dtypes.bfloat16.numpy
F16 = np.float16
LENGTHS = (1, 2, 3, 4, 7, 8, 31, 32, 33, 64, 100, 128, 255, 256, 257)


def row_and_totals(x: Any) -> Any:
    total = x.sum(-1)
    return x * 2 - total[..., None], total, x.max(-1)


def variance(*axes: int) -> Callable[[Any], Any]:
    return lambda x: np.sqrt(x.var(axes))


def normalized(*axes: int) -> Callable[[Any], Any]:
    return lambda x: (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


def cross_entropy(x: Any, target: Any) -> Any:
    shifted = x - x.max(-1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return -np.take_along_axis(logs, target[:, None], 1)[:, 0]


def norm_gradients(dy: Any, x: Any, w: Any) -> Any:
    scale = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    normal, scaled = x * scale, dy * w
    return (scaled - normal * (scaled * normal).mean(-1, keepdims=True)) * scale, (dy * normal).sum(0), dy.sum(0)


def softmax_gradients(x: Any, dy: Any) -> Any:
    y = softmax(1)(x)
    dx = y * (dy - (dy * y).sum(-1, keepdims=True))
    return dx, dx.sum(0), dx.max(0), np.argmax(y, 0)


POINTWISE: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "bias, rows of whole blocks": (bias_gelu, (numbers(9, 512), numbers(512))),
    "bias, short rows": (bias_gelu, (numbers(700, 8), numbers(8))),
    "bias, odd rows": (bias_gelu, (numbers(9, 77), numbers(77))),
    "bias of halves": (bias_gelu, (numbers(9, 512, dtype=BF16), numbers(512, dtype=BF16))),
    "flat": (np.exp, (numbers(64, 64),)),
    "flat with a rest": (lambda x, y: x * y + 1, (numbers(2051), numbers(2051, seed=1))),
    "fewer elements than lanes": (lambda x: x + 1, (numbers(3),)),
    "one element": (lambda x: (x + 1, x.sum()), (numbers(),)),
    "doubles and bools": (lambda x, y: (x > y, x + y), (numbers(300, dtype=np.float64), numbers(300))),
    "a host scalar": (lambda x, s: x * s, (numbers(33), 2.5)),
    "rotate half": (rotate_half, (numbers(2, 3, 5, 16), numbers(5, 16), numbers(5, 16))),
    "rotate half, odd halves": (rotate_half, (numbers(2, 3, 5, 12), numbers(5, 12), numbers(5, 12))),
    "rolled": (lambda x: x + np.roll(x, 3, 1), (numbers(5, 16),)),
    "flipped": (lambda x: np.flip(x, 1) - x, (numbers(5, 16),)),
    "padded": (lambda x: np.pad(np.exp(x), ((1, 2), (4, 3)), constant_values=7.0), (numbers(5, 17),)),
    "padded by whole groups": (lambda x: np.pad(x, ((0, 0), (4, 8))), (numbers(5, 16),)),
    "padded, of known size": (lambda x: np.pad(x, (1, 2), constant_values=7.0), (numbers(1),)),
    "joined": (lambda x, y: np.concatenate([x, y], 1), (numbers(5, 12), numbers(5, 5))),
    "transposed by the function": (lambda x: np.exp(x).T, (numbers(8, 20),)),
    "reshaped": (lambda x: np.exp(x.T).reshape(-1), (numbers(8, 20),)),
    "gathered": (lambda x, i: np.take_along_axis(x, i, 1), (numbers(3, 8), np.array([[7, 0, -1, 3]] * 3))),
    "transposed input": (lambda x: x * 2, (numbers(20, 8).T,)),
    "every other element": (lambda x: x * 2, (numbers(20, 16)[:, ::2],)),
    "rows apart": (lambda x, y: x * y, (numbers(20, 32)[:, :16], numbers(20, 16))),
    "backwards": (lambda x: x * 2, (numbers(20, 8)[::-1],)),
    "broadcast input": (lambda x, y: x + y, (np.broadcast_to(numbers(8), (20, 8)), numbers(20, 8))),
    "off by one element": (lambda x: x * 2, (numbers(65)[1:],)),
    "nothing": (lambda x: x * 2, (numbers(0, 8),)),
}

TRANSPOSED: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "transposed and added": (lambda x, y: x.T + y, (numbers(60, 100), numbers(100, 60))),
    "odd extents": (lambda x, y: x.T + y, (numbers(67, 90), numbers(90, 67))),
    "halves": (lambda x, y: x.T + y, (numbers(64, 72, dtype=BF16), numbers(72, 64, dtype=BF16))),
    "doubles": (lambda x: np.exp(x.T), (numbers(20, 70, dtype=np.float64),)),
    "a transposed input": (lambda x: x * 2, (numbers(70, 20).T,)),
    "both orders": (lambda x, y: (x.T + y, x * 2), (numbers(48, 48), numbers(48, 48))),
    "two inputs": (lambda x, y: x.T * y.T, (numbers(48, 24), numbers(48, 24))),
    "channels last to channels first": (lambda x: np.transpose(x, (0, 3, 1, 2)) + 1, (numbers(3, 5, 8, 48),)),
    "short inner axes": (lambda x: np.transpose(x, (3, 2, 1, 0)) + 1, (numbers(3, 4, 5, 48),)),
    "a short inner axis of halves": (
        lambda x, y: x.transpose(2, 0, 1) + y,
        [numbers(*s, dtype=BF16) for s in ((20, 4, 72), (72, 20, 4))],
    ),
    "axes reversed": (lambda x: np.transpose(x, (2, 1, 0)) * 2, (numbers(30, 5, 48),)),
    "lanes along the output alone": (
        lambda x, y: x.T * 2 + y,
        (numbers(24, 67, dtype=F16), numbers(67, 24, dtype=F16)),
    ),
    "fewer lanes along the input": (lambda x, y: x.T + y, (numbers(24, 70, dtype=F16), numbers(70, 24, dtype=F16))),
    "lanes over joined axes": (
        lambda x, y: x.transpose(2, 1, 0) + y,
        (numbers(16, 6, 72, dtype=F16), numbers(72, 6, 16, dtype=F16)),
    ),
}

REDUCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], str]] = {
    "softmax of a long row": (softmax(1), (numbers(2, 4096),), "row"),
    "softmax of bfloat16": (softmax(1), (numbers(5, 1024, dtype=BF16),), "row"),
    "softmax of float16": (softmax(-1), (numbers(5, 100, dtype=F16),), "row"),
    "layernorm": (layernorm, (numbers(5, 1024), numbers(1024), numbers(1024)), "row"),
    "layernorm, odd": (layernorm, (numbers(5, 77), numbers(77), numbers(77)), "row"),
    "layernorm of float16": (layernorm, [numbers(*s, dtype=F16) for s in ((5, 256), (256,), (256,))], "row"),
    "a row and totals": (row_and_totals, (numbers(7, 100),), "row"),
    "a sum of two inputs, kept": (lambda x, y: softmax(1)(x + y), (numbers(3, 64), numbers(3, 64, seed=1)), "row"),
    "any, all, integers": (
        lambda i: ((i > 2).any(1), (i > -9).all(1), i.sum(1), i.min(1), i.prod(1)),
        (np.arange(-6, 6, dtype=np.int8).reshape(3, 4),),
        "row tile",
    ),
    "row of two axes": (normalized(0, 2), (numbers(3, 4, 16),), "row"),
    "cross entropy": (cross_entropy, (numbers(5, 17), np.array([3, -1, 0, 16, 5])), "row tile"),
    "row of strided memory": (softmax(1), (numbers(20, 64)[:, :32],), "row"),
    "row backwards": (softmax(1), (numbers(20, 64)[:, ::-1],), "row"),
    "broadcast along the row": (
        lambda x, y: (x + y).sum(1),
        (numbers(5, 8), np.broadcast_to(numbers(5, 1), (5, 8))),
        "row",
    ),
    "transposed input, reduced in order": (softmax(0), (numbers(5, 64).T,), "row"),
    "empty row": (lambda x: x.sum(1), (numbers(3, 0),), "column"),
    "empty rows": (softmax(1), (numbers(0, 3),), "row tile"),
    "full": (lambda x: (x.sum(), x / np.abs(x).max()), (numbers(5, 7),), "row"),
    "short rows": (
        lambda x, y: (softmax(1)(x * y), x.sum(1), (x - y).max(1)),
        (numbers(300, 7), numbers(300, 7, seed=1)),
        "row tile",
    ),
    "short rows of halves": (softmax(1), (numbers(129, 31, dtype=F16),), "row tile"),
    "short rows of doubles": (softmax(1), (numbers(128, 5, dtype=np.float64),), "row tile"),
    "short rows, and what they share": (
        lambda x, w, b: (x * w).sum(2, keepdims=True) * x + b,
        (numbers(3, 100, 9), numbers(9), numbers(3, 100, 1)),
        "row tile",
    ),
    "sums of pairs": (lambda x: x.sum(1), (numbers(1000, 2),), "row tile"),
    "sums of short rows": (lambda x: x.sum(1), (numbers(200, 13),), "row tile"),
    "short rows of strided memory": (softmax(1), (numbers(40, 14)[:, :7],), "row tile"),
    "few long rows": (softmax(1), (numbers(2, 20000),), "split"),
    "a long full reduction": (lambda x: (x.sum(), x - x.mean()), (numbers(301, 100),), "split"),
    "long rows of two axes": (normalized(0, 2), (numbers(5, 4, 5000),), "split"),
    "many long rows": (lambda x: softmax(1)(x)[:, :1].sum(1), (numbers(3, 100),), "row"),
    "gradients of a norm": (
        norm_gradients,
        [numbers(*s) for s in ((11, 1024), (11, 1024), (1024,))],
        "row_column",
    ),
    "gradients of a norm, bfloat16": (
        norm_gradients,
        [numbers(*s, dtype=BF16) for s in ((9, 2048), (9, 2048), (2048,))],
        "row_column",
    ),
    "gradients of a norm, short rows": (
        norm_gradients,
        [numbers(*s) for s in ((70, 16), (70, 16), (16,))],
        "row_column",
    ),
    "gradients of a norm, odd rows": (
        norm_gradients,
        [numbers(*s) for s in ((9, 77), (9, 77), (77,))],
        "row_column",
    ),
    "gradients of a norm, too long": (
        norm_gradients,
        [numbers(*s) for s in ((2, 20000), (2, 20000), (20000,))],
        "row_column of split and column",
    ),
    "gradients of a softmax": (softmax_gradients, (numbers(20, 100), numbers(20, 100, seed=1)), "row_column"),
    "columns": (softmax(0), (numbers(100, 40),), "column"),
    "columns of halves": (softmax(0), (numbers(100, 40, dtype=BF16),), "column"),
    "odd columns": (softmax(0), (numbers(33, 33),), "column"),
    "few rows of columns": (softmax(0), (numbers(5, 1000),), "column"),
    "columns, split": (softmax(0), (numbers(1300, 36),), "column"),
    "column sums, split": (lambda x: x.sum(0), (numbers(1300, 300),), "column"),
    "one column": (softmax(0), (numbers(300, 1),), "row"),
    "columns of middle axes": (variance(1, 2), (numbers(3, 4, 5, 8),), "column"),
    "columns and full outputs": (lambda x: (x - x.mean(0), x.mean(0), x.max(0)), (numbers(70, 36),), "column"),
    "columns of strided memory": (softmax(0), (numbers(40, 64)[:, 8:40],), "column"),
    "columns of nothing": (lambda x: x.sum(0), (numbers(0, 9),), "column"),
    "no columns": (lambda x: x.sum(0), (numbers(9, 0),), "row"),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise_regions_compute_what_numpy_does(name: str) -> None:
    function, arguments = POINTWISE[name]
    assert case(function, *arguments).check().lowered.template == "pointwise" or name == "one element"


@pytest.mark.parametrize("name", TRANSPOSED)
def test_transposed_inputs_go_through_tiles(name: str) -> None:
    function, arguments = TRANSPOSED[name]
    assert case(function, *arguments).check().lowered.template == "transpose"


FEW_COLUMNS = {
    "few columns": (lambda x, y: x.T + y, (numbers(1030, 3), numbers(3, 1030))),
    "few channels of halves": (lambda x: np.transpose(x, (0, 2, 1)) * 2, (numbers(2, 1024, 5, dtype=F16),)),
    "a short axis ahead": (lambda x: np.transpose(x, (2, 0, 1)) * 2, (numbers(2, 1060, 2),)),
    "fifteen columns": (lambda x: x.T * 2, (numbers(1032, 15),)),
}


@pytest.mark.parametrize("name", FEW_COLUMNS)
def test_few_columns_go_through_tiles_where_caches_do_not_hold_them(name: str, monkeypatch: Any) -> None:
    function, arguments = FEW_COLUMNS[name]
    assert case(function, *arguments).lowered.template == "pointwise"
    monkeypatch.setattr(gpu_transpose, "FAR", replace(gpu_transpose.FAR, bytes=10_000))
    assert case(function, *arguments).check().lowered.template == "transpose"


def test_short_rows_of_an_output_are_joined_with_lanes() -> None:
    function, arguments = TRANSPOSED["lanes over joined axes"]
    (kernel,) = case(function, *arguments).kernels
    tables = [s for s in ir.walk_statements(kernel.body) if isinstance(s, ir.Allocate) and s.buffer.positions]
    stored = [s for s in ir.walk_statements(kernel.body) if isinstance(s, ir.Copy) and s.destination.written]
    assert len(tables) == 2
    assert {s.width for s in stored} == {8}


@pytest.mark.parametrize("columns", [33, 97, 301])
def test_warps_take_rows_that_data_choose(columns: int) -> None:
    rows = np.array([3, -1, 0, 6, 2, 2, -7] * 6)
    lowered = case(
        lambda w, k, b: (np.take(w, k, axis=0) * b, w[k] - 1), numbers(7, columns), rows, numbers(columns)
    ).check()
    assert lowered.lowered.template == "taken rows"
    assert not lowered.guards_hold(i1=32)


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_compute_what_numpy_does(name: str) -> None:
    function, arguments, template = REDUCTIONS[name]
    assert case(function, *arguments).check().lowered.template == template


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("length", LENGTHS)
def test_every_length_of_a_reduction_is_right(length: int, axis: int) -> None:
    shape = (length, 6) if axis == 0 else (5, length)
    case(lambda x: (softmax(axis)(x), x.sum(axis)), numbers(*shape)).check()


@given(
    st.lists(st.sampled_from([1, 2, 3, 4, 8, 16, 33]), min_size=1, max_size=3).flatmap(
        lambda shape: st.tuples(
            st.just(tuple(shape)),
            st.sets(st.integers(0, len(shape) - 1), min_size=1),
            st.permutations(range(len(shape))),
        )
    )
)
@settings(max_examples=times(30))
def test_any_axes_of_any_memory_order_are_reduced(drawn: tuple[tuple[int, ...], set[int], list[int]]) -> None:
    shape, axes, order = drawn
    memory = numbers(*(shape[k] for k in order)).transpose(np.argsort(order))
    reduced = tuple(sorted(axes))
    case(lambda x: (x - x.mean(reduced, keepdims=True), np.exp(x).sum(reduced)), memory).check()


def test_what_is_not_known_to_be_aligned_is_read_by_elements() -> None:
    lowered = case(lambda x: x * 2, numbers(64), wide=False).check()
    assert all(b.alignment == 4 for k in lowered.kernels for b in k.buffers if not b.written)


def test_positions_beyond_32_bits_are_counted_in_64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_problem, "NARROW_INDEX", 10)
    for function, arguments in (
        (bias_gelu, (numbers(9, 512), numbers(512))),
        (softmax(1), (numbers(5, 64),)),
        (softmax(0), (numbers(1300, 36),)),
    ):
        wide = case(function, *arguments).check()
        assert {k.grid[0].variable.dtype for k in wide.kernels} == {dtypes.int64}
        assert not wide.guards_hold(i0=1, i1=1)


TABLE: dict[str, Callable[[Any], Case]] = {
    "softmax": lambda t: case(softmax(1), numbers(3, 4096, dtype=t)),
    "layernorm": lambda t: case(layernorm, numbers(3, 4096, dtype=t), numbers(4096, dtype=t), numbers(4096, dtype=t)),
    "bias_gelu": lambda t: case(bias_gelu, numbers(9, 4096, dtype=t), numbers(4096, dtype=t)),
    "rotate half": lambda t: case(
        rotate_half, numbers(1, 2, 3, 128, dtype=t), numbers(3, 128, dtype=t), numbers(3, 128, dtype=t)
    ),
    "column sum": lambda t: case(lambda x: x.sum(0), numbers(600, 4096, dtype=t)),
    "full sum": lambda t: case(lambda x: x.sum(), numbers(64, 4096, dtype=t)),
    "swiglu": lambda t: case(
        lambda x, y: x / (1 + np.exp(-x)) * y, numbers(9, 4096, dtype=t), numbers(9, 4096, dtype=t)
    ),
    "transpose and add": lambda t: case(lambda x, y: x.T + y, numbers(64, 128, dtype=t), numbers(128, 64, dtype=t)),
    "long softmax": lambda t: case(softmax(1), np.broadcast_to(numbers(1, 32768, dtype=t), (300, 32768)).copy()),
}


@pytest.mark.parametrize("dtype", [np.float32, BF16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", TABLE)
def test_kernels_hold_all_in_registers_and_access_16_bytes(name: str, dtype: Any) -> None:
    for kernel in TABLE[name](dtype).kernels:
        wide, narrow = global_accesses(kernel)
        assert wide > 0 or kernel.name.endswith("split_1"), "the launch that finishes reads single states"
        assert name in ("swiglu", "full sum") or narrow == 0
        _, log = compile_with_log(
            emit_cuda(kernel), "k", architecture="sm_90", options=("--ptxas-options=-v", "--fmad=true")
        )
        assert re.search(r"\b0 bytes stack frame, 0 bytes spill stores", log), log


def unrolled(kernel: ir.Kernel) -> list[list[ir.For]]:
    """The unrolled loops of each body that has some."""
    bodies = [kernel.body, *(s.body for s in ir.walk_statements(kernel.body) if isinstance(s, ir.For | ir.If))]
    loops = ([s for s in body if isinstance(s, ir.For) and s.kind == "unroll"] for body in bodies)
    return [found for found in loops if found]


@pytest.mark.parametrize("name", ["bias_gelu", "column sum", "full sum", "long softmax"])
def test_a_thread_reads_for_several_steps_before_it_works_on_the_first(name: str) -> None:
    found = 0
    for loops in unrolled(TABLE[name](BF16).kernels[0]):
        reads = [any(is_read(s) for s in ir.walk_statements(loop.body)) for loop in loops]
        found += any(reads)
        assert not any(reads[1:])
        assert not reads[0] or all(isinstance(s, ir.Let) or is_read(s) for s in loops[0].body)
    assert found


def is_read(statement: ir.Statement) -> bool:
    return isinstance(statement, ir.Copy) and statement.source.space == "global"


@pytest.mark.parametrize("dtype", [BF16, F16], ids=["bfloat16", "float16"])
def test_halves_are_rounded_once_where_they_are_stored(dtype: Any) -> None:
    (kernel,) = case(bias_gelu, numbers(9, 512, dtype=dtype), numbers(512, dtype=dtype)).check().kernels
    copies = [s for s in ir.walk_statements(kernel.body) if isinstance(s, ir.Copy) and s.destination.space == "global"]
    assert copies
    assert all(s.rounds for s in copies)
    assert not re.search(r"to_float\(to_b?float16", emit_cuda(kernel))


def test_a_half_that_is_stored_is_read_on_in_its_rounded_form() -> None:
    def both(x: Any) -> Any:
        y = x * 3
        return y, y.sum(-1)

    (kernel,) = case(both, numbers(9, 512, dtype=BF16)).check().kernels
    assert "to_float(to_bfloat16" in emit_cuda(kernel)


def test_the_largest_of_a_long_row_is_a_part_of_the_state_of_its_sum_of_exponentials() -> None:
    (kernel,) = TABLE["long softmax"](np.float32).kernels
    joined = [s for s in ir.walk_statements(kernel.body) if isinstance(s, ir.GroupReduce)]
    assert [len(s.variables) for s in joined] == [1, 1]  # the largest, then the sum


def test_a_plan_for_one_number_of_rows_serves_all_others() -> None:
    for lowered in (
        case(softmax(1), numbers(3, 4096)),
        case(layernorm, numbers(3, 768), numbers(768), numbers(768)),
        case(bias_gelu, numbers(3, 512), numbers(512)),
        case(lambda x: np.exp(x) + 1, numbers(3)),
    ):
        assert all(lowered.guards_hold(i0=rows) for rows in range(1001))


@pytest.mark.parametrize("function", [lambda x: np.roll(x, 5, 1) * 2, lambda x: x[:, np.arange(x.shape[1])[::-1] // 2]])
def test_loads_at_places_that_conditions_or_data_decide_come_before_all_stores(function: Callable[..., Any]) -> None:
    (kernel,) = case(function, numbers(60, 67)).check().kernels
    complete = next(s for s in kernel.body if isinstance(s, ir.If))
    stores = [
        any(isinstance(s, ir.Store) and s.buffer.space == "global" for s in ir.walk_statements((loop,)))
        for loop in complete.body
        if isinstance(loop, ir.For)
    ]
    assert stores == [False] * (len(stores) - 1) + [True]
    assert len(stores) > 1


@pytest.mark.parametrize("columns", [77, 2963, 20_001])
def test_positions_in_states_have_the_type_of_indices(columns: int) -> None:
    lowered = case(lambda x: x.argmin(1), numbers(3, columns)).check()
    declared = [s for k in lowered.kernels for s in ir.walk_statements(k.body) if isinstance(s, ir.Declare)]
    assert {s.variable.dtype.name for s in declared} == {"float32", "int32"}


@pytest.mark.parametrize(("times", "tiled"), [(4, False), (256, True)])
def test_a_tiled_grid_has_rows_for_the_threads_of_its_blocks(times: int, tiled: bool) -> None:
    lowered = case(lambda x: np.tile(x * 2, (times, 1)), numbers(24, 8)).check()
    assert ("rows" in {p.name for p in lowered.kernels[0].parameters}) == tiled


def test_another_length_of_row_is_another_plan_only_where_the_schedule_changes() -> None:
    row = case(softmax(1), numbers(3, 3000))
    assert all(row.guards_hold(i1=length) for length in (2052, 3072, 4092))
    assert not any(row.guards_hold(i1=length) for length in (2048, 4096, 3001))


@pytest.mark.parametrize(("architecture", "remainders"), [("sm_80", (0,)), ("sm_90", (3, 6))])
def test_all_kernels_compile(architecture: str, remainders: tuple[int, ...]) -> None:
    # The device functions of both architectures compile in test_cuda_emit; the templates' texts are the same for both.
    functions = [(f, a) for f, a, *_ in (POINTWISE | TRANSPOSED | REDUCTIONS).values()]
    taken = [one for k, one in enumerate(functions) if k % 8 in in_suite(remainders, range(8))]
    cases = [case(f, *a) for f, a in taken]
    kernels = [kernel for one in cases for kernel in one.kernels]
    assert len(kernels) > len(cases)
    assert all(compile_many(kernels, architecture=architecture))


def test_a_reduction_over_the_grid_has_as_many_chunks_as_sizes_and_multiprocessors_say() -> None:
    one = case(lambda x: x.sum(), numbers(64, 4096))
    chunks = {s.name: one.integer(e) for s, e in one.lowered.derived.items()}["chunks"]
    assert 1 < chunks <= 4 * 132
    assert isinstance(one.kernels[0].grid[0].extent, ir.Variable | ir.Call)
