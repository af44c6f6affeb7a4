"""Tests the cluster template: values, the sizes that select it, and machine code."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.schedule.cuda_lowering import Case, case, global_accesses, numbers, softmax
from tests.session.samples import times
from tracefuse import dtypes
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.cuda_compiler import compile_many
from tracefuse.kernel.cuda.emit_cuda import emit_cuda, shared_bytes
from tracefuse.kernel.cuda.nvrtc import compile_with_log
from tracefuse.schedule import chip
from tracefuse.schedule.gpu import gpu_cluster, gpu_row
from tracefuse.schedule.gpu.gpu_templates import gpu_templates

BF16, F16 = dtypes.bfloat16.numpy, np.float16
SMALL = ("sm_90", 2)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a warp, 8 KiB of shared memory to a multiprocessor: short rows take every way that long ones do."""
    monkeypatch.setattr(gpu_row, "MOST_THREADS", 8)
    monkeypatch.setattr(gpu_row, "MOST_WORDS", 4)
    monkeypatch.setattr(gpu_cluster, "EXCHANGE_BYTES", 512)
    monkeypatch.setattr(gpu_cluster, "RESIDENT", {4: (32, 0), 3: (32, 8), 2: (64, 8), 1: (96, 8)})
    monkeypatch.setattr(chip, "_SHARED_BYTES", {90: 8 * 1024})


def on_small(function: Callable[..., Any], *arguments: Any) -> Case:
    return case(function, *arguments, target=gpu_templates(*SMALL))


def normalized(*axes: int) -> Callable[..., Any]:
    def of(x: Any, w: Any, b: Any) -> Any:
        shape = tuple(1 if k in axes else -1 for k in range(x.ndim))
        deviation = np.sqrt(x.var(axes, keepdims=True) + 1e-5)
        return (x - x.mean(axes, keepdims=True)) / deviation * w.reshape(shape) + b.reshape(shape)

    return of


def batchnorm(*shape: int, dtype: Any = np.float32) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return normalized(0, 2), tuple(
        numbers(*s, dtype=dtype, seed=k) for k, s in enumerate((shape, shape[1:2], shape[1:2]))
    )


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "batch normalisation": batchnorm(5, 3, 64),
    "of bfloat16": batchnorm(7, 2, 96, dtype=BF16),
    "of float16, odd": batchnorm(5, 3, 61, dtype=F16),
    "of doubles": batchnorm(5, 3, 60, dtype=np.float64),
    "softmax": (softmax(1), (numbers(3, 400),)),
    "softmax of an odd row": (softmax(1), (numbers(3, 397),)),
    "softmax of bfloat16": (softmax(1), (numbers(2, 800, dtype=BF16),)),
    "of two inputs": (lambda x, y: softmax(1)(x + y), (numbers(3, 320), numbers(3, 320, seed=1))),
    "two inputs, each read again": (
        lambda x, y: (x - x.mean(1, keepdims=True), y - (x * y).mean(1, keepdims=True)),
        (numbers(3, 256), numbers(3, 256, seed=1)),
    ),
    "rows and their totals": (lambda x: (x - x.mean(1, keepdims=True), x.max(1), x.argmax(1)), (numbers(4, 300),)),
    "a full reduction": (lambda x: x / np.abs(x).max(), (numbers(31, 17),)),
    "integers": (lambda x: x - x.max(1, keepdims=True), (np.arange(1200, dtype=np.int32).reshape(3, 400) % 77,)),
    "integers of one byte": (
        lambda x: x == x.max(1, keepdims=True),
        (np.arange(1200, dtype=np.int8).reshape(3, 400) % 77,),
    ),
    "complex": (lambda x: x / x.sum(1, keepdims=True), ((numbers(2, 300) + 1j * numbers(2, 300, seed=1)),)),
    "strided": (softmax(1), (numbers(3, 700)[:, ::2],)),
    "backwards": (softmax(1), (numbers(3, 400)[:, ::-1],)),
    "rows apart": (softmax(1), (numbers(3, 512)[:, :400],)),
    "off by one element": (softmax(1), (numbers(1201)[1:].reshape(3, 400),)),
    "transposed": (softmax(0), (numbers(3, 400).T,)),
    "broadcast beside": (
        lambda x, y: (x * y) / (x * y).sum(1, keepdims=True),
        (np.abs(numbers(3, 400)) + 1, np.broadcast_to(np.abs(numbers(3, 1, seed=1)) + 1, (3, 400))),
    ),
}


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_clusters_compute_what_numpy_does(name: str) -> None:
    function, arguments = FUNCTIONS[name]
    assert on_small(function, *arguments).check().lowered.template == "cluster"


@pytest.mark.usefixtures("small_blocks")
def test_every_number_of_blocks_on_a_multiprocessor_has_its_sizes() -> None:
    found = {}
    for length in range(100, 20000, 900):
        lowered = on_small(softmax(1), numbers(2, length)).lowered
        if lowered.template == "cluster":
            kernel = lowered.launches[0].kernel
            found.setdefault(kernel.blocks_per_multiprocessor, length)
            assert shared_bytes(kernel) == 0, "less than the static limit"
    assert list(found) == [4, 3, 2, 1]
    for length in found.values():
        on_small(softmax(1), numbers(2, length)).check()


@pytest.mark.usefixtures("small_blocks")
@given(
    st.tuples(st.integers(1, 9), st.integers(0, 4), st.sampled_from([1, 8, 33, 64, 100])),
    st.sampled_from([np.float32, np.float64, BF16, F16]),
    st.booleans(),
)
@settings(max_examples=times(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batch_normalisation_of_any_shape_is_right(shape: tuple[int, int, int], dtype: Any, strided: bool) -> None:
    batch, channels, inner = shape
    x = numbers(batch, channels, 2 * inner, dtype=dtype)[:, :, ::2] if strided else numbers(*shape, dtype=dtype)
    on_small(
        normalized(0, 2), x, numbers(channels, dtype=dtype, seed=1), numbers(channels, dtype=dtype, seed=2)
    ).check()


SHAPES = {
    "few long rows": (132, 200_000, "cluster"),
    "channels of a batch": (256, 200_704, "cluster"),
    "many rows that the cache cannot hold": (2000, 100_000, "cluster"),
    "many rows that it can": (4096, 32_768, "long row"),
    "rows too few to fill the chip": (8, 200_000, "split"),
    "rows that nothing holds": (132, 2_000_000, "split"),
    "many of them": (1320, 2_000_000, "long row"),
    "short rows": (200, 16_384, "row"),
}


def contiguous(rows: int, length: int, dtype: Any = np.float32, architecture: str = "sm_90") -> Case:
    """Softmax of rows that lie one after the other; the memory is not touched."""
    return case(softmax(1), np.empty((rows, length), dtype), target=gpu_templates(architecture, 132))


@pytest.mark.parametrize("name", SHAPES)
def test_sizes_decide_which_rows_clusters_hold(name: str) -> None:
    rows, length, template = SHAPES[name]
    assert contiguous(rows, length).lowered.template == template
    assert contiguous(rows, length, architecture="sm_80").lowered.template != "cluster"


def test_what_is_read_once_needs_no_cluster() -> None:
    assert case(lambda x: x.sum(1), np.empty((256, 200_704), np.float32)).lowered.template == "split"


def test_one_plan_serves_rows_of_many_lengths() -> None:
    plan = contiguous(256, 200_704)
    assert all(plan.guards_hold(i0=rows) for rows in (17, 100, 256, 264))
    assert all(plan.guards_hold(i1=length) for length in range(112_000, 212_000, 4))
    assert not any(plan.guards_hold(i1=length) for length in (110_000, 200_705, 216_000))
    assert not plan.guards_hold(i0=16)


MACHINE = {
    "batchnorm f32": (normalized(0, 2), np.float32, (64, 256, 3136)),
    "batchnorm bf16": (normalized(0, 2), BF16, (64, 256, 3136)),
    "softmax f32": (softmax(1), np.float32, (132, 200_000)),
    "softmax bf16": (softmax(1), BF16, (132, 200_000)),
    "longest f32": (softmax(1), np.float32, (132, 580_000)),
    "odd f32": (softmax(1), np.float32, (132, 200_001)),
}


@pytest.mark.parametrize("name", MACHINE)
def test_machine_code_reads_16_bytes_and_spills_nothing(name: str) -> None:
    function, dtype, shape = MACHINE[name]
    more = [np.empty(shape[1:2], dtype)] * 2 if len(shape) == 3 else []
    one = case(function, np.empty(shape, dtype), *more)
    assert one.lowered.template == "cluster"
    (kernel,) = one.kernels
    wide, narrow = global_accesses(kernel)
    assert name == "odd f32" or (wide > 0 and narrow == len(more))
    assert any(isinstance(s, ir.StartCopy) for s in ir.walk_statements(kernel.body))
    resident = kernel.blocks_per_multiprocessor
    assert resident is not None
    assert (shared_bytes(kernel) + chip.BLOCK_BYTES) * resident <= 228 * 1024
    _, log = compile_with_log(
        emit_cuda(kernel), "k", architecture="sm_90", options=("--ptxas-options=-v", "--fmad=true")
    )
    assert re.search(r"\b0 bytes stack frame, 0 bytes spill stores", log), log


@pytest.mark.usefixtures("small_blocks")
def test_kernels_of_all_kinds_of_states_compile() -> None:
    names = ("softmax of bfloat16", "of doubles", "rows and their totals", "integers of one byte", "complex")
    kernels = [kernel for name in names for kernel in on_small(FUNCTIONS[name][0], *FUNCTIONS[name][1]).kernels]
    assert all(compile_many(kernels, architecture="sm_90"))
