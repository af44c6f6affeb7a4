"""Tests @fuse: trace keys, pytrees, captures, scalars, static values, kinds of functions and of arrays."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import inspect
import pickle
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

import tracefuse
from tracefuse import ShapeDtype, fuse
from tracefuse.frontend.fuse import FusedFunction

A = np.arange(12, dtype=np.float32).reshape(3, 4)
GLOBAL = np.ones(4, np.float32)
SCALE = 2.0
reference = functools.partial(fuse, target="reference")


def traces(function: FusedFunction[Any, Any]) -> int:
    return function.cache_info().traces


# -- keys -------------------------------------------------------------------------------------------------------------


def test_a_new_size_is_no_new_trace() -> None:
    f = reference(lambda x, y: (x + y).sum(0) / x.shape[0])
    for n in (2, 3, 70):
        x = np.arange(n * 4.0).reshape(n, 4)
        np.testing.assert_allclose(f(x, x), (x + x).sum(0) / n)
    assert f.cache_info() == (1, 1, 2)


def test_rank_type_and_extents_of_one_are_in_the_key() -> None:
    f = reference(lambda x, y: x + y)
    for x in (A, A[0], A.astype(np.float64), A[:1], A[:, :1]):
        np.testing.assert_array_equal(f(x, A), x + A)
    assert traces(f) == 5


def test_the_layout_is_not_in_the_key() -> None:
    f = reference(lambda x: x * 2)
    f(A)
    np.testing.assert_array_equal(f(A.T), A.T * 2)
    np.testing.assert_array_equal(f(np.broadcast_to(A[0], (3, 4))), A[:1].repeat(3, 0) * 2)
    assert traces(f) == 1


def test_a_guard_that_fails_makes_another_trace_and_both_stay() -> None:
    f = reference(lambda x: x[:3] * 1 if x.shape[0] > 3 else x * 2)
    for n in (5, 2, 6, 1, 3, 7):
        x = np.arange(float(n))
        np.testing.assert_array_equal(f(x), x[:3] if n > 3 else x * 2)
    # One each for n > 3, for n = 2 and 3, and for the extent 1, which is in the key.
    assert traces(f) == 3


def test_a_computed_extent_of_one_broadcasts_as_in_numpy() -> None:
    f = reference(lambda x, y: x[1:] + y)
    y = np.arange(3.0)
    for n in (4, 2, 4):
        x = np.arange(float(n))
        np.testing.assert_array_equal(f(x, y), x[1:] + y)
    with pytest.raises(tracefuse.ShapeError, match=r"add: extents differ on axis 0: 4 .* and 3"):
        f(np.arange(5.0), y)


def test_range_over_an_extent_guards_its_value() -> None:
    @reference
    def f(x: Any) -> Any:
        total = x[0]
        for k in range(1, x.shape[0]):
            total = total + x[k]
        return total

    for n in (2, 3, 2):
        np.testing.assert_array_equal(f(A[:n].copy()), A[:n].sum(0))
    assert traces(f) == 2


# -- scalars ----------------------------------------------------------------------------------------------------------


def test_scalars_are_arguments_of_the_trace() -> None:
    f = reference(lambda x, rate, n: x * rate + n)
    for rate, n in ((0.5, 1), (0.25, 7)):
        result = f(A, rate, n)
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, A * rate + n)
    assert traces(f) == 1


def test_a_scalar_whose_outcome_is_asked_for_guards_the_outcome_only() -> None:
    f = reference(lambda x, rate: x * rate if rate > 1 else -x)
    for rate in (2.0, 3.0, 0.5, 0.25, 4.0):
        np.testing.assert_array_equal(f(A, rate), A * rate if rate > 1 else -A)
    assert traces(f) == 2


def test_a_scalar_whose_value_is_asked_for_guards_the_value() -> None:
    f = reference(lambda x, axis, n: x.sum(axis) * n)
    for axis, n in ((0, 1), (0, 2), (1, 2), (0, 3)):
        np.testing.assert_array_equal(f(A, axis, n), A.sum(axis) * n)
    assert traces(f) == 2


def test_numpy_scalars_and_0d_arrays_are_strong_scalars() -> None:
    f = reference(lambda x, s: x * s)
    assert f(A, np.float64(2)).dtype == np.float64
    assert f(A, np.array(3.0)).dtype == np.float64
    # An in-place operation would change the array, which a number is not.
    assert traces(f) == 2
    assert f(A, 2.0).dtype == np.float32


def test_results_that_are_no_arrays_come_back_as_they_are() -> None:
    marker = object()

    @reference
    def f(x: Any, n: int, rate: float) -> Any:
        return {"n": n, "size": x.shape[0] * 2, "rate": rate * 2, "text": "t", "none": None, "marker": marker, "x": x}

    for rows in (2, 3):
        result = f(A[:rows], 5, 0.5)
        expected = {"n": 5, "size": 2 * rows, "rate": 1.0, "text": "t", "none": None, "marker": marker}
        assert {k: v for k, v in result.items() if k != "x"} == expected
        assert type(result["size"]) is int
    assert traces(f) == 1


def test_an_argument_returned_untouched_is_the_same_object_and_other_results_share_no_memory() -> None:
    f = reference(lambda x: (x, x.T, x.reshape(4, 3), x[:], x * 1))
    same, *others = f(A)
    assert same is A
    for k, array in enumerate(others):
        assert not any(np.shares_memory(array, other) for other in [A, *others[:k]])


# -- static values ----------------------------------------------------------------------------------------------------


class Mode(enum.Enum):
    double = 2
    triple = 3


def test_strings_enums_slices_types_and_functions_are_static() -> None:
    def f(x: Any, *, kind: Any) -> Any:
        if isinstance(kind, str):
            return getattr(np, kind)(x)
        if isinstance(kind, slice):
            return x[kind] * 1
        if isinstance(kind, Mode):
            return x * kind.value
        return x.astype(kind) if isinstance(kind, (type, np.dtype)) else kind(x)

    fused = reference(f)
    for kind in ("exp", "sqrt", slice(0, 2), Mode.double, Mode.triple, np.int32, np.dtype(np.int8), np.tanh, "exp"):
        np.testing.assert_array_equal(fused(A, kind=kind), f(A, kind=kind))
    assert traces(fused) == 8


def test_static_arguments_are_named_or_numbered() -> None:
    def f(x: Any, n: int, options: Any) -> Any:
        return x * len(range(n)) + len(options)

    for fused in (reference(f, static_argnums=(1, 2)), reference(f, static_argnames=("n", "options"))):
        np.testing.assert_array_equal(fused(A, 2, frozenset("ab")), A * 2 + 2)
        np.testing.assert_array_equal(fused(A, n=3, options=frozenset()), A * 3)
        with pytest.raises(tracefuse.TraceError) as error:
            fused(A, 2, [1])
        assert str(error.value).startswith("static argument 2 is a list, which is neither an array nor hashable")


def test_an_object_that_is_not_static_by_itself_is_named() -> None:
    with pytest.raises(tracefuse.TraceError) as error:
        fuse(lambda x, thing: x)(A, {"k": object()})
    assert str(error.value) == (
        "thing['k'] is a object, which is not an array, a number or a static value "
        f"(test_fuse.py:{sys._getframe().f_lineno - 3})\n"
        "  hint: name it in static_argnames, or register its class with register_pytree_node"
    )


# -- pytrees ----------------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Layer:
    weight: Any
    bias: Any
    activation: str = "tanh"


class Box:
    def __init__(self, content: Any) -> None:
        self.content = content


tracefuse.register_pytree_node(Box, lambda box: ((box.content,), None), lambda _, children: Box(*children))


def test_arguments_and_results_are_trees() -> None:
    @reference
    def f(layer: Layer, points: list[Point], *, extra: dict[str, Any], box: Box) -> Any:
        h = getattr(np, layer.activation)(points[0].x @ layer.weight + layer.bias)
        return Layer(h, extra["e"] + 1), Point(h, (points[0].y,)), Box(box.content * 2)

    w, b = np.ones((4, 2), np.float32), np.zeros(2, np.float32)
    layer, point, box = f(Layer(w, b), [Point(A, 1)], extra={"e": b}, box=Box(b))
    expected = np.tanh(A @ w + b)
    assert isinstance(layer, Layer)
    assert isinstance(point, Point)
    assert isinstance(box, Box)
    np.testing.assert_allclose(layer.weight, expected, rtol=1e-6)
    assert (layer.activation, point.y) == ("tanh", (1,))
    assert traces(f) == 1
    f(Layer(w, b, "exp"), [Point(A, 1)], extra={"e": b}, box=Box(b))
    assert traces(f) == 2


def test_messages_spell_the_path_of_an_argument() -> None:
    @fuse(target="reference")
    def f(params: Any, batch: Any) -> Any:
        return params["w"] + batch[0].x

    with pytest.raises(tracefuse.ShapeError, match=r"3 \(params\['w'\], test_fuse.py:\d+\) and 4 \(batch\[0\].x"):
        f({"w": np.ones(3)}, [Point(np.ones(4), 1)])


def test_ordered_mappings_keep_their_kind() -> None:
    result = reference(lambda d: collections.OrderedDict((k, v * 2) for k, v in d.items()))({"b": A, "a": A})
    assert list(result) == ["b", "a"]


# -- captures ---------------------------------------------------------------------------------------------------------


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


# -- being a function -------------------------------------------------------------------------------------------------


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
        assert str(error.value) == (
            f"{function.__name__} is a generator or an async function (test_fuse.py:{sys._getframe().f_lineno - 2})\n"
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


# -- kinds of arrays --------------------------------------------------------------------------------------------------


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
    assert error.value.where == f"test_fuse.py:{sys._getframe().f_lineno - 1}"
    assert f"{error.value.message}\n  hint: {error.value.hint}".startswith(message)


def test_a_fused_function_within_another_is_part_of_its_trace() -> None:
    inner = fuse(lambda x: x + 1)
    outer = fuse(lambda x: inner(x * 2) * 3)
    np.testing.assert_array_equal(outer(A), (A * 2 + 1) * 3)
    assert inner.cache_info().traces == 0
    assert len(outer.segments(A)) == 1
