"""Tests `device=` of functions that create arrays, inside and outside of a trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import DeviceError, fuse, xp
from tracefuse.runtime.devices import arrays, cuda_arrays

X = np.ones((3, 4))
MAKERS = [
    lambda device: xp.zeros(4, device=device), lambda device: xp.full((2, 2), 3, device=device),
    lambda device: xp.arange(4, device=device), lambda device: xp.linspace(0, 1, 4, device=device),
    lambda device: xp.eye(4, device=device), lambda device: xp.asarray([1, 2], device=device),
]  # fmt: skip


@pytest.mark.parametrize("make", MAKERS)
def test_the_hosts_arrays_are_numpys(make: Any) -> None:
    for device in (None, "cpu"):
        assert type(make(device)) is np.ndarray
        assert type(fuse(lambda x, d=device: x.sum() + make(d))(X)) is np.ndarray


@pytest.mark.parametrize("make", MAKERS)
def test_a_gpu_without_cupy_is_refused(make: Any) -> None:
    if cuda_arrays.unavailable() is None:
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError):
        make("cuda:0")


def test_a_traced_array_says_where_it_is() -> None:
    seen = []

    def note(x: Any) -> Any:
        seen.append((x.device, xp.zeros(3, device=x.device).device))
        return x + 1

    fuse(note)(X)
    assert seen == [("cpu", "cpu")]


@pytest.mark.parametrize(
    "use",
    [lambda x: x + xp.zeros(4, device="cuda:0"), lambda x: np.zeros_like(x, device="cuda:0"), lambda x: x.to_device(0)],
)
def test_another_device_than_the_arrays_is_refused(use: Any) -> None:
    message = r"device=.* in a function whose arrays are on 'cpu' \(test_xp_device.py:\d+\)\n  hint: leave device= out"
    with pytest.raises(DeviceError, match=message):
        fuse(use)(X)


def test_a_function_without_arrays_makes_what_it_is_told() -> None:
    assert type(fuse(lambda: xp.arange(4) * 2)()) is np.ndarray
    if cuda_arrays.unavailable() is not None:
        with pytest.raises(DeviceError, match="CUDA kernels cannot run here"):
            fuse(lambda: xp.arange(4, device="cuda:0") * 2)()


@pytest.mark.parametrize(("name", "number"), [(None, None), ("cpu", None), ("cuda:3", 3), (2, 2)])
def test_devices_have_names_and_numbers(name: Any, number: int | None) -> None:
    assert arrays.device_number(name) == number


@pytest.mark.parametrize("name", ["gpu", "cuda:x", True, 1.5])
def test_unknown_devices_raise(name: Any) -> None:
    with pytest.raises(DeviceError, match=r"unknown device .*\n  hint: write 'cpu', 'cuda' or 'cuda:0'"):
        arrays.device_number(name)
