"""Rotary embeddings with a residual: one kernel that reads the same array at two places, for every sequence length.

    python examples/rope.py

The rotation swaps the halves of the last axis. Fused with the residual, each element is read where it is and where its
partner is; the loop is cut at the middle, so that no element is chosen by a test.
"""

from __future__ import annotations

import numpy as np

from tracefuse import fuse, options


def rope(x, cosine, sine):  # type: ignore[no-untyped-def]
    half = x.shape[-1] // 2
    rotated = np.concatenate((-x[..., half:], x[..., :half]), axis=-1)
    return x + (x * cosine + rotated * sine)


def arguments(length: int, width: int = 64) -> list[np.ndarray]:
    """(head, position, channel) and, for each position and channel, a cosine and a sine."""
    frequencies = 10000.0 ** (-np.arange(width // 2) / (width // 2))
    angles = np.arange(length)[:, None] * np.concatenate((frequencies, frequencies))
    x = np.random.default_rng(0).standard_normal((8, length, width))
    return [a.astype(np.float32) for a in (x, np.cos(angles), np.sin(angles))]


fused = fuse(rope)
small = arguments(16)

print("The segments of RoPE with its residual:")
print(fused.explain(*small))

print("\nIts kernel: the channels before the middle, then those after it:")
for segment in fused.segments(*small):
    print(segment.kernel)

print("\nAgainst NumPy in float64, one compile for every length:")
for length in (16, 17, 100, 1000):
    given = arguments(length)
    difference = np.abs(fused(*given) - rope(*(a.astype(np.float64) for a in given))).max()
    assert difference < 1e-5, "the result is wrong"
print(f"  4 lengths, {fused.cache_info().traces} trace, {fused.cache_info().compiles} plan")

print("\nThe last axis of x has an index for each read:")
for members in fused.indexing(*small).classes:
    if any(use.value == 0 and use.axis == 2 for use in members):
        print("  " + "; ".join(map(str, members)))

print("\nThe middle as an argument of the kernel, for widths that change:")
with options(concretize_resize_extents="off"):
    symbolic = fuse(rope)
    for width in (32, 64, 128):
        given = arguments(20, width)
        assert np.allclose(symbolic(*given), rope(*given), atol=1e-5)
    print(f"  3 widths, {symbolic.cache_info().compiles} plan")
