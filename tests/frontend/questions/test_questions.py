"""Tests the inspection methods that fused functions and definitions share, from arrays or sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracefuse
from tracefuse import FusionDefinition, ShapeDtype, fuse
from tracefuse.runtime.devices import cuda_arrays

X = np.ones((6, 8), np.float32)
W = np.ones((8, 4), np.float32)
ARRAYS = (X, W)
SIZES = (ShapeDtype((6, 8), np.float32), ShapeDtype((8, 4), np.float32))


def model(x: Any, w: Any) -> Any:
    return (np.exp(x) / 2 < 3).astype(np.float32) @ w


def defined() -> FusionDefinition:
    return FusionDefinition.from_fusion(fuse(model).definition(*SIZES).fusion)


def of_function(name: str, arguments: Any) -> Any:
    return getattr(fuse(model), name)(*arguments)


def of_definition(name: str, arguments: Any) -> Any:
    fd = defined()
    return fd.segment(arguments) if name == "segments" else getattr(fd, name)(arguments)


ANSWERS = {
    "explain": ("template", ("templates", "boundaries", "guards", "bytes_moved", "sizes")),
    "segments": ("library", ("fusion", "__len__", "__getitem__")),
    "definition": ("fd.ops.exp(T0)", ("fusion", "execute", "segment")),
    "host_program": ("", ("program",)),
    "concretization": ("T0", ("fusion", "guards", "original")),
}


@pytest.mark.parametrize("ask", [of_function, of_definition], ids=["function", "definition"])
@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_objects_that_print_and_nothing_runs_or_prints(
    name: str, ask: Callable[[str, Any], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    text, fields = ANSWERS[name]
    by_sizes, by_arrays = ask(name, SIZES), ask(name, ARRAYS)
    assert type(by_sizes) is type(by_arrays)
    assert text in str(by_sizes)
    for field in fields:
        assert hasattr(by_sizes, field), field
    shown = by_sizes._repr_html_()
    (escaped,) = re.findall(r"<pre>(.*)</pre>", shown, re.DOTALL)
    assert "<" not in escaped
    assert capsys.readouterr() == ("", "")


def test_an_outline_needs_no_sizes() -> None:
    outline = defined().explain()
    assert outline.templates == ("pointwise", "library")
    assert list(outline.boundaries) == [(0, 1)]
    assert str(outline).splitlines()[-1].startswith("0 | 1: this step always runs as a segment of its own")
    assert "<pre>segment" in outline._repr_html_()


def test_segments_are_a_list_that_prints_as_a_table_and_definitions() -> None:
    segments = fuse(model).segments(*SIZES)
    assert isinstance(segments, list)
    assert [segment.template for segment in segments] == ["pointwise", "library"]
    lines = str(segments).splitlines()
    assert lines[0].split() == ["segment", "template", "inputs", "outputs", "nodes", "bytes"]
    assert lines[2].split()[:2] == ["0", "pointwise"]
    assert "    index_map {" in str(segments)


def test_caches_count_alike() -> None:
    fused, fd = fuse(model), defined()
    for call in (lambda: fused(X, W), lambda: fd.execute([X, W])):
        for _ in range(3):
            call()
    fd.execute([np.asfortranarray(X), W])
    assert fused.cache_info() == (1, 1, 2)
    assert fd.cache_info() == (1, 2, 2)
    assert str(fd.cache_info()) == "CacheInfo(traces=1, compiles=2, hits=2)"
    assert fd.cache_info()._repr_html_() == "<pre>CacheInfo(traces=1, compiles=2, hits=2)</pre>"


@pytest.mark.parametrize("ask", [of_function, of_definition], ids=["function", "definition"])
def test_cuda_kernels_are_shown_without_a_gpu(ask: Callable[[str, Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_arrays, "unavailable", lambda: "CuPy cannot be imported: there is none")
    with tracefuse.options(target="cuda"):
        segments = ask("segments", SIZES)
        assert "__global__ void" in segments[0].source
        assert "256 threads" in segments[0].kernel or "threads" in segments[0].kernel
        assert ask("explain", SIZES).templates == tuple(segment.template for segment in segments)
        assert ask("host_program", SIZES) is not None
