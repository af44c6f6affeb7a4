"""Kinds and devices of arrays: which combine, and which are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tracefuse import DataType, DeviceError, FusionDefinition, ShapeDtype
from tracefuse.runtime.devices import arrays


def on_gpu(library: str, number: int) -> Any:
    """Something that says of itself what an array of a library on a GPU does."""
    names = {"cupy": "ndarray", "torch": "Tensor", "jax": "ArrayImpl"}
    cls = type(names[library], (), {"__module__": library if library != "jax" else "jaxlib._jax"})
    value = cls()
    if library == "cupy":
        value.device = SimpleNamespace(id=number)
    elif library == "torch":
        value.device = SimpleNamespace(type="cuda", index=number)
    else:
        value.devices = lambda: (SimpleNamespace(platform="gpu", local_hardware_id=number),)
    return value


HOST = np.ones(3)


@pytest.mark.parametrize("library", ["cupy", "torch", "jax"])
def test_arrays_on_a_gpu_have_its_number(library: str) -> None:
    assert arrays.place_of([(on_gpu(library, 2), "x"), (on_gpu(library, 2), "y")]) == (library, 2)


def test_arrays_on_the_host_have_no_number() -> None:
    assert arrays.place_of([(HOST, "x")]) == ("numpy", None)
    assert arrays.place_of([]) == ("numpy", None)


def test_a_shape_dtype_combines_with_arrays_of_any_device() -> None:
    assert arrays.place_of([(ShapeDtype((3,), "float32"), "s"), (on_gpu("cupy", 1), "x")]) == ("cupy", 1)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (
            [(on_gpu("cupy", 0), "x"), (on_gpu("cupy", 1), "y")],
            "arrays on two devices: x is on GPU 0, y is on GPU 1\n  hint: copy one of them to the other's device",
        ),
        (
            [(on_gpu("jax", 0), "x"), (HOST, "w")],
            "arrays on two devices: x is on GPU 0, w is on the host\n  hint: copy one of them to the other's device",
        ),
        (
            [(on_gpu("cupy", 0), "x"), (HOST, "w")],
            "w is a NumPy array beside CuPy arrays (x)\n  hint: pass cupy.asarray(w)",
        ),
        (
            [(on_gpu("jax", 0), "x"), (on_gpu("torch", 0), "y")],
            "arrays of two libraries: x is jax, y is torch\n  hint: convert one of them",
        ),
    ],
    ids=["two GPUs", "host and GPU", "NumPy and CuPy", "two libraries"],
)
def test_kinds_and_devices_that_cannot_be_combined_are_refused(named: list[tuple[Any, str]], message: str) -> None:
    with pytest.raises(DeviceError) as caught:
        arrays.place_of(named)
    assert f"{caught.value.message}\n  hint: {caught.value.hint}" == message


def test_another_accelerator_is_refused() -> None:
    tensor = on_gpu("torch", 0)
    tensor.device = SimpleNamespace(type="mps", index=None)
    with pytest.raises(DeviceError, match="an array is on 'mps'"):
        arrays.place_of([(tensor, "x")])


def test_a_definition_that_took_arrays_of_jax_takes_others_without_checking_them_in_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        y = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        fd.add_output(fd.ops.mul(x, y))
    fd.execute([jax.numpy.ones((2, 3)), jax.numpy.ones((2, 3))])
    with monkeypatch.context() as patched:
        patched.setattr("tracefuse.compiler.placed_fusion.check_arguments", lambda *_: pytest.fail("checked in full"))
        for rows in (2, 5):
            values = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
            (result,) = fd.execute([jax.numpy.asarray(values), jax.numpy.asarray(values)])
            assert isinstance(result, jax.Array)
            np.testing.assert_array_equal(np.asarray(result), values * values)
            (own,) = fd.execute([values, values])
            assert type(own) is np.ndarray
    with pytest.raises(ValueError, match="extents differ"):
        fd.execute([jax.numpy.ones((2, 3)), jax.numpy.ones((3, 3))])
