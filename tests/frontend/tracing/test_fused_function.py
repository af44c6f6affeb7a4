"""A fused function looks, fails and is called as the function that it wraps, with attributes and globals."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
import sys
from typing import Any

import numpy as np
import pytest

import tracefuse
from tests.frontend.tracing.fuse_arguments import A, reference, traces
from tracefuse import ShapeDtype, fuse

GLOBAL = np.ones(4, np.float32)
SCALE = 2.0


def test_a_global_that_is_bound_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    f = reference(lambda x: (x * GLOBAL + SCALE).sum())
    assert f(A) == A.sum() + 24
    monkeypatch.setitem(globals(), "GLOBAL", GLOBAL * 3)
    assert f(A) == (A * 3).sum() + 24
    assert traces(f) == 1
    monkeypatch.setitem(globals(), "SCALE", 0.0)
    assert f(A) == (A * 3).sum()
    assert traces(f) == 2
    monkeypatch.setitem(globals(), "GLOBAL", np.ones((2, 1, 1)))
    assert f(A) == (A * 2).sum()


def test_a_captured_array_is_read_at_every_call() -> None:
    weight = np.ones(4, np.float32)
    f = reference(lambda x: x * weight)
    np.testing.assert_array_equal(f(A), A)
    weight[:] = 2
    np.testing.assert_array_equal(f(A), A * 2)
    weight = np.full(4, 5, np.float32)
    np.testing.assert_array_equal(f(A), A * 5)
    assert traces(f) == 1


def test_an_array_computed_from_captured_ones_by_numpy_follows_a_new_binding() -> None:
    weight = np.ones(4, np.float32)
    f = reference(lambda x: x * weight[::2].sum())
    np.testing.assert_array_equal(f(A), A * 2)
    weight = np.full(4, 3, np.float32)
    np.testing.assert_array_equal(f(A), A * 6)


class Model:
    epsilon = 1.0

    def __init__(self, weight: Any) -> None:
        self.weight = weight
        self.layers = [{"b": weight * 0}]
        self.steps = 1

    @fuse(target="reference")
    def __call__(self, x: Any) -> Any:
        return self.scaled(x) * self.steps + self.epsilon

    def scaled(self, x: Any) -> Any:
        return x * self.weight + self.layers[0]["b"]

    @staticmethod
    @fuse(target="reference")
    def double(x: Any) -> Any:
        return x * 2

    @fuse(target="reference")
    @staticmethod
    def triple(x: Any) -> Any:
        return x * 3

    @fuse(target="reference")
    @classmethod
    def named(cls, x: Any) -> Any:
        return x * len(cls.__name__)


def test_attributes_of_self_are_read_at_every_call() -> None:
    model, other = Model(np.ones(4)), Model(np.full(4, 2.0))
    count = Model.__call__.cache_info().traces
    np.testing.assert_array_equal(model(A), A + 1)
    np.testing.assert_array_equal(other(A), A * 2 + 1)
    np.testing.assert_array_equal(Model.__call__(other, A), A * 2 + 1)
    model.weight = np.full(4, 3.0)
    np.testing.assert_array_equal(model(A), A * 3 + 1)
    model.layers[0]["b"] = np.ones(4)
    np.testing.assert_array_equal(model(A), A * 3 + 2)
    assert Model.__call__.cache_info().traces - count == 1
    model.steps = 5
    np.testing.assert_array_equal(model(A), (A * 3 + 1) * 5 + 1)
    assert Model.__call__.cache_info().traces - count == 2


def test_static_and_class_methods_work_in_either_order() -> None:
    model = Model(np.ones(4))
    np.testing.assert_array_equal(model.double(A), A * 2)
    np.testing.assert_array_equal(Model.triple(A), A * 3)
    np.testing.assert_array_equal(model.triple(A), A * 3)
    np.testing.assert_array_equal(model.named(A), A * 5)
    np.testing.assert_array_equal(Model.named(A), A * 5)


@fuse
def documented(x: Any, *, scale: float = 2.0) -> Any:
    """Scales x."""
    return x * scale


def test_it_looks_like_the_function_that_it_wraps() -> None:
    assert documented.__doc__ == "Scales x."
    assert documented.__name__ == "documented"
    assert str(inspect.signature(documented)) == "(x: 'Any', *, scale: 'float' = 2.0) -> 'Any'"
    assert documented.__wrapped__(3, scale=4) == 12
    assert pickle.loads(pickle.dumps(documented)) is documented
    assert copy.deepcopy([documented])[0] is copy.copy(documented) is documented
    local = fuse(lambda x: x)
    assert copy.deepcopy(local) is local
    with pytest.raises(pickle.PicklingError, match="cannot pickle <fused test_"):
        pickle.dumps(local)
    assert repr(documented) == "<fused documented>"


def test_partials_and_keywords() -> None:
    f = reference(functools.partial(lambda x, y, k: x + y * k, k=3))
    np.testing.assert_array_equal(f(A, y=A), A * 4)


def test_generators_and_async_functions_are_refused() -> None:
    def generator(x: Any) -> Any:
        yield x

    async def coroutine(x: Any) -> Any:
        return x

    for function in (generator, coroutine):
        with pytest.raises(tracefuse.TraceError) as error:
            fuse(function)
        line = sys._getframe().f_lineno - 1
        assert str(error.value) == (
            f"{function.__name__} is a generator or an async function (test_fused_function.py:{line})\n"
            "  hint: return a tuple or a list of arrays instead of yielding"
        )


def test_eager_calls_the_function_itself() -> None:
    seen = []
    f = fuse(lambda x: seen.append(type(x)) or x * 2)
    with tracefuse.options(eager=True):
        f(A)
    assert seen == [np.ndarray]
    assert traces(f) == 0


def test_the_cache_can_be_cleared() -> None:
    f = reference(lambda x: x + 1)
    f(A)
    f.cache_clear()
    assert f.cache_info() == (0, 0, 0)
    f(A)
    assert f.cache_info() == (1, 1, 0)


def test_a_definition_needs_shapes_only() -> None:
    f = reference(lambda x: np.exp(x).sum(-1))
    assert [node.op.name for node in f.definition(ShapeDtype((3, 4), "float32")).fusion.nodes] == ["exp", "sum"]
    f(A)
    assert traces(f) == 1


def test_a_function_without_arrays_gives_numpy_arrays() -> None:
    from tracefuse import xp

    np.testing.assert_array_equal(reference(lambda n: xp.zeros(n) + 1)(3), np.ones(3))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "float16", "bool"])
def test_jax_arrays_come_back_as_jax_arrays(dtype: str) -> None:
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray(np.arange(6).reshape(2, 3) % 2).astype(dtype)
    result = reference(lambda x: (x, x.T, x + x))(x)
    assert result[0] is x
    assert all(isinstance(r, jax.Array) for r in result)
    np.testing.assert_array_equal(np.asarray(result[1]), np.asarray(x).T)
    assert result[2].dtype == x.dtype


def test_numpy_beside_jax_gives_jax() -> None:
    jax = pytest.importorskip("jax")
    assert isinstance(reference(lambda x, y: x + y)(A, jax.numpy.ones(4)), jax.Array)


def test_jax_functions_on_tracers_say_what_to_use() -> None:
    jax = pytest.importorskip("jax")
    with pytest.raises(tracefuse.TracefuseError, match=r"jax.numpy.exp\(\) of a traced array, which depends on x"):
        fuse(lambda x: jax.numpy.exp(x))(A)
    weight = jax.numpy.ones(4)
    assert isinstance(reference(lambda x: weight + x)(jax.numpy.ones(4)), jax.Array)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.ma.array([1.0]), "x is a numpy MaskedArray\n  hint: pass x.filled(value) and the mask as arrays"),
        (lambda: np.matrix([[1.0]]), "x is a numpy matrix\n  hint: pass np.asarray(x)"),
        (np.array(["a"]), "x has dtype <U1, which is not supported"),
        (np.array([None]), "x has dtype object, which is not supported"),
        (np.array(["2020"], "M8[D]"), "x has dtype datetime64[D], which is not supported"),
        (np.zeros(2, np.longdouble), "x has dtype float128, which is not supported"),
        (np.zeros(2, ">f4"), "x has non-native byte order (dtype('>f4'))"),
        (np.zeros(2, "i4,f4"), "x has dtype"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_arrays_that_are_refused_are_named(array: Any, message: str) -> None:
    array = array() if callable(array) else array
    with pytest.raises(tracefuse.TracefuseError) as error:
        fuse(lambda x: x)(array)
    assert error.value.where == f"test_fused_function.py:{sys._getframe().f_lineno - 1}"
    assert f"{error.value.message}\n  hint: {error.value.hint}".startswith(message)


def test_a_fused_function_within_another_is_part_of_its_trace() -> None:
    inner = fuse(lambda x: x + 1)
    outer = fuse(lambda x: inner(x * 2) * 3)
    np.testing.assert_array_equal(outer(A), (A * 2 + 1) * 3)
    assert inner.cache_info().traces == 0
    assert len(outer.segments(A)) == 1
