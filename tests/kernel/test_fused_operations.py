"""Products and sums that kernels fuse, and the bits of results, which do not depend on how far LLVM optimizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.cpu_kernels import loop
from tests.kernel.cpu_rows import COLUMNS, F32, I, J, at, by_row, random, real
from tracefuse import dtypes
from tracefuse.dtypes import DType
from tracefuse.kernel.kernel_ir import Accumulate, Buffer, Declare, Expression, Kernel, Load, Store, Variable, call
from tracefuse.kernel.llvm.cpu_functions import compile_cpu
from tracefuse.kernel.llvm.emit_llvm import emit_llvm
from tracefuse.kernel.llvm.fused_operations import with_fused_operations
from tracefuse.kernel.llvm.machine_code import OPTIMIZED, UNOPTIMIZED, get_machine
from tracefuse.kernel.llvm.text_builder import host_processor

X, Y, OUT = Buffer("x", F32), Buffer("y", F32), Buffer("out", F32, written=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  %p = fmul contract float %a, %b\n  %s = fadd contract float %p, %c", "float %a, float %b, float %c"),
        ("  %p = fmul contract float %a, %b\n  %s = fadd contract float %c, %p", "float %a, float %b, float %c"),
        (
            "  %p = fmul contract float %a, %b\n  %s = fsub contract float %p, %c",
            "float %a, float %b, float %s.negative",
        ),
        (
            "  %p = fmul contract float %a, %b\n  %s = fsub contract float %c, %p",
            "float %s.negative, float %b, float %c",
        ),
        (
            "  %p = fmul contract <4 x double> %a, splat (double 0x4000000000000000)\n"
            "  %s = fadd contract <4 x double> %p, %c",
            "<4 x double> %a, <4 x double> splat (double 0x4000000000000000), <4 x double> %c",
        ),
        (  # of two products the first
            "  %p = fmul contract float %a, %b\n  %q = fmul contract float %c, %c\n  %s = fadd contract float %p, %q",
            "float %a, float %b, float %q",
        ),
    ],
)
def test_a_product_with_one_reader_is_fused(text: str, expected: str) -> None:
    declarations: dict[str, str] = {}
    fused = with_fused_operations(text, declarations)
    (symbol,) = declarations
    assert f"@{symbol}({expected})" in fused
    assert "contract" not in fused
    assert "%p =" not in fused


@pytest.mark.parametrize(
    "text",
    [
        "  %p = fmul contract float %a, %b\n  %s = fadd contract float %p, %p",
        "  %p = fmul contract float %a, %b\n  %s = fsub contract float %p, %c\n  store float %p, ptr %x",
        "  %p = fmul contract float %a, %b\nnext:\n  %s = fadd contract float %p, %c",  # in another block
        "  %p = fmul contract half %a, %b\n  %s = fadd contract half %p, %c",
        "  %p = fmul float %a, %b\n  %s = fadd float %p, %c",
    ],
)
def test_other_products_are_rounded(text: str) -> None:
    declarations: dict[str, str] = {}
    assert with_fused_operations(text, declarations) == text.replace("contract ", "")
    assert not declarations


def test_a_sum_that_llvm_reorders_keeps_its_flags() -> None:
    text = "  %p = fmul contract float %a, %b\n  %s = fadd reassoc contract float %c, %p"
    assert with_fused_operations(text, {}) == text
    assert "fmuladd" in with_fused_operations(text, {}, reorders=False)


def expressions(dtype: DType) -> st.SearchStrategy[Expression]:
    """Sums, differences, products and quotients of elements, in which operands are repeated."""
    elements = st.sampled_from([Load(Buffer(name, dtype), at(I, J)) for name in ("x", "y")])
    leaves = st.one_of(elements, st.sampled_from([0.1, -3.0, 1.0]).map(lambda value: real(value, dtype)))
    binary = st.sampled_from(["add", "sub", "mul", "div", "maximum"])
    return st.recursive(leaves, lambda inner: st.builds(call, binary, inner, inner), max_leaves=12)


def results_of(kernel: Kernel, *inputs: np.ndarray) -> list[bytes]:  # type: ignore[type-arg]
    """The bits of a kernel's result at both levels of optimization."""
    machine, found = get_machine(), []
    before = machine.optimization
    try:
        for machine.optimization in (UNOPTIMIZED, OPTIMIZED):
            result = np.zeros_like(inputs[0])
            compile_cpu(kernel)(*inputs, result, *inputs[0].shape)
            found.append(np.where(np.isnan(result), np.nan, result).tobytes())  # of a NaN, the sign is not defined
    finally:
        machine.optimization = before
    return found


@settings(max_examples=10)
@given(
    st.data(), st.sampled_from([dtypes.float32, dtypes.float64]), st.sampled_from([None, "add", "maximum", "minimum"])
)
def test_bits_do_not_depend_on_the_optimization(data: st.DataObject, dtype: DType, reduces: str | None) -> None:
    x, y, out = (Buffer(name, dtype, written=name == "out") for name in ("x", "y", "out"))
    value, total = data.draw(expressions(dtype)), Variable("total", dtype)
    reduction = (
        Declare(total, real(0.0, dtype)),
        loop(J, COLUMNS, Accumulate(total, reduces or "add", value), kind="vector"),
        loop(J, COLUMNS, Store(out, at(I, J), call("add", value, total)), kind="vector"),
    )
    elements = (loop(J, COLUMNS, Store(out, at(I, J), value), kind="vector"),)
    # Without masks LLVM vectorizes the sum, and so chooses its order.
    kernel = by_row("drawn", (x, y, out), *(reduction if reduces and host_processor().masks else elements))
    assert "reassoc" not in emit_llvm(kernel)
    inputs = (random(3, 37).astype(dtype.numpy), random(37, 3).T.astype(dtype.numpy).copy())
    inputs[0][1], inputs[0][2, ::2], inputs[1][1, ::3] = -0.0, 0.0, 0.0
    unoptimized, optimized = results_of(kernel, *inputs)
    assert unoptimized == optimized
