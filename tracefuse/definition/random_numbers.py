"""Random numbers of `fd.ops`: uniform and normal, made of random bits by arithmetic that every target does alike.

A draw is named by its seed and its offset. Without a seed each call of the definition draws a fresh one.

Knows: `fd.ops` by name. Must not know: rows, kernels, how bits are made.
"""

from __future__ import annotations

import math
from typing import Any

from tracefuse.dtypes import DataType, DType, dtype_of
from tracefuse.errors import DtypeError

DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""Bits of a number of each type: uniform numbers are multiples of the distance below 1, so that none rounds to 1."""


def uniform(
    ops: Any, minval: Any, maxval: Any, shape: Any, rng_seed: Any = None, rng_offset: Any = None,
    dtype: Any = DataType.Float,
) -> Any:  # fmt: skip
    """Numbers of `shape`, uniform between minval and maxval; both are host scalars.

    rng_seed, rng_offset: integers that name the draw; the same two give the same numbers. Without a seed each call
    draws another one.
    """
    kind = _float_type("uniform", dtype)
    unit = _unit(ops, _named_draw(ops, rng_seed, rng_offset), shape, 0, kind, DIGITS[kind.name])
    return _tensor(ops, _placed(ops, unit, minval, _difference(ops, minval, maxval)), shape, kind)


def normal(
    ops: Any, mean: Any, std: Any, shape: Any, rng_seed: Any = None, rng_offset: Any = None,
    dtype: Any = DataType.Float,
) -> Any:  # fmt: skip
    """Numbers of `shape`, normal with this mean and standard deviation; parameters as for `uniform`."""
    kind = _float_type("normal", dtype)
    compute = kind.compute
    draw, digits = _named_draw(ops, rng_seed, rng_offset), DIGITS[compute.name]
    # Box and Muller: a radius from a number in (0, 1], an angle from one in [0, 1).
    radius = ops.sqrt(ops.mul(ops.log(ops.sub(1.0, _unit(ops, draw, shape, 0, compute, digits))), -2.0))
    angle = ops.cos(ops.mul(_unit(ops, draw, shape, 1, compute, digits), 2 * math.pi))
    return _tensor(ops, _placed(ops, ops.mul(radius, angle), mean, std), shape, kind)


def rand_like(ops: Any, arg: Any, rng_seed: Any = None, rng_offset: Any = None) -> Any:
    """Numbers uniform between 0 and 1, of the shape and type of `arg`."""
    return uniform(ops, 0.0, 1.0, arg._value.shape, rng_seed, rng_offset, arg.dtype)


def randn_like(ops: Any, arg: Any, rng_seed: Any = None, rng_offset: Any = None) -> Any:
    """Numbers normal with mean 0 and standard deviation 1, of the shape and type of `arg`."""
    return normal(ops, 0.0, 1.0, arg._value.shape, rng_seed, rng_offset, arg.dtype)


def _named_draw(ops: Any, seed: Any, offset: Any) -> tuple[Any, Any]:
    """(seed, offset)."""
    return ops.fresh_seed() if seed is None else seed, 0 if offset is None else offset


def _float_type(name: str, dtype: Any) -> DType:
    kind = dtype_of(DataType.Float if dtype is DataType.Null or dtype is None else dtype)
    if not kind.is_floating:
        raise DtypeError(f"{name} makes no {kind}", hint="draw Float and cast the result")
    return kind


def _unit(ops: Any, draw: tuple[Any, Any], shape: Any, half: int, kind: DType, digits: int) -> Any:
    """Multiples of 2**-digits, uniform in [0, 1)."""
    seed, offset = draw
    bits = ops.logical_right_shift(ops.random_bits(seed, offset, shape, half), 64 - digits)
    return ops.mul(ops.cast(bits, kind), 2.0**-digits)


def _difference(ops: Any, low: Any, high: Any) -> Any:
    numbers = [ops._number(bound) for bound in (low, high)]
    return ops.sub(high, low) if None in numbers else numbers[1] - numbers[0]


def _placed(ops: Any, made: Any, start: Any, width: Any) -> Any:
    """start + width * made, without what changes nothing."""
    scaled = made if ops._number(width) == 1 else ops.mul(made, width)
    return scaled if ops._number(start) == 0 else ops.add(scaled, start)


def _tensor(ops: Any, made: Any, shape: Any, kind: DType) -> Any:
    """The numbers as a tensor of `kind`, also where the shape has no axes."""
    cast = made if dtype_of(made.dtype) is kind else ops.cast(made, kind)
    return cast if hasattr(cast, "ndim") else ops.full(shape, cast, kind)
