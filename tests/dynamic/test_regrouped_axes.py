"""Programs that merge and split axes around reductions and permutations give NumPy's results, with symbolic sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import ShapeDtype, fuse, options


def group_norm(x: Any, w: Any, g: int = 4) -> Any:
    n, c, h, width = x.shape
    y = x.reshape(n, g, -1)
    y = (y - y.mean(axis=-1, keepdims=True)) / np.sqrt(y.var(axis=-1, keepdims=True) + 1e-5)
    return y.reshape(n, c, h, width) * w[:, None, None] + 1


def group_norm_of_split_channels(x: Any, w: Any, g: int = 4) -> Any:
    n, c, h, width = x.shape
    y = x.reshape(n, g, c // g, h, width)
    y = (y - y.mean(axis=(2, 3, 4), keepdims=True)) / np.sqrt(y.var(axis=(2, 3, 4), keepdims=True) + 1e-5)
    return y.reshape(n, c, h, width) * w[:, None, None] + 1


def instance_norm(x: Any, w: Any) -> Any:
    n, c, h, width = x.shape
    y = x.reshape(n, c, h * width)
    y = (y - y.mean(axis=-1, keepdims=True)) / np.sqrt(y.var(axis=-1, keepdims=True) + 1e-5)
    return y.reshape(n, c, h, width) * w[:, None, None] + 1


def patches(x: Any, w: Any, p: int = 2) -> Any:
    n, c, h, width = x.shape
    y = x.reshape(n, c, h // p, p, width // p, p).transpose(0, 2, 4, 3, 5, 1)
    return y.reshape(n, (h // p) * (width // p), p * p * c) * 2.0


def heads(x: Any, w: Any, count: int = 4) -> Any:
    b, d, s, _ = x.shape
    q = x[:, :, :, 0].transpose(0, 2, 1)
    y = q.reshape(b, s, count, d // count).transpose(0, 2, 1, 3)
    y = np.exp(y - y.max(axis=-1, keepdims=True))
    y = y / y.sum(axis=-1, keepdims=True)
    return y.transpose(0, 2, 1, 3).reshape(b, s, d)


def pixel_shuffle(x: Any, w: Any, r: int = 2) -> Any:
    n, c, h, width = x.shape
    y = x.reshape(n, c // (r * r), r, r, h, width).transpose(0, 1, 4, 2, 5, 3)
    return y.reshape(n, c // (r * r), h * r, width * r) + 1.0


PROGRAMS = (group_norm, group_norm_of_split_channels, instance_norm, patches, heads, pixel_shuffle)


@pytest.mark.parametrize("mode", ["auto", "off"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_axes_that_are_merged_and_split_hold_what_numpy_leaves(program: Any, mode: str) -> None:
    fused = fuse(program, concretize_resize_extents=mode)
    for shape in ((2, 8, 6, 4), (3, 12, 4, 10), (1, 4, 2, 2)):
        x, w = np.random.default_rng(0).random(shape), np.arange(float(shape[1]))
        np.testing.assert_allclose(fused(x, w), program(x, w), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("program", [group_norm, group_norm_of_split_channels, instance_norm], ids=lambda f: f.__name__)
def test_a_reshape_between_a_reduction_and_its_readers_is_no_border(program: Any, target: str) -> None:
    sizes = ShapeDtype((3, 12, 6, 10), np.float32), ShapeDtype((12,), np.float32)
    with options(target=target):
        assert len(fuse(program).segments(*sizes)) == 1


def test_a_reshape_without_common_factors_is_computed_where_it_is_read() -> None:
    def function(x: Any) -> Any:
        y = x.reshape(x.shape[0], 6, -1)
        return (y - y.mean(axis=-1, keepdims=True)).reshape(x.shape) * np.arange(x.shape[1])[:, None]

    fused = fuse(function)
    for shape in ((2, 4, 9), (3, 4, 6), (2, 12, 5)):
        x = np.random.default_rng(1).random(shape)
        np.testing.assert_allclose(fused(x), function(x), rtol=1e-9, atol=1e-12)


def test_a_result_and_its_reshape_are_written_for_a_gpu_with_several_elements_a_thread() -> None:
    def function(x: Any) -> Any:
        y = x - x.mean(1, keepdims=True)
        return y.reshape(-1) + x.reshape(-1), y * 2

    with options(target="cuda"):
        for shape in ((4, 2), (64, 8)):
            assert fuse(function).segments(ShapeDtype(shape, np.float64))


MERGED_AXES: dict[str, Any] = {
    "repeated elements": lambda x: np.repeat(x, 5, axis=1), "repeated rows": lambda x: np.repeat(x, 3, axis=0),
    "interleaved": lambda x: np.stack([x, x * 2], -1).reshape(x.shape[0], -1),
    "upsampled": lambda x: np.repeat(np.repeat(x, 2, axis=0), 2, axis=1), "tiled": lambda x: np.tile(x, (2, 7)) + 1,
    "outer product": lambda x: (x[:, :, None] * x[0]).reshape(-1), "flat": lambda x: (x.reshape(-1) + 1).reshape(-1, 1),
    "flat rows": lambda x: (x.reshape(x.shape[0], 3, -1, 1) * 2).reshape(x.shape[0], 3, -1).reshape(x.shape),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED_AXES)
def test_axes_that_merge_are_loops_of_their_own_on_the_cpu(name: str) -> None:
    """No element of a pointwise kernel costs a quotient: loops run over the factors of an axis."""
    function = MERGED_AXES[name]
    fused = fuse(lambda x: function(x))
    for shape in ((4, 6), (7, 33), (1, 3), (5, 0)):
        for x in (np.random.default_rng(1).random(shape), np.asfortranarray(np.arange(np.prod(shape)).reshape(shape))):
            np.testing.assert_array_equal(fused(x), function(x))
    text = str(fused.segments(np.ones((7, 33)))[0].kernel)
    inner = text[text.index("for ") :]
    accesses = [line for line in inner.splitlines() if "for " not in line]
    assert not any("truncdiv" in line or "truncmod" in line for line in accesses)
