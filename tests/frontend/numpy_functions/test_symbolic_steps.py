"""Steps, counts and digits that a call passes: values as NumPy's, without a trace for each of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ways import BACKENDS, backend_of, on_backend, on_host, run_whole, why_not
from tracefuse import FusionDefinition, fuse, grad, options


def with_written(x: Any, k: Any) -> Any:
    y = x.copy()
    y[1::k] = -1
    y[::-k] += 3
    return y


def with_written_argument(x: Any, k: Any) -> Any:
    x[k::k] *= 2
    return x.sum()


def with_view(x: Any, k: Any) -> Any:
    y = x * 2
    y[1:][::k][::2] = 5
    return y


USES: dict[str, Callable[[Any, Any], Any]] = {
    "x[::k]": lambda x, k: x[::k] * 2,
    "x[::-k]": lambda x, k: x[::-k] * 2,
    "x[k:-1:k + 1]": lambda x, k: x[k : -1 : k + 1] * 2,
    "x[n // 2::-2 * k]": lambda x, k: x[x.shape[0] // 2 :: -2 * k] * 2,
    "x[::k] of an outer product": lambda x, k: np.outer(x, x)[::k, 1 : -1 : k + 1] + 1,
    "sums of x[::k]": lambda x, k: np.outer(x, x)[:, ::k].sum(1),
    "x[::k][::2]": lambda x, k: x[::k][::2] * 2,
    "y[::k] = v": with_written,
    "x[k::k] *= v": with_written_argument,
    "a write through views": with_view,
    "arange(0, n, k)": lambda x, k: np.arange(0, x.shape[0], k) * 2,
    "arange(n, 0, -k)": lambda x, k: np.arange(x.shape[0], 0, -k),
    "delete": lambda x, k: np.delete(x, slice(1, None, k)) * 2,
    "delete backwards": lambda x, k: np.delete(np.outer(x, x), slice(-2, None, -k), 1),
    "insert": lambda x, k: np.insert(x, slice(0, -1, k), -1.0),
    "round": lambda x, k: np.round(x / 7, k % 50 - 1),
    "pad": lambda x, k: np.pad(x, (k % 50, 0)),
    "vander": lambda x, k: np.vander(x[:3], k % 50),
    "percentile": lambda x, k: np.percentile(x, k % 50) if x.size else x,
    "logspace": lambda x, k: np.logspace(0, 1, k % 50).size * x,
    "insert backwards": lambda x, k: np.insert(x, slice(None, None, -k), x[::-k] + 1),
}


def answer(function: Callable[..., Any], x: Any, k: Any) -> list[Any]:
    try:
        return [function(x, k), x]
    except (ValueError, ZeroDivisionError) as error:  # np.arange divides
        return ["an error", isinstance(error, ZeroDivisionError)]


@pytest.mark.parametrize("name", USES)
def test_a_step_that_a_call_passes_means_what_it_means_in_numpy_without_a_trace_for_each(name: str) -> None:
    function = USES[name]
    fused, fresh = fuse(function, target="reference"), np.arange(1.0, 30.0)
    for k in (2, 3, 4, 5, 6, 7, 8, 9, 10, 11):
        (actual, written), (expected, changed) = answer(fused, fresh.copy(), k), answer(function, fresh.copy(), k)
        np.testing.assert_array_equal(actual, expected)
        np.testing.assert_array_equal(written, changed)
    assert fused.cache_info().traces <= 2
    for k in (1, 0, -1, -2, -40, 40, 2**40, np.int64(3), -(2**63)):
        for size in (29, 8, 2, 1, 0):
            (actual, written), (expected, changed) = (answer(f, fresh[:size].copy(), k) for f in (fused, function))
            np.testing.assert_array_equal(actual, expected)
            np.testing.assert_array_equal(written, changed)


def test_kernels_of_a_step_serve_every_step() -> None:
    for function in (USES["x[::k]"], USES["y[::k] = v"], USES["x[k::k] *= v"]):
        fused, x = fuse(function), np.arange(40.0)
        for k in range(2, 16):
            np.testing.assert_array_equal(fused(x.copy(), k), function(x.copy(), k))
        assert fused.cache_info().compiles <= 4


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "interpreter"])
def test_kernels_read_and_write_slices_with_steps_that_are_scalars(backend: str) -> None:
    if reason := why_not(backend):
        pytest.skip(reason)
    with FusionDefinition() as fd:
        x, k = fd.define_tensor(shape=[-1, -1], dtype="float"), fd.define_scalar(dtype="int")
        bounds = {"start_indices": [1, 0], "end_indices": [fd.extent(-1), fd.extent(-2)], "strides": [k, 1]}
        part = fd.ops.slice(x, **bounds)
        fd.add_output(fd.ops.slice_scatter(x, fd.ops.mul(part, 2.0), **bounds))
        fd.add_output(fd.ops.sum(part, dims=[0]))
    values = np.arange(60.0).reshape(12, 5)
    for step in (1, 2, 3, 11, 30):
        written, total = run_whole(fd.fusion, [on_backend(backend, values), step], backend_of(backend))
        expected = values.copy()
        expected[1::step] *= 2
        np.testing.assert_array_equal(on_host(written), expected)
        np.testing.assert_array_equal(on_host(total), values[1::step].sum(0))


def test_a_step_of_zero_raises_whatever_was_traced_before() -> None:
    def update(x: Any, k: Any) -> Any:
        x[x.shape[0] : k : -k - 1] += 3
        return x * 1

    fused = fuse(update)
    for size, k in ((5, 1), (5, 3), (9, 2), (0, 2)):
        fused(np.arange(float(size)), k)
        for other in (0, 5, 9):
            with pytest.raises(ValueError, match="slice step cannot be zero"):
                fused(np.arange(float(other)), -1)


def test_a_rotation_is_a_trace_for_each_quarter_turn() -> None:
    fused = fuse(lambda x, k: np.rot90(x, k), target="reference")
    for k in range(-6, 9):
        np.testing.assert_array_equal(fused(np.eye(3, 5, 1), k), np.rot90(np.eye(3, 5, 1), k))
    assert fused.cache_info().traces == 4


def test_a_power_of_a_matrix_is_a_trace_for_each_number_of_bits() -> None:
    a = np.array([[0.5, 0.25], [-0.125, 1.0]])
    fused = fuse(lambda x, k: np.linalg.matrix_power(x, k), target="reference")
    for k in range(40):
        np.testing.assert_array_equal(fused(a, k), np.linalg.matrix_power(a, k))
    assert fused.cache_info().traces <= 8
    np.testing.assert_allclose(fused(a, -5), np.linalg.matrix_power(a, -5), rtol=1e-12)


def test_derivatives_of_slices_with_steps_that_are_arguments() -> None:
    slope = grad(lambda x, k: (x[1::k] ** 2).sum(), argnums=0)
    x = np.arange(1.0, 9.0)
    for k in (1, 2, 3, 7, 20):
        expected = np.zeros(8)
        expected[1::k] = 2 * x[1::k]
        np.testing.assert_array_equal(slope(x, k), expected)


def random_slice(draw: random.Random) -> str:
    bounds = ("", "", "1", "-2", "k", "-k", "n // 2", "j", "-j")
    steps = ("k", "-k", "k + 1", "2 * k", "-k - 1", "k * j", "2", "-1")
    return f"{draw.choice(bounds)}:{draw.choice(bounds)}:{draw.choice(steps)}"


@pytest.mark.parametrize("seed", range(6))
def test_random_slices_with_symbolic_bounds_and_steps(seed: int) -> None:
    draw = random.Random(seed)
    keys = [random_slice(draw) for _ in range(4)]
    text = f"lambda np, x, n, k, j: (x[{keys[0]}] * 2, x[{keys[1]}][{keys[2]}] + 1, np.delete(x, np.s_[{keys[3]}]))"
    plain = eval(text)
    fused = fuse(lambda x, k, j: plain(np, x, x.shape[0], k, j), target="reference")
    for _ in range(12):
        size, k, j = draw.choice((0, 1, 2, 5, 9, 16)), draw.choice((1, 2, 3, -1, -2, 0, 9, 2**62)), draw.randint(-1, 3)
        x = np.arange(float(size))
        try:
            expected = plain(np, x, size, k, j)
        except ValueError:
            with pytest.raises(ValueError, match="zero"):
                fused(x, k, j)
            continue
        with options(target="reference"):
            for actual, one in zip(fused(x, k, j), expected, strict=True):
                np.testing.assert_array_equal(actual, one)
