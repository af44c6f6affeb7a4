"""np.linspace, np.arange of floats and np.mgrid: elements with NumPy's bits, as products are rounded before the sum."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from tests.ways import BACKENDS, backend_of, on_host, run_whole, why_not
from tracefuse import FusionDefinition, fuse, options

GRIDS = (
    "np.linspace(a, b, n)", "np.linspace(a, b, n, endpoint=False)", "np.linspace(a, -b, n)[::-1]",
    "np.linspace(np.array([a, 1.0]), np.array([b, -2.5]), n)", "np.linspace(a, b + 1j, n)", "np.arange(a, b, h)",
    "np.mgrid[a:b:17j]", "np.mgrid[a:b:17j, 0:n]", "np.mgrid[0:n, a:b:h][1]", "np.ogrid[a:b:h, 0:n:2][0]",
    "np.mgrid[0:n:5j, a:b:3j]", "np.mgrid[a:b:1j]", "np.r_[a:b:7j]", "np.mgrid[-n:n:11j]",
)  # fmt: skip


@pytest.mark.parametrize("text", GRIDS)
def test_evenly_spaced_numbers_have_the_bits_of_numpys(text: str) -> None:
    draw = random.Random(text)
    function = eval(f"lambda a, b, n, h: {text}")
    fused = fuse(function)
    for n in (2, 3, 5, 17, 100, 501):
        a, b, h = draw.uniform(0.1, 3), draw.uniform(3, 9), draw.choice((0.1, 0.25, 0.3, 1 / 3))
        actual, expected = fused(a, b, n, h), function(a, b, n, h)
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("name", ["linspace", "logspace", "geomspace"])
def test_ends_that_are_arrays_without_axes_are_no_python_numbers(name: str) -> None:
    spaced = getattr(np, name)
    for dtype in (np.float32, np.int16, np.float64):
        ends = np.ones(3, dtype), np.array(2)
        expected = spaced(*ends, 4, axis=-1)
        actual = fuse(lambda a, b: spaced(a, b, 4, axis=-1))(*ends)
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)


def test_a_grid_with_a_stop_before_its_start_raises() -> None:
    fused = fuse(lambda a, b: np.mgrid[b:a:0.5, 0:3])
    with pytest.raises(ValueError, match="negative dimensions"):
        fused(1.0, 9.0)


def rounded_sums(dtype: str) -> FusionDefinition:
    with FusionDefinition() as fd:
        a, b, c = (fd.define_tensor(shape=[-1], dtype=dtype) for _ in range(3))
        fd.add_output(fd.ops.add(fd.ops.rounded_product(a, b), c))
    return fd


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "interpreter"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_addition_is_contracted_with_a_rounded_product(backend: str, dtype: Any) -> None:
    if reason := why_not(backend):
        pytest.skip(reason)
    draw = np.random.default_rng(3)
    a, b, c = (draw.uniform(-2, 2, 1000).astype(dtype) for _ in range(3))
    fd = rounded_sums(np.dtype(dtype).name)
    (actual,) = run_whole(fd.fusion, [a, b, c], backend_of(backend))
    np.testing.assert_array_equal(on_host(actual), a * b + c)


def test_the_text_of_a_gpu_kernel_rounds_the_product() -> None:
    for dtype, name in ((np.float32, "__fmul_rn("), (np.float64, "__dmul_rn(")):
        x = np.ones(5, dtype)
        with options(target="cuda"):
            (segment,) = rounded_sums(np.dtype(dtype).name).segment([x, x, x])
            assert name in segment.source
