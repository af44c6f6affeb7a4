"""Tests the printed segments, definitions and explanations of fused functions and definitions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import DataType, FusionDefinition, ShapeDtype, fuse, rules
from tracefuse.errors import DeviceError, FusionError, UnsupportedError

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def centred(x: Any, w: Any) -> Any:
    return (x - x.mean(-1, keepdims=True)) @ w


def shapes(*given: tuple[int, ...]) -> list[ShapeDtype]:
    return [ShapeDtype(shape, "float32") for shape in given]


def row_sums() -> FusionDefinition:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        total = fd.ops.sum(x, dims=[1])
        fd.add_output(fd.ops.sub(x, fd.ops.broadcast(total, [False, True])))
    return fd


def test_the_segments_of_a_fused_function_have_definitions_maps_and_kernels() -> None:
    f = fuse(centred)
    first, second = f.segments(X, X.T)
    assert (first.template, second.template) == ("row", "library")
    assert dict(first.index_map) == {0: 0, 2: 3}
    assert [second.index_map[n] for n in second.outputs] == [4]
    assert first.releases == (0,)
    assert "kernel s0_row" in first.kernel
    assert "define" in first.source
    assert len(first.launches) == 1
    assert second.launches == ()
    assert second.kernel == second.source == "matmul(f32[i2, i0], f32[i0, i1]) by the target's library"


def test_the_definition_of_a_segment_runs_alone() -> None:
    first, second = fuse(centred).segments(X, X.T)
    (inner,) = first.definition.execute([X])
    np.testing.assert_allclose(inner, X - X.mean(-1, keepdims=True))
    (result,) = second.definition.execute([{0: X, 1: X.T, 3: inner}[second.index_map[n]] for n in second.inputs])
    np.testing.assert_allclose(result, fuse(centred)(X, X.T), rtol=1e-6)


def test_the_definition_of_a_fused_function_prints_as_code_and_runs() -> None:
    definition = fuse(centred).definition(X, X.T)
    assert re.match(r"def nvfuser_fusion_id\d+\(fd : FusionDefinition\) -> None :\n    T0 = ", repr(definition))
    np.testing.assert_allclose(definition.execute([X, X.T])[0], fuse(centred)(X, X.T))


def test_shapes_alone_show_what_arrays_would_run_and_compile_it_once() -> None:
    f = fuse(centred)
    shown = f.segments(*shapes((3, 4), (4, 3)))
    f.explain(*shapes((3, 4), (4, 3)))
    assert f.cache_info().compiles == 1
    f(X, np.ascontiguousarray(X.T))
    assert f.cache_info()[:2] == (1, 1)
    assert [s.kernel for s in shown] == [s.kernel for s in f.segments(X, np.ascontiguousarray(X.T))]


def test_asking_reads_no_data_and_writes_none() -> None:
    f = fuse(lambda x: x + 1)
    huge = ShapeDtype((1 << 40, 1 << 20), "float64")
    (segment,) = f.segments(huge)
    assert segment.template == "pointwise"
    assert f.explain(huge).bytes_moved == (2 * 8 << 60,)


def test_explain_of_a_fused_function_lists_captures_and_facts() -> None:
    weight = np.ones(4, np.float32)
    f = fuse(lambda x: (x * weight).sum(-1) if x.shape[0] > 2 else x)
    explanation = f.explain(X)
    assert explanation.captured == ("weight",)
    assert [line.split(":")[0] for line in explanation.traced] == ["3 <= i0"]
    text = str(explanation)
    assert "captured (read at every call):\n  weight" in text
    assert (
        "guards of the trace (it is reused while these hold):\n  3 <= i0: a comparison (test_definition_segment.py:"
        in text
    )


def test_compiles_counts_plans() -> None:
    f = fuse(lambda x: x.sum(-1))
    f(X)
    f(X)
    assert f.cache_info() == (1, 1, 1)
    f(np.asfortranarray(X))  # another layout, another plan
    f(X)
    assert f.cache_info() == (1, 2, 3)


def test_a_definition_shows_kernels_once_sizes_are_known() -> None:
    fd = row_sums()
    (segment,) = fd.segment()
    assert segment.template == "reduction"
    with pytest.raises(FusionError, match=r"depend on sizes\n  hint: give inputs: fd.segment\(inputs\)"):
        _ = segment.kernel
    (segment,) = fd.segment(shapes((3, 4)))
    assert segment.template == "row"
    assert "kernel s0_row" in segment.kernel
    np.testing.assert_allclose(fd.execute([X])[0], X - X.sum(1, keepdims=True))


def test_a_definition_explains_itself_with_and_without_sizes() -> None:
    fd = row_sums()
    assert fd.explain(shapes((3, 4))).bytes_moved == (96,)  # type: ignore[union-attr]
    fd.segment(merge=rules.reduction_ends_segment)
    assert "0 | 1: a reduction ends its segment" in str(fd.explain())
    assert len(fd.explain([X]).templates) == 2  # type: ignore[union-attr]


def test_segments_with_a_predicate_show_the_kernels_of_those_segments() -> None:
    fd = row_sums()
    first, second = fd.segment([X], merge=rules.reduction_ends_segment)
    assert (first.template, second.template) == ("row", "pointwise")
    assert len(fd.segments) == 2


@pytest.mark.parametrize(
    "given", [shapes((64, 600), (600, 30)), [np.ones((64, 600), np.float32), np.ones((600, 30), np.float32)]]
)
def test_cuda_kernels_are_shown_without_a_gpu(given: list[Any], without_gpu: None) -> None:
    f = fuse(centred)
    with tracefuse.options(target="cuda"):
        first, second = f.segments(*given)
        assert 'extern "C" __global__' in first.source
        assert "target cuda" in first.kernel
        assert second.template == "library"
        assert f.explain(*given).templates == (first.template, "library")


def test_cuda_kernels_do_not_run_without_a_gpu(without_gpu: None) -> None:
    f = fuse(centred, target="cuda")
    with pytest.raises(DeviceError, match=r"CUDA kernels cannot run here: .*\n  hint: f.segments\(\*args\) shows them"):
        f(X, X.T)


def test_the_reference_has_a_definition_and_no_segments() -> None:
    f = fuse(centred, target="reference")
    assert "matmul" in repr(f.definition(X, X.T))
    with pytest.raises(UnsupportedError, match="target='reference' has no segments"):
        f.segments(X, X.T)


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracefuse.runtime.devices.cuda_arrays.unavailable", lambda: "CUDA reports no device")
