"""Random ops: the bits of a counter, from which uniform and normal numbers are computed.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011: ten rounds of two
multiplications turn a key and a counter of four words into four random words. The key is the seed; the counter is the
row-major position of the element and the offset. So every element is a pure function of seed, offset and position:
the same on every target, in every order, however often and wherever it is computed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse.dtypes import int64, uint64
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.ops.families import register

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF


def _philox_code() -> str:
    """Scalar code in 64-bit words that hold 32 bits each; a is the seed, b the offset."""
    lines = [
        f"c0 = index & {_WORD}", "c1 = index >> 32", f"c2 = b & {_WORD}", "c3 = b >> 32", f"k0 = a & {_WORD}",
        "k1 = a >> 32",
    ]  # fmt: skip
    for turn in range(_ROUNDS):
        lines += [f"p = c0 * {_MULTIPLIERS[0]}", f"q = c2 * {_MULTIPLIERS[1]}"]
        lines += ["c0 = (q >> 32) ^ c1 ^ k0", f"c1 = q & {_WORD}", "c2 = (p >> 32) ^ c3 ^ k1", f"c3 = p & {_WORD}"]
        if turn < _ROUNDS - 1:
            lines += [f"k0 = (k0 + {_KEY_STEPS[0]}) & {_WORD}", f"k1 = (k1 + {_KEY_STEPS[1]}) & {_WORD}"]
    return "\n".join([*lines, "c0 | (c1 << 32) if half == 0 else c2 | (c3 << 32)"])


def philox(seed: Any, offset: Any, position: Any) -> tuple[Any, Any, Any, Any]:
    """The four random words, as uint64 arrays, of uint64 arrays."""
    word, step = np.uint64(_WORD), np.uint64(32)
    c0, c1, c2, c3 = position & word, position >> step, offset & word, offset >> step
    k0, k1 = seed & word, seed >> step
    for _ in range(_ROUNDS):
        p, q = c0 * np.uint64(_MULTIPLIERS[0]), c2 * np.uint64(_MULTIPLIERS[1])
        c0, c1, c2, c3 = (q >> step) ^ c1 ^ k0, q & word, (p >> step) ^ c3 ^ k1, p & word
        k0, k1 = (k0 + np.uint64(_KEY_STEPS[0])) & word, (k1 + np.uint64(_KEY_STEPS[1])) & word
    return c0, c1, c2, c3


def _random_bits(seed: Any, offset: Any, shape: Sequence[int], half: int) -> Any:
    position = np.arange(int(np.prod(shape, dtype=np.int64)), dtype=np.uint64).reshape(tuple(shape))
    seeds, offsets = (np.asarray(v).astype(np.uint64) for v in (seed, offset))
    words = philox(seeds, offsets, position)
    return words[2 * half] | words[2 * half + 1] << np.uint64(32)


random_bits = register(
    Pointwise(
        name="random_bits", arity=2, domain=(uint64,), scalar=_philox_code(), numpy=_random_bits, exact=True,
        expensive=True, attributes=(("shape", ()), ("half", 0)),
        extra_shape=lambda attributes: tuple(attributes["shape"]),
        doc="64 random bits an element: one `half` of the Philox4x32-10 block of a seed, an offset and its position.",
    )
)  # fmt: skip


def _fresh_seed() -> Any:
    """63 bits from the operating system's generator."""
    return np.int64(secrets.randbits(63))


fresh_seed = register(
    Pointwise(
        name="fresh_seed", arity=0, domain=(int64,), scalar="0", numpy=_fresh_seed, exact=True, distinct=True,
        varies=True, doc="A host scalar that is another random integer in every call.",
    )
)  # fmt: skip
