"""Tests indices out of range: the CPU raises before the result is visible, and a GPU clamps them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ways import backend_of, on_backend, on_host, run_whole
from tracefuse import OutOfRangeError, fuse
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import DataType, dtype_of, int8, int32, int64, uint8, uint64
from tracefuse.ir.reference import evaluate

Use = Callable[[FusionDefinition, Any, Any], Any]

USES: dict[str, tuple[Use, tuple[int, ...]]] = {
    "pointwise": (lambda fd, x, i: fd.ops.add(fd.ops.take(x, i, 0), 1), (7, 5)),
    "transposed": (lambda fd, x, i: fd.ops.permute(fd.ops.take(x, i, 0), [1, 0]), (40, 70)),
    "row": (lambda fd, x, i: fd.ops.sum(fd.ops.take(x, i, 0), [1]), (7, 5)),
    "column": (lambda fd, x, i: fd.ops.sum(fd.ops.take(x, i, 0), [0]), (7, 33)),
    "split": (lambda fd, x, i: fd.ops.sum(fd.ops.take(x, i, 0), [0, 1]), (300, 300)),
    "conditional": (lambda fd, x, i: fd.ops.pad(fd.ops.take(x, i, 0), [1, 2, 3, 0]), (7, 5)),
    "computed": (lambda fd, x, i: fd.ops.take(x, fd.ops.sub(fd.ops.add(i, 3), 3), 0), (7, 5)),
}
"""A use of positions for each template, and the shape of what they index."""


def defined(use: Use, dtype: Any = DataType.Int) -> FusionDefinition:
    with FusionDefinition() as fd:
        x, index = fd.define_tensor([-1, -1], True, DataType.Int), fd.define_tensor([-1], True, dtype)
        fd.add_output(use(fd, x, index))
    return fd


@pytest.mark.parametrize("name", USES)
def test_the_cpu_raises_and_a_gpu_stays_inside(backend: str, name: str) -> None:
    if (backend, name) == ("interpreter", "split"):
        pytest.skip("the interpreter takes long for what is split; the kernel itself is compiled for the CPU")
    use, shape = USES[name]
    fusion = defined(use).fusion
    x = np.arange(shape[0] * shape[1]).reshape(shape)
    count = 90 if backend.startswith("interpreter") else max(300, shape[0])
    inside = np.resize(np.arange(-shape[0], shape[0]), count)
    target = backend_of(backend)
    given = [on_backend(backend, a) for a in (x, inside)]
    assert np.array_equal(on_host(run_whole(fusion, given, target)[0]), evaluate(fusion, [x, inside])[0])
    for wrong in (shape[0], -shape[0] - 1, 2**62, -(2**63))[: 1 if backend == "interpreter" else 4]:
        positions = inside.copy()
        positions[count - 3] = wrong
        given = [on_backend(backend, a) for a in (x, positions)]
        if backend in ("cpu", "interpreter"):
            with pytest.raises(OutOfRangeError, match=rf"out of bounds for axis 0 with {shape[0]} elements"):
                run_whole(fusion, given, target)
        else:
            clamped = np.where(positions < 0, positions + shape[0], positions).clip(0, shape[0] - 1)
            assert np.array_equal(on_host(run_whole(fusion, given, target)[0]), evaluate(fusion, [x, clamped])[0])


@pytest.mark.parametrize("dtype", [int8, uint8, int32, int64, uint64], ids=str)
def test_positions_of_every_integer_type_are_looked_at(dtype: Any) -> None:
    fd = defined(USES["pointwise"][0], dtype)
    x = np.arange(12).reshape(3, 4)
    (own,) = fd.execute([x, np.array([2, 0], dtype.numpy)])
    assert np.array_equal(own, x[[2, 0]] + 1)
    for wrong in (3, np.iinfo(dtype.numpy).max):
        with pytest.raises(OutOfRangeError):
            fd.execute([x, np.array([0, wrong], dtype.numpy)])


def test_the_error_names_the_index_the_axis_and_the_line() -> None:
    def function(values: Any, index: Any) -> Any:
        return np.take(values, index, axis=1) * 2

    line = function.__code__.co_firstlineno + 1
    with pytest.raises(IndexError) as caught:
        fuse(function)(np.ones((3, 4)), np.array([0, -5]))
    text = str(caught.value)
    assert f"index -5 is out of bounds for axis 1 with 4 elements (test_positions_outside.py:{line})" in text
    assert "indices into this axis are -4 to 3" in text


def test_the_reference_implementation_raises_the_same_error() -> None:
    with pytest.raises(OutOfRangeError, match="index 9 is out of bounds for axis 0 with 3 elements"):
        evaluate(defined(USES["row"][0]).fusion, [np.ones((3, 4), int), np.array([9])])


def test_nothing_is_taken_from_an_empty_axis(backend: str) -> None:
    fusion = defined(USES["pointwise"][0]).fusion
    target, x = backend_of(backend), np.zeros((0, 4), int)
    assert on_host(run_whole(fusion, [on_backend(backend, a) for a in (x, np.zeros(0, int))], target)[0]).shape == (
        0,
        4,
    )
    with pytest.raises(OutOfRangeError, match="axis 0 is empty"):
        run_whole(fusion, [on_backend(backend, a) for a in (x, np.zeros(2, int))], target)


def test_what_was_passed_in_is_as_it_was_after_an_error() -> None:
    @fuse
    def function(x: Any, index: Any, y: Any) -> Any:
        y += 1
        return np.cumsum(x[index]).sum() + y

    x, y, out = np.arange(4.0), np.zeros(3), np.full(3, -1.0)
    with pytest.raises(OutOfRangeError):
        function(x, np.array([1, 4]), y)
    assert (y == 0).all()
    with pytest.raises(OutOfRangeError):
        fuse(lambda a, i: a[i] * 2)(x, np.array([1, 2, 9]), out=out)
    assert (out == -1).all()
    function(x, np.array([1, 3]), y)
    assert (y == 1).all()


def test_the_next_call_is_right() -> None:
    function = fuse(lambda x, i: x[i])
    x = np.arange(5)
    for _ in range(3):
        with pytest.raises(OutOfRangeError):
            function(x, np.array([7]))
        assert function(x, np.array([-5])).tolist() == [0]


def test_library_rows_name_the_line() -> None:
    with FusionDefinition() as fd:
        x, index = fd.define_tensor([-1], True, DataType.Int), fd.define_tensor([-1], True, DataType.Int)
        fd.add_output(fd.ops.scatter(x, index, x, 0))
    with pytest.raises(OutOfRangeError, match=r"scatter: an index lies outside .*\(test_positions_outside.py:"):
        fd.execute([np.zeros(3, int), np.array([3])])
    assert dtype_of(x.dtype) is int64
