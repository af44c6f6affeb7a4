"""Kernels of complex numbers: every GPU template against the reference implementation; NVRTC compiles the texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.schedule.cuda_lowering import case, numbers
from tracefuse.dtypes import complex64, complex128, float32, int64
from tracefuse.errors import InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.cuda_compiler import compile_many
from tracefuse.ops import REGISTRY, Pointwise
from tracefuse.passes.complex_functions import FUNCTIONS
from tracefuse.passes.split_complex import split_complex


def normal(*shape: int, dtype: Any = np.complex64) -> Any:
    return (numbers(*shape) + 1j * numbers(*shape, seed=1)).astype(dtype)


def unit_rows(x: Any) -> Any:
    """Two passes over a row, and results of both kinds."""
    size = (x * x.conj()).real.sum(-1, keepdims=True)
    return x / np.sqrt(size), np.abs(x.mean(-1))


TEMPLATES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "pointwise": (lambda x, y: (x * y + 1j, np.abs(x)), (normal(7, 33), normal(33))),
    "wide": (lambda x: x * 2, (normal(8, 64),)),
    "of reals": (lambda r: np.exp(1j * r), (numbers(5, 40),)),
    "transposed": (lambda x, y: x + y.T, (normal(48, 40), normal(40, 48))),
    "row": (unit_rows, (normal(3, 300),)),
    "row of complex128": (unit_rows, (normal(3, 300, dtype=np.complex128),)),
    "long row": (unit_rows, (normal(2, 20000),)),
    "product over a row": (lambda x: (x / abs(x)).prod(-1), (normal(3, 700),)),
    "column": (lambda x: (x.sum(0), x.any(0)), (normal(300, 5),)),
    "product over a column": (lambda x: (x / abs(x)).prod(0), (normal(300, 5),)),
    "split": (lambda x: x.sum(), (normal(64, 2048),)),
    "reversed": (lambda x: x[::-1, ::2].sum(0), (normal(40, 10)[:, ::-1],)),
    "moved": (lambda x: np.concatenate([np.pad(x, 1), np.roll(x, 1)[:1].repeat(7, 1)[:, :8]]), (normal(6, 6),)),
    "scalar": (lambda x, s: x * s, (normal(9), 2 - 1j)),
}  # fmt: skip


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_template_takes_complex_numbers(name: str) -> None:
    function, arguments = TEMPLATES[name]
    lowered = case(function, *arguments).check()
    for kernel in lowered.kernels:
        types = [p.dtype for p in kernel.parameters]
        types += [s.variable.dtype for s in ir.walk_statements(kernel.body) if isinstance(s, ir.Let | ir.Declare)]
        assert not any(dtype.is_complex for dtype in types)


def test_neighbouring_complex_numbers_are_accessed_together() -> None:
    (kernel,) = case(lambda x: x * 2, normal(8, 64)).kernels
    copies = [s for s in ir.walk_statements(kernel.body) if isinstance(s, ir.Copy)]
    assert copies
    assert {(copy.width, copy.source.dtype) for copy in copies} == {(4, float32)}


def every_function(x: Any) -> tuple[Any, ...]:
    """All ops of one or two complex numbers that are NumPy's ufuncs."""
    ops = [op for op in REGISTRY.values() if isinstance(op, Pointwise) and complex64 in op.domain]
    ufuncs = [op.numpy for op in ops if isinstance(op.numpy, np.ufunc)]
    assert len(ufuncs) > 30
    return tuple(ufunc(*[x] * ufunc.nin) for ufunc in ufuncs)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_all_texts_compile(architecture: str) -> None:
    kernels = [kernel for f, a in TEMPLATES.values() for kernel in case(f, *a).kernels]
    assert all(compile_many(kernels, architecture=architecture))


def test_the_texts_of_all_functions_compile() -> None:
    kernels = case(every_function, normal(9, dtype=np.complex128), wide=False).kernels
    assert all(compile_many(kernels, architecture="sm_90"))


def test_every_program_is_of_a_primitive() -> None:
    assert set(FUNCTIONS) <= set(ir.PRIMITIVES) | set(ir.COMPLEX_PRIMITIVES)


def test_a_primitive_without_a_complex_version_raises_with_its_name() -> None:
    z = ir.Variable("z", complex64)
    body = (ir.Let(ir.Variable("w", complex64), ir.call("floor", z)),)
    with pytest.raises(InternalError, match="floor is not defined on complex64"):
        split_complex(ir.Kernel("k", (z,), (), body, "cpu"))


def test_both_parts_are_read_before_one_is_assigned() -> None:
    z, parts = ir.Variable("z", complex128), ("real", "imag")
    real, imag = (ir.call(part, z) for part in parts)
    body = (ir.Declare(z, ir.Constant(1 + 2j, complex128)), ir.Assign(z, ir.call("complex", imag, real)))
    split = split_complex(ir.Kernel("k", (), (), body, "cpu"))
    lets = [s.variable for s in split.body if isinstance(s, ir.Let)]
    assigned = [s.value for s in split.body if isinstance(s, ir.Assign)]
    assert assigned == lets
    assert len(lets) == 2


def test_positions_count_reals() -> None:
    index = ir.Variable("i", int64)
    buffer = ir.Buffer("T0", complex64, alignment=8)
    kernel = ir.Kernel(
        "k", (buffer, index), (), (ir.Let(ir.Variable("z", complex64), ir.Load(buffer, index)),), "cpu"
    )  # fmt: skip
    split = split_complex(kernel)
    assert (split.buffers[0].dtype, split.buffers[0].alignment) == (float32, 4)
    first, *parts = (s for s in split.body if isinstance(s, ir.Let))
    assert first.value == ir.call("mul", index, ir.Constant(2, int64))
    assert [s.value for s in parts] == [
        ir.Load(split.buffers[0], first.variable),
        ir.Load(split.buffers[0], ir.call("add", first.variable, ir.Constant(1, int64))),
    ]
