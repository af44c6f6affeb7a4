"""Views of arrays as another type, also of another size, and bytes in the opposite order: bit for bit as in NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

TYPES = ("bool", "uint8", "int16", "float32", "float64", "complex64")
SHAPES = ((3, 16), (2, 5), (0, 4), ())
PAIRS = [(own, target) for own, target in itertools.product(TYPES, TYPES[1:]) if own != target]


def bits(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Elements with random bits."""
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, count).astype(np.uint8)
    return memory.view(dtype).reshape(shape)


def outcome(function: Callable[[Any], Any], x: Any) -> Any:
    """The bytes of what a call returns and of its argument, or the kind of its error."""
    try:
        result = function(x)
    except (ValueError, TypeError) as error:
        return ValueError if isinstance(error, ValueError) else TypeError
    return result.dtype, result.shape, result.tobytes(), x.tobytes()


def written(target: str) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        y = x.copy()
        part = y.view(target)
        part[..., :1] = 5
        y[..., -1:] = x[..., :1]
        return part

    return function


@pytest.mark.parametrize("own", TYPES)
def test_views_as_another_type_have_the_bits_and_share_the_memory_of_the_array(own: str) -> None:
    for target in (target for one, target in PAIRS if one == own):
        for function in (lambda x, target=target: x.view(target), *([written(target)] if own != "bool" else [])):
            fused = fuse(function, target="reference")
            for shape in SHAPES if function.__name__ == "<lambda>" else SHAPES[:2]:
                x = bits(own, shape)
                assert outcome(fused, x.copy()) == outcome(function, x), (own, target, shape)


def test_views_follow_the_layout_of_the_array() -> None:
    function = lambda x: x.view(np.uint16)  # noqa: E731
    fused = fuse(function, target="reference")
    wide = bits("float32", (4, 8))
    for x in (wide, wide[:, :4], wide[::2, :6], wide[:, ::2], np.asfortranarray(wide), wide[:, :1]):
        assert outcome(fused, x)[:3] == outcome(function, x)[:3] if outcome(function, x) is not ValueError else True
        assert (outcome(fused, x) is ValueError) == (outcome(function, x) is ValueError)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float32", "int64", "complex128"])
def test_swapped_bytes_are_those_of_numpy(dtype: str) -> None:
    for function in (lambda x: x.byteswap(), lambda x: x.byteswap(inplace=True)):
        fused = fuse(function, target="reference")
        for shape in SHAPES:
            x = bits(dtype, shape)
            assert outcome(fused, x.copy()) == outcome(function, x.copy())


def test_kernels_compute_the_same_bits() -> None:
    def function(x: Any) -> Any:
        y = x.copy()
        y.view(np.uint32)[0, ::3] = 7
        return y.view(np.float32), x.byteswap(), x.view(np.uint8).view(np.complex128), y

    x = bits("float64", (3, 6))
    for made, right in zip(fuse(function)(x), function(x), strict=True):
        assert made.tobytes() == right.tobytes()
