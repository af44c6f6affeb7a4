"""Rules of primitives of random keys and bits, which are JAX's, bit for bit.

The implementation of a kind of keys is written in jax.numpy; its jaxpr is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse.dtypes import uint32
from tracefuse.frontend.jax_api.jaxpr_recording import Equation, is_key, primitive, words_of
from tracefuse.frontend.jax_api.movement_primitives import as_tensor

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


@primitive("threefry2x32")
def _threefry(e: Equation) -> list[Any]:
    """Threefry with two words of 32 bits and 20 rounds."""
    first, second, x, y = e.inputs
    last = e.emit("bitwise_xor", e.emit("bitwise_xor", first, second), np.uint32(PARITY))
    keys = (first, second, last)
    x, y = e.emit("add", x, first), e.emit("add", y, second)
    for group in range(5):
        for count in ROTATIONS[group % 2]:
            x = e.emit("add", x, y)
            left, right = (
                e.emit("left_shift", y, np.uint32(count)),
                e.emit("logical_right_shift", y, np.uint32(32 - count)),
            )
            y = e.emit("bitwise_xor", e.emit("bitwise_or", left, right), x)
        x = e.emit("add", x, keys[(group + 1) % 3])
        y = e.emit("add", y, e.emit("add", keys[(group + 2) % 3], np.uint32(group + 1)))
    return [x, y]


@primitive("iota_2x32_shape")
def _positions(e: Equation) -> list[Any]:
    """The row-major position of each element: its upper and its lower 32 bits."""
    shape, position = e.extents(e.parameters["shape"]), np.int64(0)
    for axis, extent in enumerate(shape):
        line = e.emit("iota", 0, 1, length=extent)
        flags = tuple(k != axis for k in range(len(shape)))
        line = e.emit("broadcast", line, is_broadcast_dim=flags)
        position = e.emit("add", e.emit("mul", position, e.recorder.scalar(extent)), line)
    position = e.emit("expand", as_tensor(position), shape=shape)
    halves = (e.emit("right_shift", position, np.int64(32)), e.emit("bitwise_and", position, np.int64(2**32 - 1)))
    return [e.emit("cast", half, dtype=uint32) for half in halves]


@primitive("random_wrap", "random_unwrap", "random_clone", of_keys=True)
def _words(e: Equation) -> Any:
    return list(e.inputs)


def _mapped(e: Equation, function: Callable[..., Any], rank: int) -> list[Any]:
    """Records a function of one key, mapped over the leading axes of all operands."""
    import jax

    for _ in range(rank):
        function = jax.vmap(function)
    return e.record_function(function, *map(words_of, e.operands))


@primitive("random_seed", of_keys=True)
def _random_seed(e: Equation) -> Any:
    return _mapped(e, e.parameters["impl"].seed, len(e.operands[0].shape))


@primitive("random_split", of_keys=True)
def _random_split(e: Equation) -> Any:
    (keys,), shape = e.operands, e.parameters["shape"]
    return _mapped(e, lambda key: keys.dtype._impl.split(key, shape), len(keys.shape))


@primitive("random_fold_in", of_keys=True)
def _random_fold_in(e: Equation) -> Any:
    """Keys and data broadcast against each other, as under vmap."""
    import jax

    keys, data = e.operands
    shape = jax.lax.broadcast_shapes(keys.shape, data.shape)
    fold_in = keys.dtype._impl.fold_in
    for _ in shape:
        fold_in = jax.vmap(fold_in)

    def of_all(words: Any, data: Any) -> Any:
        return fold_in(jax.numpy.broadcast_to(words, (*shape, words.shape[-1])), jax.numpy.broadcast_to(data, shape))

    return e.record_function(of_all, *map(words_of, e.operands))


@primitive("random_bits", of_keys=True)
def _random_bits(e: Equation) -> Any:
    (keys,), width, shape = e.operands, e.parameters["bit_width"], e.parameters["shape"]
    return _mapped(e, lambda key: keys.dtype._impl.random_bits(key, width, shape), len(keys.shape))


@primitive("random_gamma", of_keys=True)
def _random_gamma(e: Equation) -> Any:
    import jax

    implementation = next(operand.dtype._impl for operand in e.operands if is_key(operand))
    gamma, parameters = e.primitive, e.parameters

    def bind(words: Any, shape: Any) -> list[Any]:
        keys = jax.random.wrap_key_data(words, impl=implementation.name)
        return [gamma.bind(keys, shape, **parameters)]

    return e.by_jax(bind)
