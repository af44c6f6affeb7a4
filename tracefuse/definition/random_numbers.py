"""Random numbers of `fd.ops`: uniform and normal samples, computed from random bits.

The arithmetic is the same on every target. A seed and an offset determine a sample; without a seed, each call of the
definition uses a new one. Everything here is decomposed into other operations of `fd.ops`.
"""

from __future__ import annotations

import math
from typing import Any

from tracefuse.dtypes import DataType, DType, dtype_of
from tracefuse.errors import DtypeError

DIGITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
"""Significant bits by dtype. Uniform samples are multiples of 2**-digits, so none rounds to 1."""


def uniform(
    ops: Any, minval: Any, maxval: Any, shape: Any, rng_seed: Any = None, rng_offset: Any = None,
    dtype: Any = DataType.Float,
) -> Any:  # fmt: skip
    """A tensor of `shape` with samples uniform in [minval, maxval), which are host scalars.

    rng_seed, rng_offset: integers; the same pair gives the same samples. Without a seed each call uses a new one.
    Raises DtypeError for a dtype that is not floating.
    """
    kind = _float_type("uniform", dtype)
    unit = _sample_unit(ops, _seed_and_offset(ops, rng_seed, rng_offset), shape, 0, kind, DIGITS[kind.name])
    return _to_tensor(ops, _scale_and_shift(ops, unit, minval, _difference(ops, minval, maxval)), shape, kind)


def normal(
    ops: Any, mean: Any, std: Any, shape: Any, rng_seed: Any = None, rng_offset: Any = None,
    dtype: Any = DataType.Float,
) -> Any:  # fmt: skip
    """A tensor of `shape` with normal samples of the given mean and standard deviation; parameters as in `uniform`."""
    kind = _float_type("normal", dtype)
    compute = kind.compute
    state, digits = _seed_and_offset(ops, rng_seed, rng_offset), DIGITS[compute.name]
    # Box-Muller: the radius needs a sample in (0, 1], the angle one in [0, 1).
    radius = ops.sqrt(ops.mul(ops.log(ops.sub(1.0, _sample_unit(ops, state, shape, 0, compute, digits))), -2.0))
    angle = ops.cos(ops.mul(_sample_unit(ops, state, shape, 1, compute, digits), 2 * math.pi))
    return _to_tensor(ops, _scale_and_shift(ops, ops.mul(radius, angle), mean, std), shape, kind)


def rand_like(ops: Any, arg: Any, rng_seed: Any = None, rng_offset: Any = None) -> Any:
    """Uniform samples in [0, 1) with the shape and dtype of `arg`."""
    return uniform(ops, 0.0, 1.0, arg.ir_value.shape, rng_seed, rng_offset, arg.dtype)


def randn_like(ops: Any, arg: Any, rng_seed: Any = None, rng_offset: Any = None) -> Any:
    """Standard normal samples with the shape and dtype of `arg`."""
    return normal(ops, 0.0, 1.0, arg.ir_value.shape, rng_seed, rng_offset, arg.dtype)


def _seed_and_offset(ops: Any, seed: Any, offset: Any) -> tuple[Any, Any]:
    """Fills in the defaults: a fresh seed and offset 0."""
    return ops.fresh_seed() if seed is None else seed, 0 if offset is None else offset


def _float_type(name: str, dtype: Any) -> DType:
    kind = dtype_of(DataType.Float if dtype is DataType.Null or dtype is None else dtype)
    if not kind.is_floating:
        raise DtypeError(f"{name} does not generate {kind}", hint="generate Float and cast the result")
    return kind


def _sample_unit(ops: Any, state: tuple[Any, Any], shape: Any, half: int, kind: DType, digits: int) -> Any:
    """Samples multiples of 2**-digits, uniform in [0, 1)."""
    seed, offset = state
    bits = ops.logical_right_shift(ops.random_bits(seed, offset, shape, half), 64 - digits)
    return ops.mul(ops.cast(bits, kind), 2.0**-digits)


def _difference(ops: Any, low: Any, high: Any) -> Any:
    constants = [ops.recording.constant_of(bound) for bound in (low, high)]
    return ops.sub(high, low) if None in constants else constants[1] - constants[0]


def _scale_and_shift(ops: Any, unit: Any, start: Any, width: Any) -> Any:
    """Returns start + width * unit, skipping a width of 1 and a start of 0."""
    scaled = unit if ops.recording.constant_of(width) == 1 else ops.mul(unit, width)
    return scaled if ops.recording.constant_of(start) == 0 else ops.add(scaled, start)


def _to_tensor(ops: Any, samples: Any, shape: Any, kind: DType) -> Any:
    """Casts the samples to `kind`; a shape without axes gives a tensor, not a scalar."""
    cast = samples if dtype_of(samples.dtype) is kind else ops.cast(samples, kind)
    return cast if hasattr(cast, "ndim") else ops.full(shape, cast, kind)
