"""Tests the errors of the CUDA layer without CuPy or a GPU."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tracefuse.dtypes import float32
from tracefuse.errors import CompileError, DeviceError
from tracefuse.kernel.cuda import nvrtc
from tracefuse.runtime.devices import cuda_arrays


@pytest.fixture
def no_cupy(monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] in ("cupy", "cupy_backends")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cupy", None)


def test_without_cupy_no_object_is_a_gpu_array_and_nothing_is_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    assert not cuda_arrays.is_array(np.zeros(3))
    assert "cupy" not in sys.modules


@pytest.mark.usefixtures("no_cupy")
def test_without_cupy_the_error_names_what_to_install():
    with pytest.raises(DeviceError, match=r"(?s)CuPy cannot be imported.*install tracefuse\[cuda13\]"):
        cuda_arrays.empty((3,), float32)
    assert "CuPy cannot be imported" in str(cuda_arrays.unavailable())


@pytest.mark.usefixtures("no_cupy")
def test_without_nvrtc_the_error_says_where_it_was_looked_for(monkeypatch):
    monkeypatch.setattr(nvrtc, "library_candidates", lambda: ["/nowhere/libnvrtc.so"])
    nvrtc.nvrtc.cache_clear()
    try:
        with pytest.raises(
            CompileError, match=r"(?s)NVRTC.* was not found: .*/nowhere/libnvrtc\.so.*nvidia-cuda-nvrtc"
        ):
            nvrtc.compile_source("", "k", architecture="sm_90")
    finally:
        nvrtc.nvrtc.cache_clear()
