"""Rules of primitives that JAX or a Fourier transform computes as a library segment, and of small composed ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse.dtypes import DType, dtype_of
from tracefuse.frontend.jax_api.jaxpr_recording import PRIMITIVES, Equation, primitive
from tracefuse.frontend.jax_api.movement_primitives import as_tensor
from tracefuse.ops.host_primitives import FUNCTIONS

BY_JAX = (
    "cholesky_update", "geqrf", "geqp3", "householder_product", "ormqr", "schur", "hessenberg", "tridiagonal",
    "tridiagonal_solve", "symmetric_product", "igamma_grad_a", "random_gamma_grad",
    "rng_bit_generator", "rng_uniform", "approx_top_k",
    "reduce", "reduce_xor", "reduce_window", "select_and_scatter", "select_and_scatter_add",
    "select_and_gather_add", "ragged_dot_general", "cumlogsumexp",
)  # fmt: skip
"""Primitives that JAX computes in a segment of their own."""

PRIMITIVES.update((name, Equation.by_jax) for name in BY_JAX)


@primitive(*(name for name in FUNCTIONS if name not in ("cholesky", "lu", "triangular_solve")))
def _by_libraries(e: Equation) -> Any:
    return e.by_libraries()


@primitive("fft")
def _fft(e: Equation) -> Any:
    lengths = e.extents(e.parameters["fft_lengths"])
    kind = str(e.parameters["fft_type"]).rpartition(".")[2].lower()
    names = {"fft": "fftn", "ifft": "ifftn", "rfft": "rfftn", "irfft": "irfftn"}
    names |= {str(number): name for number, name in enumerate(names.values())}
    return e.emit(names[kind], as_tensor(e.inputs[0]), s=lengths, axes=tuple(range(-len(lengths), 0)))


@primitive("custom_linear_solve")
def _linear_solve(e: Equation) -> Any:
    lengths, begin, constants = e.parameters["const_lengths"], 0, {}
    for name in ("matvec", "vecmat", "solve", "transpose_solve"):
        count = getattr(lengths, name)
        constants[name] = e.inputs[begin : begin + count]
        begin += count
    return e.record(e.parameters["jaxprs"].solve, [*constants["solve"], *e.inputs[begin:]])


@primitive("platform_index")
def _platform_index(e: Equation) -> Any:
    """The position of the platform of the call; None is every other platform."""
    names = ("cpu",) if e.recorder.device is None else ("cuda", "gpu")
    platforms = list(e.parameters["platforms"])
    matching = [k for k, platform in enumerate(platforms) if platform is not None and set(platform).intersection(names)]
    return np.int32(matching[0] if matching else platforms.index(None))


# ---------------------------------------------------------------------------------------------------------------------
# bits


@primitive("bitcast_convert_type")
def _bitcast(e: Equation) -> Any:
    (source,), target = e.operands, dtype_of(e.parameters["new_dtype"])
    before, x = dtype_of(source.dtype), as_tensor(e.inputs[0])
    if before is target:
        return x
    if before.itemsize != target.itemsize:
        return e.by_jax()
    if before.is_integer and target.is_integer:
        return e.emit("cast", x, dtype=target)
    bits = 8 * target.itemsize
    if target.kind == "float" and before.is_integer and bits >= 32:
        return e.emit(f"float{bits}_of_bits", x)
    if before.kind == "float" and target.is_integer and bits >= 32:
        return e.emit("cast", e.emit(f"bits_of_float{bits}", x), dtype=target)
    return e.by_jax()


def _in_total_order(e: Equation, x: Any, dtype: DType) -> Any:
    """Integers in the order of floats that has -0 before +0, and NaN at the ends, by sign."""
    if not dtype.is_floating:
        return x
    bits = 64 if dtype.itemsize == 8 else 32
    kind = np.dtype(f"int{bits}").type
    wide = e.emit("cast", as_tensor(x), dtype=dtype_of(f"float{bits}"))
    signed = e.emit(f"bits_of_float{bits}", wide)
    negative = e.emit("right_shift", signed, kind(bits - 1))
    return e.emit("bitwise_xor", signed, e.emit("bitwise_and", negative, kind(2 ** (bits - 1) - 1)))


def _comparison(op: str) -> Any:
    return lambda e: e.emit(op, *(_in_total_order(e, x, dtype_of(e.operands[0].dtype)) for x in e.inputs))


PRIMITIVES.update((f"{op}_to", _comparison(op)) for op in ("eq", "lt", "le"))


def _unsigned(e: Equation) -> tuple[Any, int]:
    """The operand as an unsigned integer, and its width."""
    bits = 8 * dtype_of(e.operands[0].dtype).itemsize
    return e.emit("cast", as_tensor(e.inputs[0]), dtype=dtype_of(f"uint{bits}")), bits


def _ones(e: Equation, x: Any, bits: int) -> Any:
    """The number of ones among the bits of an unsigned integer: of pairs, of groups of four, of bytes, of all."""
    kind = np.dtype(f"uint{bits}").type

    def repeated(byte: int) -> Any:
        return kind(int.from_bytes(bytes([byte]) * (bits // 8), "little"))

    def shifted(value: Any, count: int) -> Any:
        return e.emit("logical_right_shift", value, kind(count))

    def masked(value: Any, byte: int) -> Any:
        return e.emit("bitwise_and", value, repeated(byte))

    x = e.emit("sub", x, masked(shifted(x, 1), 0x55))
    x = e.emit("add", masked(x, 0x33), masked(shifted(x, 2), 0x33))
    x = masked(e.emit("add", x, shifted(x, 4)), 0x0F)
    return x if bits == 8 else shifted(e.emit("mul", x, repeated(1)), bits - 8)


@primitive("population_count")
def _population_count(e: Equation) -> Any:
    return _ones(e, *_unsigned(e))


@primitive("clz")
def _leading_zeros(e: Equation) -> Any:
    """The zeros that remain after the highest one is copied to all lower bits."""
    x, bits = _unsigned(e)
    kind, count = np.dtype(f"uint{bits}").type, 1
    while count < bits:
        x = e.emit("bitwise_or", x, e.emit("logical_right_shift", x, kind(count)))
        count *= 2
    return e.emit("sub", kind(bits), _ones(e, x, bits))


@primitive("mulhi")
def _high_product(e: Equation) -> Any:
    """The upper half of a product of integers."""
    dtype = dtype_of(e.operands[0].dtype)
    if dtype.itemsize == 8:
        return e.by_jax()
    wide = dtype_of(f"{dtype.kind}{16 * dtype.itemsize}")
    a, b = (e.emit("cast", as_tensor(x), dtype=wide) for x in e.inputs)
    return e.emit("right_shift", e.emit("mul", a, b), wide.numpy.type(8 * dtype.itemsize))


@primitive("reduce_precision")
def _reduce_precision(e: Equation) -> Any:
    dtype, x = dtype_of(e.operands[0].dtype), as_tensor(e.inputs[0])
    formats = {(5, 10): "float16", (8, 7): "bfloat16", (8, 23): "float32", (11, 52): "float64"}
    name = formats.get((int(e.parameters["exponent_bits"]), int(e.parameters["mantissa_bits"])))
    if name is None:
        return e.by_jax()
    if dtype.itemsize <= dtype_of(name).itemsize and name != "float16":
        return x
    return e.emit("cast", e.emit("cast", x, dtype=dtype_of(name)), dtype=dtype)
