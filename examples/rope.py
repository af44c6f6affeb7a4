"""Rotary embeddings with a residual: one kernel for every sequence length, which reads one array at two places.

    python examples/rope.py

The rotation swaps the halves of the last axis. Fused with the residual, the kernel reads each element and its partner
in the other half. The loop is split at the middle, so that no element needs a branch.
"""

from __future__ import annotations

import numpy as np

from tracefuse import fuse, options


def rope(x, cosine, sine):  # type: ignore[no-untyped-def]
    half = x.shape[-1] // 2
    rotated = np.concatenate((-x[..., half:], x[..., :half]), axis=-1)
    return x + (x * cosine + rotated * sine)


def arguments(length: int, width: int = 64) -> list[np.ndarray]:
    """x of (head, position, channel), and a cosine and a sine of (position, channel)."""
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
    inputs = arguments(length)
    difference = np.abs(fused(*inputs) - rope(*(a.astype(np.float64) for a in inputs))).max()
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
        inputs = arguments(40, width)
        assert np.allclose(symbolic(*inputs), rope(*inputs), atol=1e-5)
    print(f"  3 widths, {symbolic.cache_info().compiles} plan")
