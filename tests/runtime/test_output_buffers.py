"""Results in the caller's buffers: `out=`, `into` and `execute(outputs=)`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tracefuse import FusionDefinition, ShapeDtype, fuse, rules
from tracefuse.errors import DeviceError, DtypeError, FusionError, ShapeError, TraceError, UnsupportedError
from tracefuse.runtime.devices import cpu_memory
from tracefuse.runtime.targets.cuda.cuda_device import CudaDevice

X = np.arange(12, dtype=np.float32).reshape(3, 4)
Y = X[::-1].copy() - 5


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes of the arrays that tracefuse allocates."""
    shapes: list[Any] = []
    empty = cpu_memory.empty

    def counted(shape: tuple[int, ...], dtype: Any) -> Any:
        shapes.append(shape)
        return empty(shape, dtype)

    monkeypatch.setattr(cpu_memory, "empty", counted)
    return shapes


def product_sum(x: Any, y: Any) -> Any:
    return (x * y).sum(1)


def layers(x: Any, y: Any) -> Any:
    return {"first": x + y, "all": [x * y, x.sum(0)]}


def buffers() -> dict[str, Callable[[tuple[int, ...], Any], Any]]:
    """Memory of a shape, by how it lies."""
    return {
        "new": lambda shape, dtype: np.empty(shape, dtype),
        "every second": lambda shape, dtype: np.empty((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2],
        "backwards": lambda shape, dtype: np.empty(shape, dtype)[::-1],
        "turned": lambda shape, dtype: np.empty(shape[::-1], dtype).T,
        "at an odd byte": lambda shape, dtype: np.ndarray(shape, dtype, np.empty(400, np.uint8), 1),
        "a column": lambda shape, dtype: np.empty((*shape, 3), dtype)[..., 1],
    }


@pytest.mark.parametrize("memory", buffers())
def test_the_result_is_the_buffer_and_nothing_is_allocated(memory: str, made: list[Any]) -> None:
    fused = fuse(product_sum)
    out = buffers()[memory]((3,), np.float32)
    assert fused(X, Y, out=out) is out
    np.testing.assert_array_equal(out, product_sum(X, Y))
    # A kernel stores whole elements; what lies at an odd byte is copied there.
    assert made == ([(3,)] if memory == "at an odd byte" else [])
    assert fused.into(out, X + 1, Y) is out
    np.testing.assert_array_equal(out, product_sum(X + 1, Y))
    assert fused.cache_info()[:2] == (1, 1)


@pytest.mark.parametrize("memory", buffers())
def test_every_template_writes_any_layout(memory: str) -> None:
    functions: list[Callable[[Any, Any], Any]] = [
        lambda x, y: x * y, lambda x, y: x.T - y.T, lambda x, y: x - x.max(1, keepdims=True),
        lambda x, y: (x * y).sum(0), lambda x, y: x - x.sum(0), lambda x, y: np.cumsum(x, axis=1),
        lambda x, y: x @ y.T, lambda x, y: np.concatenate([x, y[::-1]]), lambda x, y: np.argmax(x * y, axis=0),
    ]  # fmt: skip
    for function in functions:
        expected = function(X, Y)
        out = buffers()[memory](expected.shape, expected.dtype)
        fuse(function)(X, Y, out=out)
        np.testing.assert_array_equal(out, expected)


def test_a_tree_of_buffers_has_none_for_a_new_array(made: list[Any]) -> None:
    fused = fuse(layers)
    out = {"first": np.empty((3, 4), np.float32), "all": [None, np.empty(4, np.float32)]}
    result = fused(X, Y, out=out)
    assert result["first"] is out["first"]
    assert result["all"][1] is out["all"][1]
    assert made == [(3, 4)]
    expected = layers(X, Y)
    np.testing.assert_array_equal(result["first"], expected["first"])
    np.testing.assert_array_equal(result["all"][0], expected["all"][0])
    np.testing.assert_array_equal(result["all"][1], expected["all"][1])


@pytest.mark.parametrize("merge", [None, rules.one_op_a_segment])
@pytest.mark.parametrize("shift", [-1, 0, 1, 5])
def test_a_buffer_that_overlaps_an_argument_reads_it_as_it_was(shift: int, merge: Any) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True)
        fd.add_output(fd.ops.add(fd.ops.mul(x, 2.0), fd.ops.flip(x, [0])))
    fd.segment(merge=merge)
    memory = np.arange(40, dtype=np.float32)
    x, out = memory[5:30], memory[5 + shift : 30 + shift]
    expected = x * 2 + x[::-1]
    (result,) = fd.execute([x], outputs=[out])
    assert result is out
    np.testing.assert_array_equal(out, expected)


def test_a_buffer_that_is_an_argument_is_written_in_place_by_a_pointwise_kernel(made: list[Any]) -> None:
    x = X.copy()
    fuse(lambda x, y: x * y)(x, Y, out=x)
    np.testing.assert_array_equal(x, X * Y)
    assert not made
    fuse(lambda x: x + x[::-1])(x, out=x)
    np.testing.assert_array_equal(x, X * Y + (X * Y)[::-1])
    assert made == [(3, 4)]


def test_execute_takes_buffers_beside_updates() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.add(x, 1.0), alias_input=x)
        fd.add_output(fd.ops.mul(x, 2.0))
        fd.add_output(fd.ops.sum(x, [0]))
    x, out = X.copy(), np.empty((3, 4), np.float32)
    first, second = fd.execute([x], outputs=[out, None])
    assert first is out
    np.testing.assert_array_equal(out, X * 2)
    np.testing.assert_array_equal(second, X.sum(0))
    np.testing.assert_array_equal(x, X + 1)


def test_intermediates_alone_are_allocated(made: list[Any]) -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.neg(fd.ops.exp(fd.ops.mul(x, 2.0))))
    fd.segment(merge=rules.one_op_a_segment)
    fd.execute([X], outputs=[np.empty((3, 4), np.float32)])
    assert len(made) == 2


def test_a_parameter_called_out_is_the_functions_own() -> None:
    @fuse
    def function(x: Any, out: Any) -> Any:
        np.multiply(x, 2, out=out)
        return out + 1

    own, buffer = np.zeros((3, 4), np.float32), np.empty((3, 4), np.float32)
    assert function.into(buffer, X, out=own) is buffer
    np.testing.assert_array_equal(own, X * 2)
    np.testing.assert_array_equal(buffer, X * 2 + 1)

    @fuse
    def keywords(x: Any, **more: Any) -> Any:
        return x + more["out"]

    np.testing.assert_array_equal(keywords(X, out=Y), X + Y)


def test_methods_and_nested_calls_take_buffers() -> None:
    class Layer:
        @fuse
        def scaled(self, x: Any) -> Any:
            return x * 2

    out = np.empty((3, 4), np.float32)
    assert Layer().scaled(X, out=out) is out
    inner = fuse(lambda x: x * 2)

    @fuse
    def outer(x: Any, y: Any) -> Any:
        inner(x, out=y)
        return y + 1

    y = Y.copy()
    np.testing.assert_array_equal(outer(X, y), X * 2 + 1)
    np.testing.assert_array_equal(y, X * 2)


@pytest.mark.parametrize("options", [{"eager": True}, {"target": "reference"}], ids=str)
def test_other_ways_of_running_write_the_buffer_too(options: dict[str, Any]) -> None:
    out = np.empty(3, np.float32)
    assert fuse(product_sum, **options)(X, Y, out=out) is out
    np.testing.assert_array_equal(out, product_sum(X, Y))


def read_only(array: Any) -> Any:
    array.setflags(write=False)
    return array


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (np.empty(4, np.float32), ShapeError, r"out of output 0 has shape \(4,\), the result has \(3,\)"),
        (np.empty((3, 1), np.float32), ShapeError, r"has shape \(3, 1\)"),
        (np.empty(3), DtypeError, "is float64, the result is float32"),
        (read_only(np.empty(3, np.float32)), UnsupportedError, "is read-only"),
        (np.lib.stride_tricks.as_strided(np.empty(3, np.float32), (3,), (0,)), UnsupportedError, "share one address"),
        (3.0, DtypeError, "is a float, not an array"),
        ((np.empty(3, np.float32),), TraceError, "give a pytree with the structure of the result"),
    ],
    ids=["shape", "rank", "dtype", "read-only", "stride 0", "number", "tree"],
)
def test_a_buffer_that_does_not_fit_is_refused_before_anything_runs(out: Any, error: Any, message: str) -> None:
    @fuse
    def function(x: Any, y: Any) -> Any:
        x += 1
        return (x * y).sum(1)

    x = X.copy()
    with pytest.raises(error, match=message):
        function(x, Y, out=out)
    np.testing.assert_array_equal(x, X)


def test_buffers_that_overlap_are_refused_and_interleaved_ones_are_not() -> None:
    fused = fuse(lambda x: (x + 1, x * 2))
    memory, x = np.zeros(8), np.arange(4.0)
    for pair in ((memory[:4], memory[2:6]), (memory[:4], memory[:4])):
        with pytest.raises(FusionError, match="overlap"):
            fused(x, out=pair)
    fused(x, out=(memory[::2], memory[1::2]))
    np.testing.assert_array_equal(memory, np.stack([x + 1, x * 2], 1).reshape(-1))


def test_bounds_of_addresses_are_compared_as_numpy_compares_them() -> None:
    def addressed(array: Any) -> Any:
        data = SimpleNamespace(ptr=array.__array_interface__["data"][0])
        return SimpleNamespace(shape=array.shape, strides=array.strides, itemsize=array.itemsize, data=data)

    memory = np.zeros(60, np.float32)
    parts = [memory[start : start + 12].reshape(3, 4) for start in (0, 4, 11, 12, 13, 40)]
    parts += (
        [part[::-1] for part in parts] + [part.T[:, ::2] for part in parts] + [memory[:0], memory[20:20], memory[7:8]]
    )
    found = [[CudaDevice.may_share(None, addressed(a), addressed(b)) for b in parts] for a in parts]  # type: ignore[arg-type]
    # An empty array may seem to share bytes of what it lies in.
    expected = [[np.may_share_memory(a, b) for b in parts] for a in parts]
    for k, one in enumerate(parts):
        for other, two in enumerate(parts):
            assert found[k][other] == expected[k][other] or not one.size or not two.size
    assert not CudaDevice.may_share(None, addressed(memory[:0]), addressed(memory[:0]))  # type: ignore[arg-type]


def test_a_result_that_is_not_a_computed_array_has_no_buffer() -> None:
    fused = fuse(lambda x: (x, 3, x + 1))
    for place, what in enumerate(("an argument, returned as it is", "not an array")):
        out = [None, None, None]
        out[place] = np.empty((3, 4), np.float32)
        with pytest.raises(UnsupportedError, match=what):
            fused(X, out=tuple(out))


def test_the_count_of_buffers_and_scalars_are_checked() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        fd.add_output(fd.ops.sum(x, [0, 1]))
        fd.add_output(x)
        fd.add_output(x.size(0))
    with pytest.raises(FusionError, match="got 1 output buffers for 3 results"):
        fd.execute([X], outputs=[None])
    with pytest.raises(FusionError, match="the result is input T0 itself"):
        fd.execute([X], outputs=[None, X.copy(), None])
    with pytest.raises(FusionError, match="the result is a number"):
        fd.execute([X], outputs=[None, None, X.copy()])
    total = np.empty((), np.float32)
    assert fd.execute([X], outputs=[total, None, None])[0] is total
    assert total == X.sum()


def test_foreign_arrays() -> None:
    jax = pytest.importorskip("jax")
    fused = fuse(lambda x: x + 1)
    with pytest.raises(UnsupportedError, match="out=: JAX arrays are immutable"):
        fused(jax.numpy.ones(3), out=jax.numpy.ones(3))
    with pytest.raises(UnsupportedError, match="JAX arrays are immutable"):
        fused(np.ones(3, np.float32), out=jax.numpy.ones(3))
    with pytest.raises((UnsupportedError, DeviceError)):
        fused(np.ones(3, np.float32), out=ShapeDtype((3,), np.float32))


def test_zero_sizes_and_subclasses() -> None:
    out = np.empty((0, 4), np.float32)
    assert fuse(lambda x: x + 1)(X[:0], out=out) is out

    class Own(np.ndarray[Any, Any]):
        pass

    held = np.empty((3, 4), np.float32).view(Own)
    assert fuse(lambda x: x + 1)(X, out=held) is held
    np.testing.assert_array_equal(np.asarray(held), X + 1)
