"""Every op in every dtype of its domain and every layout, against its NumPy reference implementation.

Generated from the registry: a new op of a known kind is tested without an edit here. Ops that NumPy and the kernels
compute alike are compared bit for bit (integers, truth values, movement, IEEE arithmetic), the others in float64 within
ULPS units in the last place; halves are computed in float32 and rounded once. Of complex numbers the units are those of
the magnitude, and infinities and NaN are compared part by part. All ops of a kind and dtype are one definition, since
they read the same operands and so become few kernels.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from tests.ops.op_definitions import (
    LAYOUTS,
    MOVED,
    ONE_WAY,
    definition,
    laid_out,
    left_out,
    maker_of,
    misaligned,
    ops_of,
    pairs,
    plain,
)
from tests.session.samples import in_suite
from tests.ways import assert_equal_bits, assert_within, results
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.diagnostics.error_bounds import SMALLEST, UNIT, bounded_outputs
from tracefuse.dtypes import (
    ALL,
    COMPLEXES,
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float32,
    float64,
    int32,
    int64,
    uint64,
)  # fmt: skip
from tracefuse.frontend.fuse_decorator import fuse
from tracefuse.ir.fusion import Op
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ir.reference import evaluate
from tracefuse.ops import REGISTRY, Library, Movement, Pointwise, Reduction

READ_BY_ALL = (bool_, int32, bfloat16, float32)
"""The dtypes that all backends read in contiguous arrays."""
READ_BY_INTERPRETERS = (uint64, float64, complex64)
"""The others that the interpreter of CUDA kernels reads there: a wide one of each kind beside them."""

ULPS = {"pow": 8, "lgamma": 8, "erf": 4, "tanh": 4, "sigmoid": 4}
"""Units in the last place that an op may be off where it is not exact; 3 for the others."""

ROUNDED_IF_COMPLEX = ("mul", "div", "abs", "sqrt", "reciprocal", "addcmul", "sign")
"""Ops that are one rounding of real numbers, and several of complex ones."""

COMPLEX_ULPS = {"pow": 1000, "exp2": 100}
"""Units that an op of complex numbers may be off; 6 for the others. These two multiply their argument first."""

OTHER_INFINITIES = ("pow", "expm1")
"""Ops of complex numbers whose infinities and NaN are not NumPy's in every case: see docs/numerics.md."""

ZEROS_ARE_EQUAL = ("nextafter", "clamp", "maximum", "minimum", "max", "min", "floor_divide", "remainder")
"""NumPy itself gives either zero here, as the vector unit has it."""


# ---------------------------------------------------------------------------------------------------------------------
# layouts: the same values, elsewhere in memory


def skip_unless_possible(backend: str, layout: str) -> None:
    if backend == "cuda" and layout == "misaligned":
        pytest.skip("CuPy makes no arrays whose elements are not at multiples of their size")


# ---------------------------------------------------------------------------------------------------------------------
# a definition with every op of a kind


def assert_op(
    op: Op, actual: Any, native: Any, wide: Any, dtype: DType, what: str, operands: list[Any]
) -> None:  # fmt: skip
    """Bit for bit where the op is exact, else within the op's units in the last place of the result."""
    if dtype.is_complex and isinstance(op, Pointwise) and (op.name in ROUNDED_IF_COMPLEX or not op.exact):
        assert_complex_op(op, actual, native, wide, what, operands)
        return
    if not isinstance(op, Pointwise) or op.exact or not dtype.is_floating:
        assert_equal_bits(actual, native, what, signed_zeros=op.name not in ZEROS_ARE_EQUAL)
        return
    compute, result = dtype.compute, dtype
    bound = 2 * ULPS.get(op.name, 3) * UNIT[compute.name] * np.abs(wide) + 4 * SMALLEST[compute.name]
    if result.is_half:
        bound = bound + UNIT[result.name] * np.abs(wide) + SMALLEST[result.name]
    with np.errstate(all="ignore"):
        overflows = np.isinf(wide.astype(result.numpy).astype(np.float64)) & np.isfinite(wide)
        nearly = np.abs(wide) + bound > float(np.finfo(np.float64).max if result.itemsize == 8 else 3.4e38)
    assert_within(actual, wide, np.where(np.isinf(wide), 0.0, np.where(overflows | nearly, np.inf, bound)), what)


def assert_complex_op(op: Op, actual: Any, native: Any, wide: Any, what: str, operands: list[Any]) -> None:
    """Finite numbers within the op's units of their magnitude; else infinities and NaN where NumPy has them."""
    assert (actual.dtype, actual.shape) == (native.dtype, native.shape), what
    unit = np.finfo(native.dtype).eps
    largest = float(np.finfo(native.dtype).max)
    with np.errstate(all="ignore"):
        size = np.abs(wide)
        finite = np.isfinite(wide) & (size < largest / 8)
        bound = COMPLEX_ULPS.get(op.name, 6) * unit * (size + (op.name == "log1p")) + 8 * np.finfo(native.dtype).tiny
        wrong = finite & ~(np.abs(actual - wide) <= bound)
        if op.name in OTHER_INFINITIES:
            wrong &= np.logical_and.reduce([np.isfinite(x) for x in operands])
        else:
            for own, wanted in zip(parts_of(actual), parts_of(native), strict=True):
                alike = np.isnan(own) & np.isnan(wanted) | (own == wanted)
                wrong |= ~np.isfinite(native) & ~alike & ~(np.isfinite(wanted) & np.isclose(own, wanted, 20 * unit))
    if wrong.any():
        at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        raise AssertionError(
            f"{what}{list(map(int, at))}: {actual[at]!r} is not {wide[at]!r} ({int(wrong.sum())} wrong)"
        )


def parts_of(array: Any) -> tuple[Any, ...]:
    return (array.real, array.imag) if array.dtype.kind == "c" else (array,)


# ---------------------------------------------------------------------------------------------------------------------
# the tests


def test_every_op_has_a_way_to_be_called() -> None:
    for op in REGISTRY.values():
        if not isinstance(op, WholeArrayOp):  # tests/ops/test_whole_array_ops.py
            maker_of(op)


CASES = [(dtype, layout) for dtype in ALL for layout in LAYOUTS if layout == "contiguous" or dtype in MOVED]
"""Every dtype in contiguous arrays, and one dtype of each size in the others: elements of a size are read alike."""


IN_TURNS = ("cpu", "interpreter-cuda")
INTERPRETED = ("interpreter",)
"""It runs the kernels of the CPU, in some of the cases that the CPU reads (tests/conftest.py)."""


def readers(layout: str, dtype: DType) -> tuple[str, ...]:
    """The backends that read a dtype in a layout, CUDA devices aside.

    Kernels are long: all backends read some dtypes in contiguous arrays, and the CPU reads the others there, a few of
    them beside the interpreter of CUDA kernels. One of IN_TURNS reads a dtype in each other layout, such that each
    reads every layout in two dtypes at least, and every dtype in a layout.
    """
    if layout != "contiguous":
        turn = IN_TURNS[(MOVED.index(dtype) + list(LAYOUTS).index(layout)) % len(IN_TURNS)]
        return (turn,) if turn != "cpu" else (turn, *INTERPRETED)
    if dtype in READ_BY_ALL:
        return IN_TURNS + INTERPRETED
    return ("cpu", "interpreter-cuda") if dtype in READ_BY_INTERPRETERS else ("cpu", *INTERPRETED)


def skip_on_other_backend(backend: str, layout: str, dtype: DType) -> None:
    every = IN_TURNS + INTERPRETED
    if backend in every and backend not in in_suite(readers(layout, dtype), every):
        pytest.skip("another backend reads this dtype in this layout")


def test_backends_take_turns_such_that_each_reads_all_layouts_and_dtypes() -> None:
    read = {(b, layout, dtype) for dtype, layout in CASES for b in readers(layout, dtype) if b in IN_TURNS}
    assert {(backend, layout) for backend, layout, _ in read} == {(b, la) for b in IN_TURNS for la in LAYOUTS}
    assert {(b, d) for b, layout, d in read if layout != "contiguous"} == {(b, d) for b in IN_TURNS for d in MOVED}
    assert {d for b, layout, d in read if (b, layout) == ("cpu", "contiguous")} == {*ALL}


@pytest.mark.parametrize(("dtype", "layout"), CASES, ids=str)
def test_pointwise_ops_are_numpys_in_every_layout(backend: str, dtype: DType, layout: str) -> None:
    skip_unless_possible(backend, layout)
    if dtype.is_complex and layout != "contiguous":
        pytest.skip("long kernels: movement and reductions read complex numbers in this layout")
    if dtype is complex128 and backend == "interpreter":
        pytest.skip("long kernels: those of complex64 are the same programs")
    skip_on_other_backend(backend, layout, dtype)
    fd, made_by = definition(Pointwise, dtype, layout)
    check_ops(fd, made_by, laid_out(pairs(dtype), layout), backend, dtype, left_out(dtype, layout))


def check_ops(
    fd: FusionDefinition, made_by: list[Op], arguments: list[Any], backend: str, dtype: DType, without: Any
) -> None:
    native, wide = evaluate(fd.fusion, arguments), evaluate(fd.fusion, arguments, wide=True)
    for way, actual in results(fd.fusion, arguments, backend, contract=False, without=without):
        for op, own, exact, value in zip(made_by, actual, native, wide, strict=True):
            assert_op(op, own, exact, value, dtype, f"{op.name} of {dtype}, {backend}, {way}", arguments)


@pytest.mark.parametrize("dtype", in_suite((bool_, int32, bfloat16, float64, complex64), ALL), ids=str)
def test_pointwise_ops_of_arrays_without_axes(backend: str, dtype: DType) -> None:
    skip_on_other_backend(backend, "contiguous", dtype)
    with FusionDefinition() as fd:
        inputs = [fd.define_tensor([], True, dtype) for _ in range(3)]
        made_by = [
            op
            for op in ops_of(Pointwise, dtype)
            if op.name not in ("iota", "extent", "cast", "random_bits", "fresh_seed")
        ]
        for op in made_by:
            fd.add_output(maker_of(op)(fd, inputs, dtype)[0])
    arguments = [np.array(v, dtype.numpy) for v in (3, 2, 1)]
    reason = "the printed form of one op does not depend on the rank; it is seen with two axes"
    check_ops(fd, made_by, arguments, backend, dtype, {"printed": reason})


@pytest.mark.parametrize("kind", [Pointwise, Movement, Library], ids=lambda kind: kind.__name__)
def test_ops_of_arrays_without_elements(backend: str, kind: type[Op]) -> None:
    chosen = {Pointwise: MOVED[:-1], Library: MOVED[1:]}.get(kind, MOVED)
    # Kernels are not launched on nothing, so the types of their elements matter to host code alone.
    for dtype in in_suite((chosen[0], float32), chosen):
        with FusionDefinition() as fd:
            inputs = [fd.define_tensor([-1, -1], True, d) for d in (dtype, dtype, int64)]
            for op in ops_of(kind, dtype):
                # Bounds of slices, widths that cut and positions are for arrays with elements.
                if op.name not in (
                    "slice",
                    "slice_scatter",
                    "diagonal",
                    "diagonal_scatter",
                    "pad",
                    "windows",
                    "where",
                    "take_along_axis",
                    "take",
                    "unless_empty",
                    "index_put",
                    "index_put_accumulate",
                    "grouped_mm",
                ):
                    for result in maker_of(op)(fd, inputs, dtype):
                        fd.add_output(result)
        arguments = [np.zeros((4, 0), d.numpy) for d in (dtype, dtype, int64)]
        expected = evaluate(fd.fusion, arguments)
        for way, actual in results(fd.fusion, arguments, backend, without={**ONE_WAY}):
            for own, wanted in zip(actual, expected, strict=True):
                assert_equal_bits(own, wanted, f"{dtype}, {backend}, {way}")


@pytest.mark.parametrize(("dtype", "layout"), CASES, ids=str)
def test_reductions_are_numpys_in_every_layout_over_every_axis(backend: str, dtype: DType, layout: str) -> None:
    skip_unless_possible(backend, layout)
    skip_on_other_backend(backend, layout, dtype)
    choices: list[tuple[int, ...]] = [(1,), (0,), (0, 1), (0, 2), (1, 2), (2,)]
    axes = choices[(list(LAYOUTS).index(layout) + ALL.index(dtype)) % len(choices)]
    made_by = ops_of(Reduction, dtype, layout)
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1], True, dtype)
        for op in made_by:
            fd.add_output(getattr(fd.ops, op.name)(x, list(axes)))
        fd.add_output(fd.ops.sum(x, list(axes), keepdim=True))
    values = plain(dtype, (5, 4, 6))
    if dtype.is_floating or dtype.is_complex:
        values[0, 1, 2], values[2, 0, 0], values[2, 3, 5], values[1] = np.nan, np.inf, -np.inf, -0.0
    arguments = laid_out([values], layout)
    native, bounded = evaluate(fd.fusion, arguments), bounded_outputs(fd.fusion, arguments)
    for way, actual in results(fd.fusion, arguments, backend, without=left_out(dtype, layout)):
        for op, own, exact, (value, bound) in zip([*made_by, REGISTRY["sum"]], actual, native, bounded, strict=True):
            what = f"{op.name} of {dtype} over {axes}, {backend}, {way}"
            if (dtype.is_floating or dtype.is_complex) and op.name not in ("max", "min", "any", "all"):
                assert own.dtype == exact.dtype, what
                assert_within(own, value, bound, what)
            else:
                assert_equal_bits(own, exact, what, signed_zeros=op.name not in ZEROS_ARE_EQUAL)


@pytest.mark.parametrize("name", [op.name for op in REGISTRY.values() if isinstance(op, Reduction)])
def test_a_reduction_over_nothing_gives_its_neutral_element(backend: str, name: str) -> None:
    op = REGISTRY[name]
    assert isinstance(op, Reduction)
    if op.needs_elements:
        pytest.skip("has no neutral element: refused before any launch, which test_definition shows")
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(getattr(fd.ops, name)(x, [1]))
        fd.add_output(getattr(fd.ops, name)(x, [0]))
    arguments = [np.zeros((3, 0), np.float32)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Mean of empty slice")
        expected = evaluate(fd.fusion, arguments)
    for way, actual in results(fd.fusion, arguments, backend):
        for own, wanted in zip(actual, expected, strict=True):
            assert_equal_bits(own, wanted, f"{name}, {backend}, {way}")


@pytest.mark.parametrize(
    ("dtype", "layout"), in_suite([case for case in CASES if case[0] in (*MOVED, int32)], CASES), ids=str
)
def test_movement_ops_are_numpys_in_every_layout(backend: str, dtype: DType, layout: str) -> None:
    skip_unless_possible(backend, layout)
    skip_on_other_backend(backend, layout, dtype)
    fd, made_by = definition(Movement, dtype, layout)
    index = np.random.default_rng(3).integers(-6, 6, (6, 9))
    arguments = laid_out([plain(dtype, (6, 9)), plain(dtype, (6, 9), 1), index], layout)
    check_ops(fd, made_by, arguments, backend, dtype, left_out(dtype, layout))


@pytest.mark.parametrize(("dtype", "layout"), [case for case in CASES if case[0] is not bool_], ids=str)
def test_library_ops_are_numpys_in_every_layout(backend: str, dtype: DType, layout: str) -> None:
    skip_unless_possible(backend, layout)
    skip_on_other_backend(backend, layout, dtype)
    fd, made_by = definition(Library, dtype, layout, operands=2)
    arguments = laid_out([plain(dtype, (5, 7)), plain(dtype, (5, 7), 1)], layout)
    native, bounded = evaluate(fd.fusion, arguments), bounded_outputs(fd.fusion, arguments)
    for way, actual in results(fd.fusion, arguments, backend, without=left_out(dtype, layout)):
        for op, own, exact, (value, bound) in zip(made_by, actual, native, bounded, strict=True):
            what = f"{op.name} of {dtype}, {backend}, {way}"
            if dtype.is_floating or dtype.is_complex:
                assert_within(own, value, bound, what)
            else:
                assert_equal_bits(own, exact, what)


@pytest.mark.parametrize("dtype", COMPLEXES, ids=str)
def test_complex_numbers_have_numpys_order(backend: str, dtype: DType) -> None:
    parts = (-1.0, -0.0, 0.0, 2.0, np.inf, np.nan)
    values = np.array([complex(re, im) for re in parts for im in parts], dtype.numpy)
    left, right = (np.ascontiguousarray(g) for g in np.meshgrid(values, values, indexing="ij"))
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([-1, -1], True, dtype) for _ in range(2))
        for name in ("maximum", "minimum", "lt", "le", "gt", "ge"):
            fd.add_output(getattr(fd.ops, name)(x, y))
        fd.add_output(fd.ops.max(x, [0]))
        fd.add_output(fd.ops.min(y, [1]))
    functions = (np.maximum, np.minimum, np.less, np.less_equal, np.greater, np.greater_equal)
    with np.errstate(invalid="ignore"):
        numpys = [*(function(left, right) for function in functions), left.max(0), right.min(1)]
    for way, actual in results(fd.fusion, [left, right], backend):
        for own, wanted in zip(actual, numpys, strict=True):
            assert_equal_bits(own, wanted, f"{dtype}, {backend}, {way}", signed_zeros=False)


def test_integer_divisions_undefined_in_c_are_defined(backend: str) -> None:
    x = np.array([7, -7, 0, np.iinfo(np.int32).min, np.iinfo(np.int32).min], np.int32)
    y = np.array([0, 0, 0, -1, 0], np.int32)
    with FusionDefinition() as fd:
        a, b = (fd.define_tensor([-1], True, np.int32) for _ in range(2))
        fd.add_output(fd.ops.floor_divide(a, b))
        fd.add_output(fd.ops.remainder(a, b))
    low = np.iinfo(np.int32).min
    for _, (quotient, rest) in results(fd.fusion, [x, y], backend):
        assert quotient.tolist() == [0, 0, 0, low, 0]
        assert rest.tolist() == [0, 0, 0, 0, 0]


def test_fused_functions_keep_misaligned_and_read_only_arguments_as_they_are() -> None:
    x = misaligned(np.arange(12, dtype=np.float64).reshape(3, 4))
    x.flags.writeable = False
    np.testing.assert_array_equal(fuse(lambda v: v * 2 + 1)(x), x * 2 + 1)
