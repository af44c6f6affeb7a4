"""Definitions with every op of a kind, on operands with special values in every layout of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.session.samples import in_suite
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.diagnostics.error_bounds import SMALLEST
from tracefuse.dtypes import (
    ALL,
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
from tracefuse.ir.fusion import Op
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ops import REGISTRY, Movement, Pointwise, Reduction

PRINTED = tuple(in_suite((int32, float32), (bool_, int32, bfloat16, float32)))
"""The dtypes whose ops also run as what each segment prints."""
LAYOUT_SHARES = 3
"""Each layout other than the contiguous one is read by one op in so many of a dtype, which take turns."""
DIAGONALS = (([1, 2], [5, 6], [1, 1]), ([0, 1], [6, 7], [2, 2]))
"""Bounds and steps of slices whose diagonals are taken."""
MOVED = (bool_, float16, bfloat16, float32, float64, complex64, complex128)
"""One dtype for each size of an element, the one that NumPy does not have, and those that are moved part by part."""


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
