"""Tests CUDA sources: golden texts, and compilation of all of them by NVRTC."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kernel import cuda_algorithms
from tests.kernel import cuda_kernels as cases
from tests.session.samples import in_suite
from tracefuse import dtypes
from tracefuse.dtypes import bool_, float32, float64, int32, int64
from tracefuse.errors import CompileError, InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.cuda_compiler import CudaCompiler, compile_kernel, compile_many
from tracefuse.kernel.cuda.cuda_expressions import Printer, float_text
from tracefuse.kernel.cuda.cuda_functions import grid_texts
from tracefuse.kernel.cuda.emit_cuda import canonical_cuda, emit_cuda, entry_name, shared_bytes
from tracefuse.kernel.cuda.nvrtc import compile_source, compile_to_ptx, compile_with_log

GOLDEN = Path(__file__).parent / "golden"
ARCHITECTURES = ("sm_80", "sm_90")
EXAMPLES = {
    "softmax_bf16": cuda_algorithms.softmax(dtypes.bfloat16, 4096, 128, 8),
    "transpose_f32": cuda_algorithms.transpose(float32),
    "moments": cuda_algorithms.moments(96),
}
SCHEDULES = [
    *EXAMPLES.values(),
    cuda_algorithms.softmax(float32, 4096, 512, 4),
    cuda_algorithms.argmax(256),
    cuda_algorithms.column_sum(dtypes.float16),
    cuda_algorithms.large_shared(3000),
    cuda_algorithms.large_shared(10000),
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_source_of_a_kernel_is_the_golden_text(name):
    assert emit_cuda(EXAMPLES[name]) == (GOLDEN / f"{name}.cu").read_text()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_primitive_of_every_type_compiles(architecture):
    # The instructions that depend on the architecture are those of halves and float32.
    types = (dtypes.float16, dtypes.bfloat16, float32)
    chosen = [case for case in cases.PRIMITIVE_CASES if architecture == "sm_90" or case[1] in types]
    assert len(chosen) > 50
    assert compile_many([cases.primitive(*case) for case in chosen], architecture=architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_cast_compiles(architecture):
    assert compile_many([cases.conversion(*case) for case in cases.CAST_CASES], architecture=architecture)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_schedules_group_reductions_and_copies_compile(architecture):
    # Copies of equal sizes have equal texts but for the names of types; both architectures read and write alike.
    sized = {dtype.itemsize: dtype for dtype in cases.REAL}.values()
    reduced = cases.REAL if architecture == "sm_90" else sized
    reductions = [
        cases.group_reduce(dtype, group, threads, "maximum" if dtype is not bool_ else "or")
        for dtype in in_suite(reduced, cases.REAL)
        for group, threads in ((1, 32), (8, 8), (2, 64), (32, 96), (128, 128), (1024, 1024))
    ]
    copies = [
        cases.copy(dtype, width, cache, written=written)
        for dtype in in_suite(sized, cases.REAL)
        for width in (1, 2, 4, 8, 16)
        for cache in ("default", "streaming")
        for written in (False, True)
    ]
    assert compile_many([*SCHEDULES, *reductions, *copies], architecture=architecture)


@pytest.mark.parametrize("kernel", SCHEDULES[:4], ids=lambda k: k.name)
def test_registers_hold_local_buffers_and_nothing_spills(kernel):
    source = emit_cuda(kernel)
    _, log = compile_with_log(source, kernel.name, architecture="sm_90", options=("--ptxas-options=-v",))
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log


@pytest.mark.parametrize("dtype", [d for d in cases.REAL if d.itemsize < 8], ids=str)
@pytest.mark.parametrize(
    ("cache", "written", "load", "store"),
    [
        ("default", False, "ld.global.nc.v4.u32", "st.global.v4.u32"),
        ("streaming", False, "ld.global.nc.L1::no_allocate.v4.u32", "st.global.cs.v4.u32"),
        ("streaming", True, "ld.global.cs.v4.u32", "st.global.cs.v4.u32"),
    ],
)
def test_a_copy_of_sixteen_bytes_is_one_load_and_one_store(dtype, cache, written, load, store):
    kernel = cases.copy(dtype, 16 // dtype.itemsize, cache, written=written)
    ptx = compile_to_ptx(emit_cuda(kernel), kernel.name, architecture="sm_90")
    accesses = re.findall(r"\b(?:ld|st)\.(?:global|local)\S*", ptx)
    assert accesses == [load, store]


@pytest.mark.parametrize(("dtype", "kind"), [(dtypes.bfloat16, "bf16"), (dtypes.float16, "f16")], ids=str)
@pytest.mark.parametrize(("cache", "store"), [("default", "st.global.v4.u32"), ("streaming", "st.global.cs.v4.u32")])
def test_a_copy_into_a_half_type_rounds_two_elements_by_one_instruction(dtype, kind, cache, store):
    kernel = cases.rounded_copy(dtype, 8, cache)
    ptx = compile_to_ptx(emit_cuda(kernel), kernel.name, architecture="sm_90")
    assert re.findall(r"\bst\.global\S*", ptx) == [store]
    assert re.findall(r"\bcvt\.rn\S*", ptx) == [f"cvt.rn.{kind}x2.f32"] * 4


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.int32], ids=str)
def test_a_copy_that_neither_keeps_nor_rounds_the_type_is_refused(dtype):
    kernel = cases.rounded_copy(dtypes.bfloat16, 8)
    *first, last = kernel.body
    wrong = replace(last, source=ir.Buffer("chunk", dtype, "local", 8))
    with pytest.raises(InternalError, match="copy between chunk and y"):
        emit_cuda(replace(kernel, body=(*first, wrong)))


def test_a_bfloat16_is_widened_and_rounded_by_one_full_rate_instruction():
    kernel = cases.elementwise("twice", (dtypes.bfloat16,), dtypes.bfloat16, lambda x: cases.add(x, x))
    ptx = compile_to_ptx(emit_cuda(kernel), kernel.name, architecture="sm_90")
    assert "cvt.rn.bf16x2.f32" in ptx
    assert "cvt.rn.bf16.f32" not in ptx


def test_quotients_in_a_row_are_checked_together():
    source = emit_cuda(cases.quotients(float32, 2, shared=True))
    assert (
        "  float q0 = quotient(a0, b);\n"
        "  float q1 = quotient(a1, b);\n"
        "  if (!(is_plain_divisor(b) && is_plain(q0) && is_plain(q1))) {\n"
        "    q0 = divide(a0, b);\n"
        "    q1 = divide(a1, b);\n"
        "  }\n"
    ) in source
    own = emit_cuda(cases.quotients(float32, 2, shared=False))
    assert "if (!(is_plain(q0) && is_plain(q1) && is_plain(a0) && is_plain(a1))) {" in own


def test_a_quotient_alone_one_of_doubles_and_one_of_another_quotient_are_divisions():
    assert "q0 = a0 / b;" in emit_cuda(cases.quotients(float32, 1, shared=True))
    assert "q1 = a1 / b;" in emit_cuda(cases.quotients(float64, 2, shared=True))
    kernel = cases.quotients(float32, 2, shared=True)
    chained = tuple(
        ir.Let(s.variable, ir.call("div", ir.Variable("q0", float32), ir.Variable("b", float32)))
        if isinstance(s, ir.Let) and s.variable.name == "q1"
        else s
        for s in kernel.body
    )
    assert "q1 = q0 / b;" in emit_cuda(replace(kernel, body=chained))
    assert "q1 = a1 / b;" in emit_cuda(replace(kernel, fast_math=True))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_quotients_and_rounded_copies_compile(architecture):
    copies = [
        cases.rounded_copy(dtype, width, cache)
        for dtype in (dtypes.float16, dtypes.bfloat16)
        for width in (2, 4, 8, 16)
        for cache in ("default", "streaming")
    ]
    divided = [cases.quotients(float32, count, shared=shared) for count in (2, 4, 8) for shared in (True, False)]
    assert compile_many([*copies, *divided], architecture=architecture)


def test_blocks_that_leave_too_few_registers_are_given_up():
    crowded = replace(cuda_algorithms.softmax(float32, 4096, 128, 8), blocks_per_multiprocessor=16)
    assert "__launch_bounds__(128)" in compile_kernel(crowded, architecture="sm_90").source
    roomy = replace(crowded, blocks_per_multiprocessor=4)
    assert "__launch_bounds__(128, 4)" in compile_kernel(roomy, architecture="sm_90").source


def test_a_source_includes_nothing_and_defines_only_what_it_uses():
    source = emit_cuda(cases.elementwise("plus", (float32, float32), float32, cases.add))
    assert source == (
        "typedef long long int64;\n\n"
        'extern "C" __global__ void __launch_bounds__(128)\n'
        "plus(const float* __restrict__ x0, const float* __restrict__ x1, float* __restrict__ y, const int64 n) {\n"
        "  const int64 block = blockIdx.x;\n"
        "  const int thread = threadIdx.x;\n"
        "  const int64 i = block * 128 + (int64)thread;\n"
        "  if (i < n) {\n"
        "    y[i] = x0[i] + x1[i];\n"
        "  }\n"
        "}\n"
    )


def test_signed_data_wraps_and_indices_are_plain():
    source = emit_cuda(cases.elementwise("plus", (int32, int32), int32, cases.add))
    assert "y[i] = wrapping_add(x0[i], x1[i]);" in source
    assert "i = block * 128 + (int64)thread;" in source


def test_a_loop_bound_that_may_change_is_evaluated_once():
    n, j, block = ir.Variable("n", int32), ir.Variable("j", int64), ir.Variable("block", int32)
    x, y = cases.source("x", int64), cases.target("y", int64)
    zero, one = cases.number(0, int64), cases.number(1, int64)
    loop = ir.For(j, zero, ir.Load(x, zero), one, "serial", (ir.Store(y, j, j),))
    source = emit_cuda(ir.Kernel("k", (x, y, n), (ir.Axis(block, n),), (loop,), "cuda", 32))
    assert "const int64 j_stop = x[0];\n  for (int64 j = 0; j < j_stop; ++j) {" in source


def test_names_that_cuda_has_taken_get_an_underscore():
    kernel = cases.elementwise("main", (float32,), float32, lambda x: ir.call("exp", x))
    renamed = replace(kernel, parameters=(replace(kernel.parameters[0]), *kernel.parameters[1:]))
    assert entry_name(renamed) == "main_"
    odd = ir.Buffer("int", float32, written=True)
    lane = ir.Cast(cases.THREAD, int64)
    body = (ir.Store(odd, lane, ir.call("exp", ir.Load(odd, lane))),)
    source = emit_cuda(ir.Kernel("exp", (odd,), (), body, "cuda", 32, cases.THREAD))
    assert "exp_(float* __restrict__ int_) {" in source
    assert "int_[(int64)thread] = expf(int_[(int64)thread]);" in source
    compile_source(source, "exp_", architecture="sm_90")


def test_comments_cannot_swallow_the_next_line():
    block = ir.Axis(ir.Variable("block", int32), cases.number(1, int32))
    kernel = ir.Kernel("k", (), (block,), (ir.Comment("a \\\nb"),), "cuda", 32)
    assert "  // a \n  // b\n" in emit_cuda(kernel)


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (1.0, float32, "1.0f"),
        (-0.0, float32, "-0.0f"),
        (0.1, float64, "0.1"),
        (1e-30, float32, "1.0e-30f"),
        (float("inf"), float32, "__int_as_float(0x7f800000)"),
        (float("-inf"), float64, "__longlong_as_double(0xfff0000000000000)"),
    ],
)
def test_float_literals_read_back_exactly(value, dtype, text):
    assert float_text(dtype.numpy.type(value).item(), dtype).text == text


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (-(2**31), int32, "-2147483647 - 1"),
        (-(2**63), int64, "-9223372036854775807ll - 1"),
        (2**64 - 1, dtypes.uint64, "18446744073709551615ull"),
        (3, dtypes.int8, "(int8)3"),
        (True, bool_, "true"),
        (1.5, dtypes.bfloat16, "bfloat16{0x3fc0 /* 1.5 */}"),
    ],
)
def test_literals_have_their_own_type(value, dtype, text):
    assert Printer({}).constant(ir.Constant(value, dtype)).text == text


def test_shared_memory_beyond_48_kib_is_dynamic_and_says_how_much():
    assert shared_bytes(cuda_algorithms.large_shared(3000)) == 0
    large = cuda_algorithms.large_shared(10000)
    assert shared_bytes(large) == 80000
    source = emit_cuda(large)
    assert "extern __shared__ __align__(16) unsigned char dynamic_shared[];" in source
    assert "float* const copied = (float*)(dynamic_shared + 40000);" in source


def test_one_barrier_is_enough_for_a_block_reduction_outside_of_loops_and_two_in_one():
    assert emit_cuda(cases.group_reduce(float32, 256, 256)).count("__syncthreads") == 1
    assert emit_cuda(cuda_algorithms.moments(256)).count("__syncthreads") == 2
    assert emit_cuda(cases.group_reduce(float32, 32, 256)).count("__syncthreads") == 0


def test_clusters_compile_where_there_are_any_and_wait_for_their_blocks_to_start():
    kernels = [cuda_algorithms.cluster_sum(dtype, 8, 256) for dtype in (float32, float64, int32)]
    assert compile_many(kernels, architecture="sm_90")
    source = emit_cuda(kernels[0])
    assert "__cluster_dims__(8, 1, 1) __launch_bounds__(256)" in source
    body = source[source.index("{", source.index("extern")) :]
    steps = ("start_in_cluster();", "wait_for_cluster();", "*in_block(sums + rank, ", "meet_cluster();")
    assert sorted(steps, key=body.index) == list(steps)
    with pytest.raises(CompileError, match="__cluster_dims__ is not supported"):
        compile_many(kernels[:1], architecture="sm_80")
    assert canonical_cuda(kernels[0]) != canonical_cuda(replace(kernels[0], cluster=4))


def test_an_asynchronous_copy_moves_4_8_or_n_times_16_bytes_from_global_to_shared_memory():
    kernel = cuda_algorithms.cluster_sum(float32, 2, 32)
    at = next(k for k, s in enumerate(kernel.body) if isinstance(s, ir.StartCopy))
    copy = kernel.body[at]
    assert isinstance(copy, ir.StartCopy)
    for wrong in (replace(copy, width=3), replace(copy, source=copy.destination, destination=copy.source)):
        with pytest.raises(InternalError, match="asynchronous copy of"):
            emit_cuda(replace(kernel, body=(*kernel.body[:at], wrong, *kernel.body[at + 1 :])))


def test_complex_types_and_foreign_kernels_are_refused_with_a_reason():
    kernel = cases.elementwise("plus", (dtypes.complex64,) * 2, dtypes.complex64, cases.add)
    with pytest.raises(InternalError, match=r"complex64 in a kernel: .* split into their parts"):
        emit_cuda(kernel)
    with pytest.raises(InternalError, match="kernel plus is for cpu"):
        emit_cuda(replace(kernel, target="cpu"))
    with pytest.raises(InternalError, match="a group of 24 threads in a block of 48"):
        emit_cuda(cases.group_reduce(float32, 24, 48))


# ---------------------------------------------------------------------------------------------------------------------
# compilation


def test_a_source_that_does_not_compile_raises_with_the_log_and_the_source():
    with pytest.raises(CompileError, match=r'(?s)NVRTC refused kernel k .*identifier "nonsense" is undefined.*source:'):
        compile_source("__global__ void k() { nonsense; }", "k", architecture="sm_90")


@pytest.mark.parametrize("architecture", ["sm_75", "90", "compute_90"])
def test_architectures_that_cannot_run_the_kernels_are_refused(architecture):
    with pytest.raises(CompileError, match="needs sm_80"):
        compile_source("", "k", architecture=architecture)


def test_kernels_that_differ_in_names_and_comments_only_compile_once():
    compiler = CudaCompiler("sm_90")
    kernel = cases.group_reduce(float32, 32, 64)
    other = replace(kernel, name="other", body=(ir.Comment("elsewhere"), *kernel.body))
    first = compiler.compile(kernel)
    assert compiler.compile(other) is first
    assert compiler.compiled == 1
    assert compiler.compile(replace(kernel, contract=False)) is not first
    assert first.cubin[:4] == b"\x7fELF"
    assert canonical_cuda(kernel) != canonical_cuda(cases.group_reduce(float32, 16, 64))


def test_grid_extents_are_written_over_the_parameters():
    kernel = cuda_algorithms.transpose(float32)
    blocks = grid_texts(kernel, [p.name for p in kernel.parameters])
    sizes = [p.name for p in kernel.scalars]
    assert [eval(text, dict(zip(sizes, (45, 70), strict=True))) for text in blocks] == [3, 2]
    assert [eval(text, dict(zip(sizes, (45, 0), strict=True))) for text in blocks] == [0, 2]
    block, n = ir.Variable("block", int32), ir.Variable("n", float32)
    with pytest.raises(InternalError, match="a grid extent must be an integer expression of parameters"):
        grid_texts(ir.Kernel("k", (n,), (ir.Axis(block, ir.Cast(n, int32)),), (), "cuda", 32), ["n"])
