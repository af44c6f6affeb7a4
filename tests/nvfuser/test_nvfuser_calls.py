"""Calls of nvFuser's frontend, one by one, on NumPy arrays."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tracefuse.nvfuser_direct.pytorch_utils import torch_dtype_to_nvfuser_dtype

import tracefuse
import tracefuse.nvfuser as nvfuser
import tracefuse.nvfuser_direct as nvfuser_direct
from tests.session.samples import times
from tracefuse import rules
from tracefuse.nvfuser import (
    DataType,
    FusionCache,
    FusionDefinition,
    LruFusionCache,
    Tensor,
    clone,
    compute_contiguity,
    compute_tensor_descriptor,
    version,
)
from tracefuse.nvfuser.nvfuser_version import Version

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
PLACES = np.array([[2, 0, 1, 1], [0, 0, 2, 1]])


def doubled(x: np.ndarray = X) -> FusionDefinition:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.mul(fd.from_pytorch(x), 2.0))
    return fd


# ---------------------------------------------------------------------------------------------------------------------
# modules, definitions by id and in subclasses


def test_both_modules_have_the_names_of_the_frontend() -> None:
    for name in nvfuser.__all__:
        assert getattr(nvfuser_direct, name) is getattr(nvfuser, name)
    assert nvfuser.TensorView is Tensor
    assert version() > "0.0.0"
    assert version() > Version("0.0.0")
    assert Version("0.2.10+git21df524") > "0.2.9"
    assert Version("1.0") == "1.0.0" != "1.0.1"


def test_types_have_the_names_of_the_frontend() -> None:
    assert torch_dtype_to_nvfuser_dtype(float) is DataType.Double
    assert torch_dtype_to_nvfuser_dtype(np.float16) is DataType.Half
    assert nvfuser.pytorch_utils.python_scalar_to_nvfuser_dtype(True) is DataType.Bool
    with pytest.raises(TypeError, match="is not supported"):
        torch_dtype_to_nvfuser_dtype(np.dtype("M8[s]"))


def test_a_subclass_records_in_definition_when_it_is_first_needed() -> None:
    class Sigmoid(FusionDefinition):
        def definition(self) -> None:  # type: ignore[override]
            self.add_output(self.ops.relu(self.from_pytorch(X)))

    fd = Sigmoid()
    assert fd.id() is None
    np.testing.assert_array_equal(fd.execute([X])[0], X)
    assert isinstance(fd.id(), int)
    assert "fd.ops.relu(T0)" in Sigmoid().fusion_ir() or "relu" in Sigmoid().fusion_ir()


@pytest.mark.parametrize("make", [FusionDefinition, tracefuse.FusionDefinition])
def test_an_empty_definition_is_not_implemented(make: Any) -> None:
    for call in (lambda fd: fd.execute([X]), lambda fd: fd.segment(), lambda fd: fd.fusion_ir()):
        with pytest.raises(NotImplementedError, match="the definition is empty"):
            call(make())


def test_equal_definitions_have_one_id_which_makes_another(tmp_path: Path) -> None:
    FusionCache.reset()
    cache = FusionCache.get()
    first, second = doubled(), doubled()
    assert (first.id(), cache.num_fusions()) == (second.id(), 1)
    again = FusionDefinition(first.id())
    assert repr(again) == repr(first)
    np.testing.assert_array_equal(again.execute([X])[0], 2 * X)
    cache.serialize(tmp_path / "definitions.json")
    FusionCache.reset()
    assert cache.num_fusions() == 0
    cache.deserialize(tmp_path / "definitions.json")
    with pytest.raises(IndexError, match="no definition has the id"):
        FusionDefinition(first.id())
    assert (doubled().id(), cache.num_fusions()) == (first.id(), 1)
    assert "Total Fusions: 1" in cache.stats()


def test_equal_definitions_compile_once_behind_the_decorator() -> None:
    @LruFusionCache(max_fusions=2)
    def create(factor: float) -> FusionDefinition:
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.mul(fd.from_pytorch(X), factor))
        return fd

    assert create(2.0) is create(2.0)
    assert create(3.0) is not create(2.0)
    assert create.num_fusions() == 2  # type: ignore[attr-defined]
    create(4.0)
    assert create.num_fusions() == 2  # type: ignore[attr-defined]
    assert "Hits: 2" in create.stats()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="max_fusions cannot be 0"):
        LruFusionCache(max_fusions=0)


def test_a_clone_has_the_definition_of_the_other() -> None:
    fd, copied = doubled(), FusionDefinition()
    clone(fd, copied)
    assert repr(copied) == repr(fd)
    np.testing.assert_array_equal(copied.execute([X])[0], 2 * X)
    with pytest.raises(RuntimeError, match="is not empty"):
        clone(fd, copied)


# ---------------------------------------------------------------------------------------------------------------------
# descriptors


@settings(max_examples=times(30), deadline=None)
@given(st.lists(st.integers(1, 4), min_size=0, max_size=5), st.data())
def test_the_descriptor_of_an_array_orders_its_axes_as_its_memory(sizes: list[int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(sizes))))
    array = np.empty([sizes[axis] for axis in order]).transpose(np.argsort(order))
    strides = [stride // 8 for stride in array.strides]
    contiguity, ranks = compute_tensor_descriptor(list(array.shape), strides)
    outer_first = sorted(range(len(sizes)), key=lambda axis: -ranks[axis])
    assert sorted(ranks) == list(range(len(sizes)))
    assert [strides[axis] for axis in outer_first] == sorted(strides, reverse=True)
    assert contiguity == [None if array.shape[axis] == 1 else True for axis in outer_first]


def test_expanded_axes_have_no_contiguity() -> None:
    assert compute_contiguity([2, 3, 4], [4, 0, 1]) == [True, None, True]
    assert compute_contiguity([2, 1, 4], [8, 77, 2]) == [True, None, False]
    assert compute_tensor_descriptor([4, 2, 5], [0, 1, 2]) == ([None, True, True], [2, 0, 1])
    with pytest.raises(ValueError, match="2 sizes and 1 strides"):
        compute_contiguity([2, 1], [1])


# ---------------------------------------------------------------------------------------------------------------------
# recording


def test_values_answer_what_scripts_ask_of_them() -> None:
    with FusionDefinition() as fd:
        x, s = fd.from_pytorch(X), fd.define_scalar(DataType.Int)
        assert x.is_tensor()
        assert not s.is_tensor()
        assert s.is_symbolic()
        assert not fd.define_scalar(2).is_symbolic()
        assert x.dtype is x.dtype() is DataType.Float
        assert s.dtype is DataType.Int
        assert len(fd.ops.tensor_sizes(x)) == 3
        fd.add_output(fd.ops.full(fd.ops.tensor_sizes(x)[1:], s, DataType.Int))
    assert (fd.inputs(), fd.outputs(), fd.extents()) == ([0, 1], [max(fd.fusion.values)], [-1, -2, -3])
    np.testing.assert_array_equal(fd.execute([X, 7])[0], np.full((3, 4), 7))


def test_sizes_follow_arithmetic_of_scalars() -> None:
    with FusionDefinition() as fd:
        x, n = fd.define_tensor([-1, -1]), fd.define_scalar(DataType.Int)
        rows = fd.ops.trunc_divide(x.size(0), 2)
        fd.add_output(fd.ops.reshape(x, [rows, 2, fd.ops.cast(x.size(1), DataType.Int32)]))
        fd.add_output(fd.ops.pad(x, [fd.ops.div(n, 3), fd.ops.div(x.size(0), x.size(1))]))
        with pytest.raises(ValueError, match="that a shape can depend on"):
            fd.ops.full([fd.define_scalar(2.5)], 1.0)
        with pytest.raises(TypeError, match=r"shape\[0\] cannot be 2.0"):
            fd.ops.full([2.0], 1.0)
    for array, n in itertools.product((np.ones((4, 3), np.float32), np.ones((6, 2), np.float32)), (7, -7, 2)):
        split, padded = fd.execute([array, n])
        assert split.shape == (len(array) // 2, 2, array.shape[1])
        left = int(n / 3)
        kept = np.pad(array, ((0, 0), (max(left, 0), len(array) // array.shape[1])))[:, max(-left, 0) :]
        np.testing.assert_array_equal(padded, kept)


@pytest.mark.parametrize("make", [FusionDefinition, tracefuse.FusionDefinition])
def test_a_result_is_written_in_the_order_that_was_asked_for(make: Any) -> None:
    for order in itertools.permutations(range(3)):
        with make() as fd:
            x = fd.from_array(X)
            fd.add_output(fd.ops.add(x, 1.0), order)
            fd.add_output(fd.ops.stride_order(fd.ops.mul(x, 2.0), order))
            fd.add_output(x, stride_order=list(order))
        for outputs in (None, [np.empty((2, 3, 4), np.float32), None, None]):
            results = fd.execute([X], outputs=outputs)
            for result, expected in zip(
                results[outputs is not None :], (X + 1, 2 * X, X)[outputs is not None :], strict=True
            ):
                assert compute_tensor_descriptor(result.shape, [s // 4 for s in result.strides])[1] == list(order)
                np.testing.assert_array_equal(result, expected)
            if outputs is not None:
                assert results[0] is outputs[0]
                np.testing.assert_array_equal(results[0], X + 1)
        last = list(fd.execute_steps([X]))
        assert last
        names: dict[str, Any] = {}
        exec(f"from tracefuse.nvfuser import *\n{fd!r}", names)
        with make() as again:
            names[f"nvfuser_fusion_id{fd.id()}"](again)
        assert again.execute([X])[1].strides == fd.execute([X])[1].strides
        fd.segment(merge=rules.one_op_a_segment)
        assert fd.execute([X])[0].strides == again.execute([X])[0].strides


def test_an_updated_input_may_be_returned() -> None:
    with tracefuse.FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.add(x, 1.0), alias_input=x)
        fd.add_output(x)
        fd.add_output(fd.ops.mul(x, 2.0))
    array = np.arange(4, dtype=np.float32)
    same, product = fd.execute([array])
    assert same is array
    np.testing.assert_array_equal(array, [1, 2, 3, 4])
    np.testing.assert_array_equal(product, [0, 2, 4, 6])


def test_a_result_that_reshapes_an_input_shares_its_memory() -> None:
    with FusionDefinition() as fd:
        x = fd.from_pytorch(X)
        fd.add_output(fd.ops.reshape(x, [6, -1]))
        fd.add_output(fd.ops.permute(fd.ops.reshape(x, [6, 4]), [1, 0]))
        fd.add_output(fd.ops.reshape(fd.ops.neg(x), [24]))
    flat, turned, negative = fd.execute([X])
    assert flat.shape == (6, 4)
    assert np.shares_memory(flat, X)
    assert np.shares_memory(turned, X)
    np.testing.assert_array_equal(turned, X.reshape(6, 4).T)
    np.testing.assert_array_equal(negative, -X.ravel())
    with tracefuse.FusionDefinition() as plain:
        plain.add_output(plain.ops.reshape(plain.from_array(X), [6, 4]))
    assert not np.shares_memory(plain.execute([X])[0], X)


def test_arrays_without_axes_are_sorted_and_scanned() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([])
        for result in (fd.ops.sort(x, 0), fd.ops.argsort(x, -1), fd.ops.cumsum(x, 0), *fd.ops.topk(x, 1)):
            fd.add_output(result)
    results = fd.execute([np.array(3, np.float32)])
    assert [result.shape for result in results] == [()] * 5
    assert [float(result) for result in results] == [3, 0, 3, 3, 0]


# ---------------------------------------------------------------------------------------------------------------------
# refusals, in nvFuser's words


def slices(**arguments: Any) -> Any:
    with FusionDefinition() as fd:
        return fd.ops.slice(fd.define_tensor([-1, -1]), **arguments)


@pytest.mark.parametrize(("arguments", "message"), [
    ({"start_indices": [-1, -2], "end_indices": [5, 5], "strides": [7, 7]}, "must be greater than or equal to 0. "),
    ({"start_indices": [3, 4], "end_indices": [1, 2], "strides": [1, 1]}, "greater than or equal to start_indices. "),
    ({"start_indices": [0, 0], "end_indices": [5, 5], "strides": [5, 5]}, "strides must be of const size 1"),
    ({"start_indices": [0] * 3, "end_indices": [4] * 3, "strides": [1] * 3}, "does not match slice dimensions! "),
    ({"start_indices": [0] * 3, "end_indices": [4] * 2, "strides": [1] * 2}, "start_indices and strides don't match! "),
    ({"start_indices": [0] * 2, "end_indices": [4] * 3, "strides": [1] * 2}, "attribute dimensions don't match! "),
    ({"start_indices": [0] * 2, "end_indices": [4] * 2, "strides": [1] * 3}, "start_indices and strides don't match! "),
])  # fmt: skip
def test_slices_are_refused_as_in_nvfuser(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        slices(**arguments)


def test_other_calls_are_refused_with_runtime_errors() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        with pytest.raises(RuntimeError, match="Condition should be of DataType Bool"):
            fd.ops.where(x, x, 1.0)
        with pytest.raises(RuntimeError, match="cat: tensors cannot be"):
            fd.ops.cat([])
        fd.add_output(fd.ops.slice(x, [2], [2]))
    with pytest.raises(RuntimeError, match="the definition is complete"):
        fd.ops.neg(x)
    with pytest.raises(RuntimeError, match="no schedules of users"):
        _ = fd.sched
    with pytest.raises(RuntimeError, match="Invalid fusion definition!"):
        fd.last_cuda_code()
    assert fd.execute([np.ones(4, np.float32)])[0].shape == (0,)
    assert all(
        issubclass(getattr(tracefuse, name), RuntimeError) for name in tracefuse.__all__ if name.endswith("Error")
    )


# ---------------------------------------------------------------------------------------------------------------------
# executing and reporting


def test_vectors_are_given_one_by_one_or_as_a_list() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.add(fd.ops.reshape(x, fd.define_vector(2)), 1.0))
    for inputs in ([X.ravel(), [4, 6]], [X.ravel(), 4, 6], [X.ravel(), (4, 6)]):
        assert fd.execute(inputs)[0].shape == (4, 6)
    assert fd.segment([X.ravel(), [4, 6]])


def test_a_profile_has_the_time_and_bytes_of_each_segment() -> None:
    with FusionDefinition() as fd:
        x = fd.from_pytorch(X)
        fd.add_output(fd.ops.neg(fd.ops.segment_set(fd.ops.exp(x))))
    with pytest.raises(ValueError, match="no call was profiled"):
        fd.profile()
    (result,) = fd.execute([X], profile=True)
    np.testing.assert_allclose(result, -np.exp(X), rtol=1e-6)
    profile = fd.profile()
    assert profile.segments == len(profile.kernel_profiles) == 2
    assert [kernel.bytes for kernel in profile.kernel_profiles] == [2 * X.nbytes] * 2
    assert all(kernel.time_ms > 0 and kernel.fraction_of_copy > 0 for kernel in profile.kernel_profiles)
    assert profile.kernel_time_ms == sum(kernel.time_ms for kernel in profile.kernel_profiles)
    assert "fraction of a copy" in str(profile)


def test_a_profiled_update_happens_once() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        fd.add_output(fd.ops.add(x, 1.0), alias_input=x)
    array = np.zeros(3, np.float32)
    fd.execute([array], profile=True)
    np.testing.assert_array_equal(array, [1, 1, 1])


def test_reports_show_the_fusion_and_its_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    fd = doubled()
    fd.execute([X], print_repro=True)
    assert "fd.execute(inputs)" in capsys.readouterr().out
    assert "mul(v0, 2.0)" in fd.fusion_ir()
    assert "__global__" in fd.last_cuda_code()
    assert fd.cuda_code_for([X]) == fd.last_cuda_code(intrinsic_code=True)
    assert fd.scheduled_fusion_ir_for([X]) == fd.last_scheduled_fusion_ir()
    assert fd.debug_output() is None
    with tracefuse.options(debug=1):
        doubled(X[0]).execute([X[0]], capture_debug_output=True)
    fd.execute([X], capture_debug_output=True)
    assert fd.debug_output() == ""
    with tracefuse.FusionDefinition() as plain:
        plain.add_output(plain.ops.neg(plain.from_array(X)))
    plain.execute([X])
    with pytest.raises(NotImplementedError, match="the calls ran on the CPU"):
        plain.last_cuda_code()


def test_validate_returns_the_outputs_and_takes_the_propagated_bound() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=DataType.Float)
        fd.add_output(fd.ops.sum(x, [1]))
    array = np.full((2, 1000), 0.1, np.float32)
    (total,) = fd.validate([array])
    np.testing.assert_allclose(total, 100, rtol=1e-5)
    fd.validate([array], [array.sum(1)])
    with pytest.raises(AssertionError, match=r"2 of 2 differ by more than the error bound; .* the bound"):
        fd.validate([array], [array.sum(1) * np.float32(1.001)])


def test_segments_run_alone() -> None:
    with tracefuse.FusionDefinition() as fd:
        x = fd.from_array(X)
        fd.add_output(fd.ops.neg(fd.ops.segment_set(fd.ops.exp(x))))
    first, second = fd.segment([X])
    (middle,) = first.execute([X])
    np.testing.assert_array_equal(second.execute([middle])[0], fd.execute([X])[0])
    assert fd.segment_index_space_maps == {first: dict(first.index_map), second: dict(second.index_map)}
    script = doubled()
    (only,) = script.segment([X])
    assert only.inputs() == [0]
    np.testing.assert_array_equal(only.execute([X])[0], 2 * X)


def test_a_device_is_a_hint_where_there_are_no_arrays() -> None:
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.full([2], 3.0))
    np.testing.assert_array_equal(np.asarray(fd.execute([], device="cpu")[0]), [3, 3])
    with pytest.raises(RuntimeError, match="device= names cuda:0, and the inputs are on the host"):
        doubled().execute([X], device="cuda:0")
