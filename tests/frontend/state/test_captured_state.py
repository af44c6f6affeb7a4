"""Tests captured state that changes between calls: each call uses the current values."""

from __future__ import annotations

import copy
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

import tracefuse
from tests.frontend.state.state_layers import Layer, V
from tracefuse import fuse
from tracefuse.frontend.tracer.python_code.code_names import names_of

FIRST = SECOND = np.arange(3.0)
scale: Any = 2.0
shape, size = 3, 7
input: Any = np.arange(3.0)  # a name of Python's own
MODULE = ModuleType("state_of_a_module")
exec("def scaled(x):\n    return x * w + scale\n", MODULE.__dict__)

Change = Callable[[], Any]
Program = Callable[[], tuple[Callable[..., Any], list[Change]]]


@pytest.fixture(autouse=True)
def _state_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = dict(globals())
    vars(MODULE).update(w=np.arange(3.0), scale=2.0)
    vars(MODULE).update(v=vars(MODULE)["w"])
    monkeypatch.setitem(sys.modules, "state_of_a_module", MODULE)
    yield
    globals().update(before)


def to_global(name: str, value: Any) -> Change:
    return lambda: globals().__setitem__(name, value)


def to_attribute(owner: Any, name: str, value: Any) -> Change:
    return lambda: setattr(owner, name, value)


def to_entry(container: Any, key: Any, value: Any) -> Change:
    return lambda: container.__setitem__(key, value)


def two_globals() -> Any:
    return lambda x: x * FIRST + SECOND, [
        to_global("SECOND", V + 5), to_global("FIRST", V + 7), to_global("SECOND", V + 1),
    ]  # fmt: skip


def globals_swapped() -> Any:
    def swap() -> None:
        globals().update(FIRST=SECOND, SECOND=FIRST)

    return lambda x: x * FIRST - SECOND, [to_global("SECOND", V + 4), swap, to_global("FIRST", V), swap]


def a_global_named_as_a_builtin() -> Any:
    return lambda x: x * input, [to_global("input", V + 5)]


def two_cells() -> Any:
    first = second = np.ones(3)

    def function(x: Any) -> Any:
        return x * first + second

    def change() -> None:
        nonlocal second
        second = V + 3

    def join() -> None:
        nonlocal first
        first = second

    return function, [change, join, change]


def a_default_array() -> Any:
    def function(x: Any, w: Any = V + 1) -> Any:
        return x * w

    return function, [to_attribute(function, "__defaults__", (V + 9,))]


def a_default_list() -> Any:
    held = [1.0]

    def function(x: Any, w: Any = held, *, k: Any = 1.5) -> Any:
        return x * sum(w) * k

    keywords = function.__kwdefaults__
    return function, [lambda: held.append(5.0), to_entry(held, 0, 3.0), to_entry(keywords, "k", 4.0)]


def a_partial_of_a_function_with_state() -> Any:
    def function(w: Any, x: Any) -> Any:
        return x * w * scale

    return functools.partial(function, V + 1), [to_global("scale", 4.0)]


def a_captured_partial() -> Any:
    def scaled(w: Any, x: Any, k: float = 1.0) -> Any:
        return x * w * scale * k

    part = functools.partial(scaled, np.ones(3), k=2.0)

    def change() -> None:
        nonlocal part
        part = functools.partial(scaled, V + 1, k=3.0)

    return lambda x: part(x), [change, to_global("scale", 1.5), lambda: part.keywords.__setitem__("k", 9.0)]


def nested_functions() -> Any:
    w, s = np.ones(3), 2.0

    def function(x: Any) -> Any:
        def inner(y: Any) -> Any:
            return y * w * s

        return inner(x) + (lambda z: z * s + FIRST)(x) + sum([x * scale for _ in range(2)])

    def change() -> None:
        nonlocal w, s
        w, s = V + 4, 7.0

    return function, [change, to_global("FIRST", V + 11), to_global("scale", 0.5)]


def class_attributes() -> Any:
    class Settings:
        w, scale = np.ones(3), 2.0
        table: ClassVar[dict[str, Any]] = {"k": np.ones(3)}

        @staticmethod
        def shifted(x: Any) -> Any:
            return x + FIRST

        @classmethod
        def weighted(cls, x: Any) -> Any:
            return x * cls.w

    def function(x: Any) -> Any:
        return Settings.shifted(x) * Settings.scale + Settings.table["k"] * Settings.weighted(x)

    return function, [
        to_attribute(Settings, "w", V + 1), to_attribute(Settings, "scale", 9.0),
        to_entry(Settings.table, "k", V + 3), to_global("FIRST", V + 8),
    ]  # fmt: skip


def attributes_of_a_module() -> Any:
    return lambda x: x * MODULE.w + MODULE.v * MODULE.scale, [
        to_attribute(MODULE, "v", V + 2), to_attribute(MODULE, "scale", 3.0), to_attribute(MODULE, "w", V + 2),
    ]  # fmt: skip


def a_module_imported_inside() -> Any:
    def function(x: Any) -> Any:
        import state_of_a_module as module  # type: ignore[import-not-found]
        from state_of_a_module import v

        return x * module.w * module.scale + v

    return function, [to_attribute(MODULE, name, V + k) for k, name in enumerate(("w", "v", "scale"))]


def a_function_of_a_module() -> Any:
    return lambda x: MODULE.scaled(x), [to_attribute(MODULE, "w", V + 6), to_attribute(MODULE, "scale", 8.0)]


def entries_of_a_list() -> Any:
    held = [V, V + 1]

    def join() -> None:
        held[1] = held[0]

    return lambda x: x * held[0] + held[1], [join, to_entry(held, 0, V + 5), join, to_entry(held, 1, V + 3)]


def entries_of_a_dict() -> Any:
    held = {"a": V}
    held["b"] = held["a"]
    return lambda x: x * held["a"] + held["b"], [to_entry(held, "b", V + 1), to_entry(held, "a", V + 4)]


def entries_of_tuples() -> Any:
    class Pair(NamedTuple):
        a: Any
        b: Any

    w = np.ones(3)
    held = Pair((w, 2.0), [w])
    return lambda x: x * held.a[0] * held.a[1] + held.b[0], [to_entry(held.b, 0, V + 6)]


def one_object_under_two_names() -> Any:
    layer = Layer(np.ones(3))
    held = SimpleNamespace(a=layer, b=layer)
    other = Layer(V + 3)
    return lambda x: held.a.w * x + held.b.w, [
        to_attribute(held, "b", other), to_attribute(held, "a", other), to_attribute(other, "w", V + 8),
    ]  # fmt: skip


def a_method_of_the_class_above() -> Any:
    layer = Layer(np.ones(3))
    return lambda x: layer(x), [
        to_attribute(layer, "w", V + 2), to_attribute(layer, "k", 5.0), to_attribute(layer, "bias", V + 9),
    ]  # fmt: skip


def a_captured_method() -> Any:
    layer = Layer(np.ones(3))
    forward = layer.forward
    return lambda x: forward(x), [to_attribute(layer, "w", V + 2), to_attribute(layer, "k", 3.0)]


def a_property() -> Any:
    layer = Layer(np.ones(3))
    return lambda x: x * layer.weight, [to_attribute(layer, "w", V + 3)]


def an_object_that_is_called() -> Any:
    layer = Layer(np.ones(3))
    return layer, [to_attribute(layer, "w", V + 1), to_attribute(layer, "k", 6.0)]


def an_object_made_inside() -> Any:
    class Point:
        def __init__(self, v: Any) -> None:
            self.v = v * FIRST * scale

        def norm(self) -> Any:
            return (self.v**2).sum() + SECOND

    changes = [to_global("FIRST", V + 1), to_global("scale", 3.0), to_global("SECOND", V + 2)]
    return lambda x: Point(x).norm(), changes


def one_function_under_two_names() -> Any:
    def doubled(x: Any) -> Any:
        return x * scale

    first = second = doubled

    def change() -> None:
        nonlocal second
        second = lambda x: x * 100  # noqa: E731

    return lambda x: first(x) + second(x), [change, to_global("scale", 2.25)]


def the_sign_of_zero() -> Any:
    zero = 0.0

    def change() -> None:
        nonlocal zero
        zero = -0.0

    return lambda x: np.copysign(x, zero), [change]


def arrays_without_axes() -> Any:
    first = second = np.array(2.0)

    def change() -> None:
        nonlocal second
        second = np.array(5.0)

    return lambda x: x * first + second, [change]


def a_fused_function_inside() -> Any:
    inner = fuse(lambda y: y * FIRST * scale)
    return lambda x: inner(x) + SECOND, [to_global("FIRST", V + 12), to_global("scale", 0.5), to_global("SECOND", V)]


PROGRAMS: list[Program] = [
    two_globals, globals_swapped, a_global_named_as_a_builtin, two_cells, a_default_array, a_default_list,
    a_partial_of_a_function_with_state, a_captured_partial, nested_functions, class_attributes, attributes_of_a_module,
    a_module_imported_inside, a_function_of_a_module, entries_of_a_list, entries_of_a_dict, entries_of_tuples,
    one_object_under_two_names, a_method_of_the_class_above, a_captured_method, a_property, an_object_that_is_called,
    an_object_made_inside, one_function_under_two_names, the_sign_of_zero, arrays_without_axes, a_fused_function_inside,
]  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"target": "reference"}], ids=["compiled", "reference"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_each_call_gives_the_value_for_the_state_at_that_call(program: Program, options: dict[str, Any]) -> None:
    plain, changes = program()
    fused, x = fuse(plain, **options), V + 1
    for change in (lambda: None, *changes):
        change()
        for _ in range(3):
            expected, found = plain(x), fused(x)
            np.testing.assert_allclose(found, expected, rtol=1e-14)
            np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


def test_one_array_under_two_names_is_traced_again_only_when_they_part() -> None:
    first = second = np.ones(3)
    f = fuse(lambda x: x * first + second)
    f(V)
    first = second = V + 1
    np.testing.assert_array_equal(f(V), V * first + second)
    assert f.cache_info().traces == 1
    second = V + 2
    np.testing.assert_array_equal(f(V), V * first + second)
    first = V + 3
    np.testing.assert_array_equal(f(V), V * first + second)
    first = second = V + 4
    np.testing.assert_array_equal(f(V), V * first + second)
    assert f.cache_info().traces == 2


def test_arguments_that_were_one_object_may_be_two_later_and_the_reverse() -> None:
    def positional(x: Any, y: Any) -> Any:
        return x * 2 - y

    def changed(x: Any, y: Any) -> Any:
        x += 1
        return x * y

    for function in (positional, changed):
        for order in itertools.permutations(((0, 0), (0, 1), (1, 1), (1, 0)), 3):
            fused = fuse(function)
            own, other = [V + 1, V + 5], [V + 1, V + 5]
            for first, second in order:
                expected = function(own[first], y=own[second])
                np.testing.assert_array_equal(fused(other[first], y=other[second]), expected)
                np.testing.assert_array_equal(other, own)


# -- names ------------------------------------------------------------------------------------------------------------


def test_an_attribute_says_nothing_of_a_global_of_its_name() -> None:
    f = fuse(lambda x: x.reshape(x.shape) * x.size + x.copy())
    f(V)
    globals().update(shape=9, size=8)
    for n in (4, 5, 6):
        f(np.ones(n))
    assert f.cache_info().traces == 1
    assert next(iter(f._cache._entries.values()))[0].trace.statics == ()
    assert copy.copy(V) is not V


def test_names_are_told_apart_by_what_reads_them() -> None:
    cell = 1

    def function(x: Any, y: Any = size) -> Any:
        import state_of_a_module as m

        def inner(z: Any) -> Any:
            return z.inner_attribute + scale + cell

        class Made:
            field = SECOND

        m.stored = x.method()
        return [FIRST for _ in x], (lambda: input)(), inner, Made, y

    names = names_of(function.__code__)
    assert {"FIRST", "SECOND", "input", "scale"} <= names.globals
    assert names.globals.isdisjoint({"size", "x", "cell", "method", "stored", "field", "inner_attribute"})
    assert names.attributes == {"stored", "method", "inner_attribute"}
    assert names.modules == {"state_of_a_module"}
    first = function.__code__.co_firstlineno
    assert names.line("globals", "scale") == f"test_captured_state.py:{first + 4}"
    assert names.line("cells", "cell") == f"test_captured_state.py:{first + 4}"


def test_state_that_differs_as_soon_as_it_is_read_again_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no other thread may change it; other tests may have left threads."""
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    numbers = iter(range(100))
    vars(MODULE)["__getattr__"] = lambda name: float(next(numbers))
    try:
        with pytest.raises(
            tracefuse.TraceError, match=r"MODULE.drawn was [\d.]+, now [\d.]+ \(test_captured_state.py:\d+\)"
        ):
            fuse(lambda x: x * MODULE.drawn)(V)
    finally:
        del vars(MODULE)["__getattr__"]
