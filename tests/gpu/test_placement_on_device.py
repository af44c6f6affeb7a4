"""Arrays on GPUs run where they are: on the second GPU too, never on two, whatever device is the current one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.ways import why_not
from tracefuse import DataType, DeviceError, FusionDefinition, fuse, xp

pytestmark = pytest.mark.gpu
REASON = why_not("cuda")
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

import cupy  # noqa: E402

X = np.arange(12, dtype=np.float32).reshape(3, 4)
COUNT = cupy.cuda.runtime.getDeviceCount()
two = pytest.mark.skipif(COUNT < 2, reason="one GPU")


def centred(x: Any, w: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) * w


def on(device: int, array: Any) -> Any:
    with cupy.cuda.Device(device):
        return cupy.asarray(array)


def definition() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.add(x, 1.0))
    return fd


@pytest.mark.parametrize("device", range(COUNT))
def test_arrays_run_on_their_own_gpu(device: int) -> None:
    f = fuse(centred)
    for _ in range(3):
        result = f(on(device, X), on(device, X))
        assert type(result) is cupy.ndarray
        assert result.device.id == device
        np.testing.assert_allclose(result.get(), centred(X, X), rtol=1e-6)
    assert f.cache_info()[:2] == (1, 1)
    assert cupy.cuda.runtime.getDevice() == 0


@pytest.mark.parametrize("device", range(COUNT))
def test_definitions_run_on_their_inputs_gpu(device: int) -> None:
    fd = definition()
    for _ in range(2):
        (result,) = fd.execute([on(device, X)])
        assert result.device.id == device
        np.testing.assert_array_equal(result.get(), X + 1)
    (host,) = fd.execute([X])
    assert type(host) is np.ndarray


@two
def test_one_function_serves_several_gpus() -> None:
    f = fuse(centred)
    for device in (0, 1, 0, 1):
        assert f(on(device, X), on(device, X)).device.id == device
    assert f.cache_info().traces == 2


@two
def test_arrays_on_two_gpus_are_refused() -> None:
    f = fuse(centred)
    f(on(0, X), on(0, X))
    with pytest.raises(DeviceError, match="arrays on two devices: x is on GPU 0, w is on GPU 1"):
        f(on(0, X), on(1, X))


def test_host_and_gpu_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"w is a NumPy array beside CuPy arrays \(x\) \(test_.*\n  hint: pass cupy"):
        fuse(centred)(on(0, X), X)
    with pytest.raises(DeviceError, match="ndarray is no CuPy array, and the function is for CUDA device 0"):
        fuse(centred, target="cuda")(X, X)
    with pytest.raises(DeviceError, match="a CuPy array of device 0 is given to a function for the CPU"):
        fuse(centred, target="cpu")(on(0, X), on(0, X))


def test_shapes_show_the_kernels_that_arrays_run() -> None:
    f = fuse(centred)
    with tracefuse.options(target="cuda"):
        (shown,) = f.segments(*[tracefuse.ShapeDtype(X.shape, "float32")] * 2)
    (run,) = f.segments(on(0, X), on(0, X))
    assert shown.kernel == run.kernel
    assert 'extern "C" __global__' in run.source


def test_functions_that_make_arrays_follow_the_device() -> None:
    assert type(xp.zeros(3, device="cuda")) is cupy.ndarray
    assert type(xp.asarray(on(0, X))) is cupy.ndarray
    made = fuse(lambda: xp.arange(4, device="cuda:0") * 2)
    for _ in range(2):
        np.testing.assert_array_equal(made().get(), np.arange(4) * 2)
    beside = fuse(lambda x: x + xp.ones(4, dtype=np.float32, device=x.device))
    np.testing.assert_array_equal(beside(on(0, X)).get(), X + 1)


def test_cupys_random_functions_warn() -> None:
    with pytest.warns(UserWarning, match=r"draws random numbers from cupy.random while"):
        fuse(lambda x: x + cupy.random.rand(4))(on(0, X))
