"""Every op in every dtype of its domain and every layout, against its NumPy reference implementation.

Generated from the registry: a new op of a known kind is tested without an edit here. Ops that NumPy and the kernels
compute alike are compared bit for bit (integers, truth values, movement, IEEE arithmetic), the others in float64 within
ULPS units in the last place; halves are computed in float32 and rounded once. Of complex numbers the units are those of
the magnitude, and infinities and NaN are compared part by part. All ops of a kind and dtype are one definition, since
they read the same operands and so become few kernels.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.session.samples import in_suite
from tests.ways import assert_equal_bits, assert_within, results
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.diagnostics.error_bounds import SMALLEST, UNIT, bounded_outputs
from tracefuse.dtypes import (
    ALL,
    COMPLEXES,
    DataType,
    DType,
    bfloat16,
    bool_,
    complex64,
    complex128,
    float16,
    float32,
    float64,
    int32,
    int64,
)  # fmt: skip
from tracefuse.frontend.fuse_decorator import fuse
from tracefuse.ir.fusion import Op
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ir.reference import evaluate
from tracefuse.ops import REGISTRY, Library, Movement, Pointwise, Reduction

PRINTED = tuple(in_suite((int32, float32), (bool_, int32, bfloat16, float32)))
"""The dtypes whose ops also run as what each segment prints."""

READ_BY_ALL = (bool_, int32, bfloat16, float32)
"""The dtypes that all backends read in contiguous arrays."""

LAYOUT_SHARES = 3
"""Each layout other than the contiguous one is read by one op in so many of a dtype, which take turns."""

DIAGONALS = (([1, 2], [5, 6], [1, 1]), ([0, 1], [6, 7], [2, 2]))
"""Bounds and steps of slices whose diagonals are taken."""

MOVED = (bool_, float16, bfloat16, float32, float64, complex64, complex128)
"""One dtype for each size of an element, the one that NumPy does not have, and those that are moved part by part."""

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
# values


def special(dtype: DType) -> Any:
    """Values that functions stumble over."""
    if dtype is bool_:
        return np.array([False, True, True])
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        middle = [v for v in (-9, -2, -1, 0, 1, 2, 3, 7, 64) if limits.min <= v]
        return np.array([limits.min, *middle, limits.max], dtype.numpy)
    if dtype.is_complex:
        edges = [(0.0, -0.0), (-0.0, 0.0), (np.inf, 1.0), (-np.inf, np.inf), (1.0, np.nan), (np.nan, np.nan)]
        some = [0.5 - 2.5j, 1e-3 + 1j, -20.5 + 1e-3j, -1e-3 - 88j]
        return np.array([*some, *(complex(a, b) for a, b in edges)]).astype(dtype.numpy)
    tiny = SMALLEST[dtype.name]
    values = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -7.25, 20.5, 88.0, 1e-3, tiny, -3 * tiny, np.inf, -np.inf, np.nan]
    return np.array(values).astype(dtype.numpy)


def pairs(dtype: DType) -> list[Any]:
    """Three operands in which every special value meets every other."""
    values = special(dtype)
    grid = np.meshgrid(values, values, indexing="ij")
    third = np.roll(grid[0], 1, axis=0)
    return [np.ascontiguousarray(g) for g in (*grid, third)]


def plain(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Numbers of moderate size."""
    random = np.random.default_rng(seed)
    if dtype is bool_:
        return random.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_integer:
        return random.integers(0 if dtype.kind == "uint" else -5, 6, shape).astype(dtype.numpy)
    values = random.uniform(-2, 2, shape)
    return (values + 1j * random.uniform(-2, 2, shape) if dtype.kind == "complex" else values).astype(dtype.numpy)


# ---------------------------------------------------------------------------------------------------------------------
# layouts: the same values, elsewhere in memory


def spread(array: Any, steps: tuple[int, ...]) -> Any:
    """Every axis with a step through a larger array."""
    wide = np.zeros([e * abs(s) for e, s in zip(array.shape, steps, strict=True)], array.dtype)
    view = wide[tuple(slice(None, None, s) for s in steps)]
    view[...] = array
    return view


def misaligned(array: Any) -> Any:
    memory = np.zeros(array.nbytes + 1, np.uint8)
    view = memory[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def broadcast(array: Any) -> Any:
    """Stride 0 along the axis on which the values are equal, if there is one; else along the first."""
    axis = next((k for k in range(array.ndim) if same(array, np.take(array, [0], k))), 0)
    return np.broadcast_to(np.take(array, [0], axis), array.shape)


def same(array: Any, other: Any) -> bool:
    return bool(((array == other) | (array != array)).all())


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": np.ascontiguousarray,
    "transposed": lambda a: a.T.copy().T,
    "strided": lambda a: spread(a, (2, 3)[: a.ndim] if a.ndim < 3 else (1, 2, 3)),
    "reversed": lambda a: spread(a, (-1,) * a.ndim),
    "broadcast": broadcast,
    "misaligned": misaligned,
}

ONE_WAY = {
    "segments": "how a definition splits does not depend on the layout of its arguments",
    "printed": "what a segment prints does not depend on the layout of its arguments",
}


def left_out(dtype: DType, layout: str) -> dict[str, str]:
    """The ways that a case leaves out, with the reason."""
    if layout != "contiguous":
        return ONE_WAY
    names = ", ".join(map(str, PRINTED))
    return {} if dtype in PRINTED else {"printed": f"a segment prints alike for every dtype; it runs for {names}"}


def laid_out(arrays: list[Any], layout: str) -> list[Any]:
    """The arrays in a layout; each array in the one after that of the array before, so that they mix."""
    names = list(LAYOUTS)
    first = names.index(layout)
    if layout == "contiguous":
        return arrays
    return [LAYOUTS[names[1 + (first - 1 + k) % (len(names) - 1)]](a) for k, a in enumerate(arrays)]


def skip_unless_possible(backend: str, layout: str) -> None:
    if backend == "cuda" and layout == "misaligned":
        pytest.skip("CuPy makes no arrays whose elements are not at multiples of their size")


# ---------------------------------------------------------------------------------------------------------------------
# a definition with every op of a kind

Maker = Callable[[FusionDefinition, list[Any], DType], list[Any]]


def call(name: str, *attributes: Any, **named: Any) -> Maker:
    """Calls the op on its operands and these attributes."""
    return lambda fd, operands, dtype: [getattr(fd.ops, name)(operands[0], *attributes, **named)]


MAKERS: dict[str, Maker] = {
    "integer_power": lambda fd, operands, dtype: [
        fd.ops.integer_power(operands[0], fd.ops.bitwise_and(operands[1], 3))
    ],
    "checked_position": lambda fd, operands, dtype: [
        fd.ops.checked_position(fd.ops.bitwise_and(operands[0], 3), fd.ops.add(fd.ops.bitwise_and(operands[1], 3), 4))
    ],
    "checked_range": lambda fd, operands, dtype: [
        fd.ops.checked_range(fd.ops.cast(fd.ops.gt(operands[0], 1), dtype), 0, 1)
    ],
    "addcmul": lambda fd, operands, dtype: [fd.ops.addcmul(*operands, 2)],
    "cast": lambda fd, operands, dtype: [fd.ops.cast(operands[0], d) for d in ALL],
    "iota": lambda fd, operands, dtype: [fd.ops.iota(operands[0].size(0), 1, 2, dtype)],
    "random_bits": lambda fd, operands, dtype: [
        fd.ops.random_bits(3, 2**40 + 1, [operands[0].size(0), 2], half) for half in (0, 1)
    ],
    "fresh_seed": lambda fd, operands, dtype: [],  # another value each time: tests/ops/test_random_numbers.py
    "extent": lambda fd, operands, dtype: [fd.ops.full([2], operands[0].size(0), DataType.Int)],
    "broadcast": call("broadcast", [False, True, False]),
    "expand": lambda fd, operands, dtype: [
        fd.ops.expand(fd.ops.broadcast(operands[0], [False, True, False]), [-1, 3, -1])
    ],
    "full": lambda fd, operands, dtype: [fd.ops.full([operands[0].size(0), 2], 1, dtype)],
    "permute": call("permute", [1, 0]),
    "squeeze": lambda fd, operands, dtype: [
        fd.ops.squeeze(fd.ops.broadcast(operands[0], [True, False, False]), [0])
    ],
    "reshape": call("reshape", [-1]),
    "slice": lambda fd, operands, dtype: [
        fd.ops.slice(operands[0], [1, 2], [5, 8]), fd.ops.slice(operands[0], [0, 1], [6, 9], [2, 3])
    ],
    "slice_scatter": lambda fd, operands, dtype: [
        fd.ops.slice_scatter(
            operands[0], fd.ops.slice(operands[1], start, end, step), start, end, step
        ) for start, end, step in (([1, 2], [5, 7], [1, 1]), ([0, 1], [6, 7], [2, 3]))
    ],
    "diagonal": lambda fd, operands, dtype: [
        fd.ops.diagonal(operands[0], start, end, step, [0, 1]) for start, end, step in DIAGONALS
    ],
    "diagonal_scatter": lambda fd, operands, dtype: [
        fd.ops.diagonal_scatter(
            operands[0], fd.ops.diagonal(operands[1], start, end, step, [0, 1]), start, end, step, [0, 1]
        ) for start, end, step in DIAGONALS
    ],
    "pad": lambda fd, operands, dtype: [
        fd.ops.pad(operands[0], [1, 2, 0, 3], 1), fd.ops.pad(operands[0], [-1, 2, 1, -2], 0)
    ],
    "cat": lambda fd, operands, dtype: [fd.ops.cat(operands[:2], 0), fd.ops.cat(operands[:2], 1)],
    "flip": lambda fd, operands, dtype: [fd.ops.flip(operands[0], [0]), fd.ops.flip(operands[0], [0, 1])],
    "roll": lambda fd, operands, dtype: [fd.ops.roll(operands[0], 2, 1), fd.ops.roll(operands[0], -7, 0)],
    "windows": lambda fd, operands, dtype: [fd.ops.windows(operands[0], 1, 3), fd.ops.windows(operands[0], 0, 2)],
    "take_along_axis": lambda fd, operands, dtype: [
        fd.ops.take_along_axis(operands[0], operands[2], 1), fd.ops.take_along_axis(operands[0], operands[2], 0)
    ],
    "unless_empty": lambda fd, operands, dtype: [
        fd.ops.unless_empty(fd.ops.slice(operands[0], [0, 0], [1, 1]), fd.ops.full([1, 1], 0, DataType.Int), 1)
    ],
    "take": lambda fd, operands, dtype: [
        fd.ops.take(operands[0], operands[2], 1), fd.ops.take(operands[0], operands[2], 0)
    ],
    "triu": lambda fd, operands, dtype: [fd.ops.triu(operands[0], d) for d in (-2, 0, 3)],
    "tril": lambda fd, operands, dtype: [fd.ops.tril(operands[0], d) for d in (-2, 0, 3)],
    **{
        name: call(name, 1) for name in ("cumsum", "cumprod", "cummax", "cummin", "sort", "argsort")
    },
    "scatter": lambda fd, operands, dtype: [
        fd.ops.scatter(operands[0], fd.ops.argsort(operands[1], 1), operands[1], 1)
    ],
    "index_put": lambda fd, operands, dtype: [
        fd.ops.index_put(
            operands[0], fd.ops.select(fd.ops.argsort(operands[1], 0), 0, 1), operands[1], how
        )
        for how in ("assign", "add")
    ],
    "index_put_accumulate": lambda fd, operands, dtype: [
        fd.ops.index_put_accumulate(
            operands[0], fd.ops.select(fd.ops.argsort(operands[1], 0), 0, 1),
            operands[1],
        )
    ],
    "matmul": lambda fd, operands, dtype: [fd.ops.matmul(operands[0], fd.ops.permute(operands[1], [1, 0]))],
    "permuted_matmul": lambda fd, operands, dtype: [
        fd.ops.permuted_matmul(operands[0], operands[1], a_dims=[0, 1], b_dims=[1, 0])
    ],
    "contract_axes": lambda fd, operands, dtype: [
        fd.ops.contract_axes(operands[0], operands[1], a_dims=[0, 1], b_dims=[1, 0], stack_axes=0, summed_axes=1),
        fd.ops.contract_axes(operands[0], operands[1], a_dims=[1, 0], b_dims=[1, 0], stack_axes=1, summed_axes=1),
        fd.ops.contract_axes(operands[0], operands[1], a_dims=[1, 0], b_dims=[1, 0], stack_axes=0, summed_axes=2),
    ],
    "linear": lambda fd, operands, dtype: [fd.ops.linear(operands[0], operands[1])],
    "grouped_mm": lambda fd, operands, dtype: [
        fd.ops.grouped_mm(operands[0], fd.ops.permute(operands[1], [1, 0]), fd.ops.iota(2, 3, 4))
    ],
}  # fmt: skip
"""How ops are called that take more than operands. An op that has attributes is named here."""


def maker_of(op: Op) -> Maker:
    """How an op is called; an error says what to add for an op that needs an entry."""
    if op.name in MAKERS:
        return MAKERS[op.name]
    if isinstance(op, Pointwise) and not op.attributes and op.arity in (1, 2, 3):
        return lambda fd, operands, dtype: [getattr(fd.ops, op.name)(*operands[: op.arity])]
    if isinstance(op, Reduction):
        return lambda fd, operands, dtype: []
    raise AssertionError(f"op {op.name}: add how it is called to MAKERS in {__file__}")


def ops_of(kind: type[Op], dtype: DType, layout: str = "contiguous") -> list[Op]:
    """The ops of a kind that compute in a dtype; movement takes them all. In other layouts in the suite: a share.

    How an operand is read does not depend on the op. Each backend reads with each share of the ops (see `readers`).
    """
    found = [op for op in REGISTRY.values() if isinstance(op, kind) and not isinstance(op, WholeArrayOp)]
    ops = [op for op in found if isinstance(op, Movement) or dtype in op.domain]  # type: ignore[attr-defined]
    if layout == "contiguous":
        return ops
    return in_suite(ops[(MOVED.index(dtype) - list(LAYOUTS).index(layout)) % LAYOUT_SHARES :: LAYOUT_SHARES], ops)


def definition(
    kind: type[Op], dtype: DType, layout: str = "contiguous", rank: int = 2, operands: int = 3
) -> tuple[FusionDefinition, list[Op]]:
    """A definition that applies the ops of a layout to `operands` inputs of a dtype, and the op of each output."""
    made_by: list[Op] = []
    with FusionDefinition() as fd:
        types = [dtype, dtype, int64 if kind is Movement else dtype][:operands]
        inputs = [fd.define_tensor([-1] * rank, True, d) for d in types]
        for op in ops_of(kind, dtype, layout):
            for result in maker_of(op)(fd, inputs, dtype):
                fd.add_output(result)
                made_by.append(op)
    return fd, made_by


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

    Kernels are long: all backends read some dtypes in contiguous arrays, and the CPU reads the others there with one of
    the two interpreters. One of IN_TURNS reads a dtype in each other layout, such that each reads every layout in two
    dtypes at least, and every dtype in a layout.
    """
    if layout != "contiguous":
        turn = IN_TURNS[(MOVED.index(dtype) + list(LAYOUTS).index(layout)) % len(IN_TURNS)]
        return (turn,) if turn != "cpu" else (turn, *INTERPRETED)
    if dtype in READ_BY_ALL:
        return IN_TURNS + INTERPRETED
    return ("cpu", "interpreter-cuda") if ALL.index(dtype) % 2 else ("cpu", *INTERPRETED)


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


@pytest.mark.parametrize(("dtype", "layout"), CASES, ids=str)
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
