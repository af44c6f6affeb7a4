"""Tests check mode: it names the op and the user's line of a wrong kernel, and correct kernels pass."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tracefuse
from tests.ops.op_definitions import definition, ops_of, plain
from tests.random_programs.random_fusions import fusions
from tests.runtime.addressed_device import Addressed
from tests.session.samples import times
from tests.ways import assert_equal_bits, backend_of
from tracefuse import DataType, FusionDefinition, fuse, rules
from tracefuse.compiler.executable import Executable
from tracefuse.config import resolve
from tracefuse.diagnostics.checking import CheckedSegment
from tracefuse.diagnostics.error_bounds import bounded_outputs
from tracefuse.dtypes import DType, complex64, float16, float32, int32
from tracefuse.errors import DeviceError, InternalError, OutOfRangeError
from tracefuse.ir.fusion import Op
from tracefuse.kernel.llvm import scalar_ops
from tracefuse.ops import Library, Movement, Pointwise, Reduction
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.runtime.host_ops import HostCall
from tracefuse.runtime.targets.cpu.cpu_device import CpuDevice
from tracefuse.runtime.targets.cpu.cpu_kernel_compiler import CpuKernelCompiler
from tracefuse.runtime.targets.cpu.cpu_target import cpu_target

X = np.random.default_rng(0).normal(size=(8, 12)).astype(np.float32)


def two_segments(x: Any, w: Any) -> Any:
    y = np.exp(x) @ w
    return (y - y.mean(axis=1, keepdims=True)) * 2


def line_of(text: str) -> int:
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if text in line)


class Wrong(CpuKernelCompiler):
    """The CPU, but for kernels whose name begins with a given one: they add 1 to the last element of what they make."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.wrong = name

    def entry(self, function: Any) -> Any:
        def launch(*arguments: Any) -> None:
            function.launch(*arguments)
            made = [b for b, p in zip(arguments, function.kernel.parameters, strict=True) if getattr(p, "written", 0)]
            made[-1].reshape(-1)[-1] += 1

        return launch if function.kernel.name.startswith(self.wrong) else super().entry(function)


def test_right_kernels_pass_and_give_what_they_give_without(monkeypatch: pytest.MonkeyPatch) -> None:
    w = X.T.copy()
    np.testing.assert_array_equal(fuse(two_segments, check=True)(X, w), fuse(two_segments)(X, w))
    with tracefuse.options(check=True):
        np.testing.assert_array_equal(fuse(two_segments)(X, w), fuse(two_segments)(X, w))


def test_a_wrong_kernel_is_named_with_its_segment_the_element_and_the_line() -> None:
    fusion = fuse(two_segments).definition(X, X.T.copy()).fusion
    target = replace(cpu_target(), compiler=Wrong("s2"))
    executable = Executable(segment_fusion(fusion), target, options=resolve({"check": True}))
    with pytest.raises(InternalError) as error:
        executable([X, X.T.copy()])
    (value,) = fusion.outputs
    assert re.fullmatch(
        rf"segment 2 \(row\) differs from the reference implementation, first at \w+: T\d+\[.*7\] is \S+, not \S+ "
        rf"within \S+ \(1 of \d+ elements\) \(test_checking.py:{line_of('* 2') - 0}\)\n  hint: .*report it.*",
        str(error.value),
    ), str(error.value)
    assert f"T{value}[7, 7]" in str(error.value) or "mean" in str(error.value)


def test_the_first_wrong_op_inside_a_segment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = scalar_ops.primitive

    def wrong(name: str, arguments: Any, *rest: Any, **more: Any) -> Any:
        result = plain(name, arguments, *rest, **more)
        return result * 1.001 if name == "exp" else result

    monkeypatch.setattr(scalar_ops, "primitive", wrong)

    def several(x: Any) -> Any:
        y = x * 2 + 1
        z = np.exp(y)  # the wrong one
        return (z - 3).sum(axis=1)

    with pytest.raises(InternalError) as error:
        fuse(several, check=True, cache_limit=0)(X)
    assert "first at exp: T3[0, 0] is " in str(error.value)
    assert f"(96 of 96 elements) (test_checking.py:{line_of('the wrong one')})" in str(error.value)


def test_slices_on_streams_are_compared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def sliced(x: Any) -> Any:
        return tracefuse.stream_parallel(np.exp(x) + np.tanh(x), 0)  # one wrong op

    np.testing.assert_allclose(fuse(sliced, check=True)(X), np.exp(X) + np.tanh(X), rtol=1e-5, atol=1e-6)
    plain = scalar_ops.primitive

    def wrong(name: str, arguments: Any, *rest: Any, **more: Any) -> Any:
        result = plain(name, arguments, *rest, **more)
        return result * 1.001 if name == "tanh" else result

    monkeypatch.setattr(scalar_ops, "primitive", wrong)
    with pytest.raises(InternalError, match=rf"first at tanh: .*\(test_checking.py:{line_of('# one wrong op')}\)"):
        fuse(sliced, check=True, cache_limit=0)(X)


@pytest.mark.parametrize("chunks", [None, 3])
def test_what_the_array_library_computes_on_streams_is_compared_too(
    chunks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sliced(x: Any, y: Any) -> Any:
        whole = tracefuse.stream_parallel(x - y, 0, chunks) - y
        return tracefuse.stream_parallel(y * whole, 0, chunks)  # by the array library

    with tracefuse.options(disable="fusion"):
        fused = fuse(sliced, check=True)
        assert str(fused.host_program(X, X + 1)) == str(fuse(sliced).host_program(X, X + 1))
        np.testing.assert_allclose(fused(X, X + 1), (X + 1) * (-1 - (X + 1)), rtol=1e-5)
        wrong = HostCall.__call__

        def off(self: HostCall, inputs: list[Any], output: Any) -> None:
            wrong(self, inputs, output)
            output[-1:, -1] += str(self) == "mul"

        monkeypatch.setattr(HostCall, "__call__", off)
        where = rf"\(test_checking.py:{line_of('# by the array library')}\)"
        with pytest.raises(InternalError, match=rf"differs from the reference implementation, first at mul: .*{where}"):
            fuse(sliced, check=True)(X, X + 1)


def test_what_the_call_overwrites_is_compared_with_what_it_was() -> None:
    def update(x: Any, y: Any) -> Any:
        x += y
        x *= 2

    x = X.copy()
    fuse(update, check=True)(x, X)
    np.testing.assert_array_equal(x, X * 4)


class Spoiling(CpuKernelCompiler):
    """Every kernel also changes the first array that it only reads."""

    def entry(self, function: Any) -> Any:
        def launch(*arguments: Any) -> None:
            function.launch(*arguments)
            arguments[0].reshape(-1)[0] = 7

        return launch


def test_a_changed_input_is_found() -> None:
    fusion = fuse(lambda x: x + 1).definition(X).fusion
    target = replace(cpu_target(), compiler=Spoiling())
    executable = Executable(segment_fusion(fusion), target, options=resolve({"check": True}))
    with pytest.raises(InternalError, match=r"segment 0 \(pointwise\) changed its input T0 \(test_checking.py:\d+\)"):
        executable([X.copy()])


class Faulty(CpuDevice):
    """A device whose launches fail when it is waited for."""

    def __init__(self, good: int) -> None:
        super().__init__()
        self.good = good

    def synchronize(self) -> None:
        self.good -= 1
        if self.good < 0:
            raise DeviceError("work on device 0 failed: an illegal memory access was encountered")


@pytest.mark.parametrize(("good", "what"), [(1, ""), (0, "work before ")])
def test_a_fault_of_the_device_is_named_with_its_segment(good: int, what: str) -> None:
    fusion = fuse(lambda x: x + 1).definition(X).fusion
    target = replace(cpu_target(), device=Faulty(good))
    executable = Executable(segment_fusion(fusion), target, options=resolve({"check": True}))
    with pytest.raises(DeviceError) as error:
        executable([X])
    assert str(error.value) == (
        f"{what}segment 0 (pointwise) failed on the device: "
        "work on device 0 failed: an illegal memory access was encountered "
        f"(test_checking.py:{line_of('device=Faulty(good)') - 1})\n"
        "  hint: a GPU fault ends the CUDA context: start a new process"
    )


@pytest.mark.parametrize("backend", ["cpu", "interpreter-cuda"])
def test_indices_out_of_range_raise_on_both_targets(backend: str) -> None:
    i = np.array([[0, 12]] * 8)
    fusion = fuse(lambda x, i: np.take_along_axis(x, i, 1)).definition(X, i).fusion
    executable = Executable(segment_fusion(fusion), backend_of(backend), options=resolve({"check": True}))
    np.testing.assert_array_equal(executable([X, i - 1])[0], np.take_along_axis(X, i - 1, 1))
    with pytest.raises(OutOfRangeError, match=r"take_along_axis: index 12 .* \(test_checking.py:\d+\)"):
        executable([X, i])


def test_definitions_are_checked_too() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=DataType.Half)
        fd.add_output(fd.ops.gelu(x) if "gelu" in dir(fd.ops) else fd.ops.silu(x))
        fd.add_output(fd.ops.var(x, dims=[0]))
    with tracefuse.options(check=True):
        outputs = fd.execute([X.astype(np.float16)])
    assert [o.dtype for o in outputs] == [np.float16, np.float16]


def test_without_it_segments_are_not_wrapped() -> None:
    fused = fuse(lambda x: x + 1)
    fused(X)
    (segment,) = fused.explain(X).plan.segments
    assert segment.code is not None
    assert not isinstance(segment.run, CheckedSegment)
    (checked,) = fuse(lambda x: x + 1, check=True).explain(X).plan.segments
    assert isinstance(checked.run, CheckedSegment)


NOT_COMPARED = {"bits_of_float32", "bits_of_float64"}
"""Rows whose bound is not known, so that check mode says nothing of their results."""

ROUTINES = [
    lambda x: np.exp(x - x.max(axis=1, keepdims=True)),
    lambda x: np.log1p(np.abs(x)) ** 2 / np.sqrt(1 + x * x),
    lambda x: x.std(axis=0) + x.var(axis=0, ddof=1),
    lambda x: np.floor(x * 3) + np.round(x) - np.trunc(x / 2),
    lambda x: np.where(x > 0.5, np.tanh(x), np.arctan2(x, 1 - x)),
    lambda x: np.sort(x, axis=1)[:, ::2].cumsum(axis=1),
    lambda x: (x @ x.T).argmax(axis=1) + (x[:, ::-1] // 0.25).sum(axis=1),
    lambda x: np.stack([np.sinh(x), np.expm1(x), np.cosh(x), 1 / x, np.exp2(x)]),
]


@pytest.mark.parametrize(
    ("backend", "dtype"),
    [
        ("cpu", np.float32),
        ("interpreter", np.float16),
        ("interpreter-cuda", np.float16),
        ("interpreter-cuda", np.float64),
    ],
)
def test_right_routines_raise_no_alarm(backend: str, dtype: Any) -> None:
    x = X.astype(dtype)
    for routine in ROUTINES:
        fusion = fuse(routine).definition(x).fusion
        Executable(segment_fusion(fusion), backend_of(backend), options=resolve({"check": True}))([x])


@settings(max_examples=times(25), suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_random_fusions_raise_no_alarm(data: st.DataObject) -> None:
    fusion, arguments = data.draw(fusions("mixed"))
    Executable(segment_fusion(fusion), backend_of("interpreter"), options=resolve({"check": True}))(arguments)


@pytest.mark.parametrize("dtype", [float16, float32, int32, complex64], ids=str)
@pytest.mark.parametrize("kind", [Pointwise, Reduction, Movement, Library])
def test_every_row_is_compared_and_raises_no_alarm(kind: type[Op], dtype: DType) -> None:
    fd, made_by = definition(kind, dtype)
    if kind is Reduction:
        made_by = ops_of(kind, dtype)
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], True, dtype)
            for op in made_by:
                fd.add_output(getattr(fd.ops, op.name)(x, [1]))
    given = []
    for seed, number in enumerate(fd.fusion.inputs):
        array = plain(fd.fusion.values[number].dtype, (7, 7), seed)
        given.append(np.abs(array) % 7 if array.dtype.kind == "i" else array)  # positions, or operands of any row
    Executable(segment_fusion(fd.fusion), backend_of("interpreter"), options=resolve({"check": True}))(given)
    bounds = bounded_outputs(fd.fusion, given)
    unknown = {op.name for op, (_, bound) in zip(made_by, bounds, strict=True) if bound.size and np.isinf(bound).all()}
    assert unknown <= NOT_COMPARED, unknown


@settings(max_examples=times(20), suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_calls_that_pass_addresses_are_checked_and_give_the_same_bits(data: st.DataObject) -> None:
    fusion, arguments = data.draw(fusions("mixed"))
    merge = data.draw(st.sampled_from([None, rules.one_op_a_segment]))
    segmentation = segment_fusion(fusion, merge=merge)
    graph = data.draw(st.booleans())
    checked, plain = (
        Executable(segmentation, Addressed().target, options=resolve({"check": check, "graph": graph}))(arguments)
        for check in (True, False)
    )
    for number, own, other in zip(fusion.outputs, checked, plain, strict=True):
        assert_equal_bits(own, other, f"output {number}")
