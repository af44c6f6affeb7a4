"""The clone that a trace runs: Python's own features work in it, and nothing outside sees the trace."""

from __future__ import annotations

import abc
import copy
import dataclasses
import functools
import gc
import sys
import threading
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

import tracefuse
from tracefuse import fuse
from tracefuse.frontend.tracer.values.traced import Traced

X = np.arange(4.0)
W = np.full(4, 2.0)
K = 3.0
reference = functools.partial(fuse, target="reference")


class Activation(abc.ABC):
    made: ClassVar[list[str]] = []

    def __init_subclass__(cls, **keywords: Any) -> None:
        Activation.made.append(cls.__name__)

    @abc.abstractmethod
    def __call__(self, x: Any) -> Any: ...

    @staticmethod
    def scaled(x: Any) -> Any:
        return x * K

    @classmethod
    def named(cls, x: Any) -> Any:
        return x + len(cls.__name__)


class Shifted(Activation):
    def __init__(self) -> None:
        self.shift = np.ones(4)

    def __call__(self, x: Any) -> Any:
        return self.scaled(self.named(x)) + self.shift + np.zeros(len(x))


class Lazy:
    def __init__(self) -> None:
        self.table = {"a": np.ones(4), "b": 2.0}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["table"][name]
        except KeyError:
            raise AttributeError(name) from None


class Descriptor:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else getattr(instance, self.name, 1.0) * K

    def __set__(self, instance: Any, value: Any) -> None:
        setattr(instance, self.name, value)


class Described:
    size = Descriptor()

    def __init__(self) -> None:
        self.size = 4.0


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    w: Any
    name: str = "w"

    def scaled(self) -> Any:
        return self.w * len(self.name)


@dataclasses.dataclass
class Parent:
    child: Frozen
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self.extra.setdefault("n", 1)


class Point(NamedTuple):
    x: Any
    y: Any

    def norm(self) -> Any:
        return (self.x**2 + self.y**2) ** 0.5


class Vector:
    def __init__(self, v: Any) -> None:
        self.v = v

    def __add__(self, other: Any) -> Vector:
        return Vector(self.v + (other.v if isinstance(other, Vector) else other))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vector) and self.v is other.v

    def __hash__(self) -> int:
        return 7

    def __len__(self) -> int:
        return 4

    def __getitem__(self, k: int) -> Any:
        return self.v[k]


class Counting:
    instances = 0

    def __new__(cls) -> Counting:
        one = super().__new__(cls)
        one.serial = 5  # type: ignore[attr-defined]
        return one

    def __init__(self) -> None:
        self.w = np.ones(4) * K


ACTIVATION, LAZY, DESCRIBED, PARENT = Shifted(), Lazy(), Described(), Parent(Frozen(np.ones(4), "name"))
POINT, VECTOR = Point(np.ones(4), 2.0), Vector(np.ones(4))


def factorial(n: int, x: Any) -> Any:
    return x if n <= 1 else n * factorial(n - 1, x)


def is_even(n: int) -> bool:
    return n == 0 or is_odd(n - 1)


def is_odd(n: int) -> bool:
    return n != 0 and is_even(n - 1)


@functools.cache
def memoised(n: int) -> float:
    return n * K


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords) * K

    return call


@decorated
def squared(x: Any, *, by: float = 1.0) -> Any:
    return x * x * by


def class_body(x: Any) -> Any:
    class Local:
        scale = K
        weights = W * 2

        def apply(self, y: Any) -> Any:
            return y * self.scale + self.weights + np.ones(4)

    return Local().apply(x)


def uses_globals(x: Any) -> Any:
    names = globals()
    return x * names["K"] + names.get("W") + ("no such name" in names) + eval("K")


def imports_inside(x: Any) -> Any:
    import math

    from numpy import zeros as made

    return x + math.sqrt(4.0) + made(4)


def copies(x: Any) -> Any:
    one = copy.copy(PARENT)
    one.extra = {**one.extra, "n": 9}
    two = dataclasses.replace(PARENT, child=Frozen(x * 2, "ab"))
    assert PARENT.extra["n"] == 1
    return one.child.scaled() * one.extra["n"] + two.child.scaled() + len(dataclasses.fields(two))


def matches(x: Any) -> Any:
    match PARENT.child:
        case Frozen(w=w, name="name"):
            return x * w
        case _:
            return x


def excepts(x: Any) -> Any:
    try:
        return x * LAZY.missing
    except AttributeError as error:
        return x * len(str(error))


def comprehensions(x: Any) -> Any:
    return sum(x * w * K for w in [W, W + 1]) + max({k: k * K for k in range(3)}.values())


def generators(x: Any) -> Any:
    def parts() -> Any:
        for k in range(3):
            yield x * k * K

    return sum(parts())


def equal_objects(x: Any) -> Any:
    table = {VECTOR: 1.0, ACTIVATION: 2.0}
    return x * table[VECTOR] + table[ACTIVATION] + (VECTOR == VECTOR) + (VECTOR + x)[0] + len(VECTOR)


FUNCTIONS: list[Callable[[Any], Any]] = [
    lambda x: ACTIVATION(x), lambda x: LAZY.a * x * LAZY.b, lambda x: x * DESCRIBED.size, lambda x: POINT.norm() * x,
    lambda x: PARENT.child.scaled() * x, lambda x: factorial(4, x), lambda x: x * is_even(4), lambda x: x * memoised(3),
    lambda x: squared(x, by=2.0), class_body, uses_globals, imports_inside, copies, matches, excepts, comprehensions,
    generators, equal_objects, lambda x: Counting().w * Counting().serial + x,  # type: ignore[attr-defined]
    lambda x: x * isinstance(ACTIVATION, Activation) + isinstance(x, Activation) + issubclass(Shifted, Activation),
    lambda x: x * (type(ACTIVATION) is Shifted) * len(type(ACTIVATION).__name__) * (ACTIVATION.__class__ is Shifted),
    lambda x: x * hasattr(LAZY, "none") + getattr(LAZY, "b") + len(vars(ACTIVATION)),  # noqa: B009
    lambda x: functools.reduce(lambda a, b: a + b, [x, W, W * K]), lambda x: x * Activation.scaled(2.0),
    lambda x: x * {"a": {"b": [K, (W, 1)]}}["a"]["b"][0] + Point(x, W)._replace(y=1.0).norm(),
]  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_clone_gives_what_the_function_gives(function: Callable[[Any], Any]) -> None:
    before = list(Activation.made)
    fused = reference(function)
    for k in range(2):
        np.testing.assert_allclose(fused(X + k), function(X + k), rtol=1e-14)
    assert fused.cache_info().traces == 1
    assert Activation.made == before


def test_no_object_outside_sees_the_trace() -> None:
    seen: list[Any] = []
    inside, outside = threading.Event(), threading.Event()
    state = SimpleNamespace(w=np.ones(4), log=[], layer=ACTIVATION)

    def function(x: Any) -> Any:
        state.w = state.w + x
        state.log.append(x * K)
        state.fresh = x
        globals()["K"] = 3.0
        inside.set()
        assert outside.wait(10)
        return state.w * W

    def look() -> None:
        assert inside.wait(10)
        seen.extend([state.w, *state.log, state.layer.shift, W, *vars(state)])
        state.w += 1.0
        seen.append(W.flags.writeable)
        outside.set()

    thread = threading.Thread(target=look)
    thread.start()
    reference(function)(X)
    thread.join()
    assert not any(isinstance(value, Traced) for value in seen)
    assert "fresh" not in [one for one in seen if isinstance(one, str)]
    assert seen[-1] is True
    np.testing.assert_array_equal(state.w, 2 + X)


def test_two_threads_trace_functions_of_one_state() -> None:
    shared = SimpleNamespace(w=np.ones(4), table={"k": 2.0})
    results: dict[int, Any] = {}

    def run(n: int) -> None:
        fused = reference(lambda x: x * shared.w * shared.table["k"] * n + ACTIVATION(x))
        results[n] = [fused(X + k) for k in range(5)]

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(4):
        for k in range(5):
            np.testing.assert_allclose(results[n][k], (X + k) * 2.0 * n + ACTIVATION(X + k), rtol=1e-14)


def test_an_exception_leaves_the_state_as_it_was() -> None:
    state = SimpleNamespace(w=np.ones(4), n=0, log=[1], table={"a": 1})

    def function(x: Any, fails: bool) -> Any:
        state.w = state.w + x
        state.w += 1
        state.n += 1
        state.log.append(2)
        state.table["b"] = x
        if fails:
            raise KeyError("on purpose")
        return x

    before = copy.deepcopy(vars(state))
    fused = fuse(function, target="reference", static_argnames="fails")
    with pytest.raises(KeyError, match="on purpose"):
        fused(X, True)
    assert repr(vars(state)) == repr(before)
    fused(X, False)
    assert state.n == 1
    assert state.log == [1, 2]
    with pytest.raises(KeyError, match="on purpose"):
        fused(X, True)
    assert state.n == 1


def test_an_error_of_a_call_leaves_the_state_as_it_was() -> None:
    state = SimpleNamespace(n=0, last=np.zeros(2))

    @fuse
    def function(x: Any, k: Any) -> Any:
        state.n += 1
        state.last = x[k] * 2
        return state.last

    function(X, np.array([0, 1]))
    with pytest.raises(IndexError):
        function(X, np.array([0, 9]))
    assert state.n == 1
    np.testing.assert_array_equal(state.last, [0.0, 2.0])


def test_explaining_a_call_changes_no_state() -> None:
    state = SimpleNamespace(n=0)

    def function(x: Any) -> Any:
        state.n += 1
        return x * 2

    fused = fuse(function)
    fused.explain(X)
    assert state.n == 0
    fused(X)
    assert state.n == 1


def test_an_inner_fused_function_sees_the_overlays_of_the_outer_trace() -> None:
    state = SimpleNamespace(w=np.ones(4))

    class Inner:
        def __init__(self) -> None:
            self.calls = 0

        @fuse
        def step(self, x: Any) -> Any:
            self.calls += 1
            return state.w * x + np.zeros(4)

    inner = Inner()
    bound = inner.step

    def outer(x: Any) -> Any:
        state.w = x
        return inner.step(x) + bound(x)

    fused = reference(outer)
    for k in range(3):
        np.testing.assert_array_equal(fused(X + k), 2 * (X + k) ** 2)
        assert inner.calls == 2 * (k + 1)


def test_one_container_passed_twice_is_refused_if_it_is_changed() -> None:
    def function(a: dict[str, Any], b: dict[str, Any]) -> Any:
        a["w"] = a["w"] + X
        return b["w"] * 1

    fused, one, two = fuse(function), {"w": X}, {"w": X}
    np.testing.assert_array_equal(fused(one, two), X)
    with pytest.raises(tracefuse.UnsupportedError, match="a and b are one dict, which the function changes"):
        fused(one, one)
    np.testing.assert_array_equal(one["w"], X + X)


def test_containers_among_the_arguments_are_changed() -> None:
    def function(x: Any, p: dict[str, Any], parts: list[Any], parent: Parent) -> Any:
        for name in p:
            p[name] = p[name] - 0.5 * x
        p["n"] = len(parts)
        parts[0], parts[1] = parts[1], parts[0] * x
        parent.extra["n"] += 1
        parent.child = Frozen(parent.child.w + x, "new")
        return parent.child.scaled()

    def make() -> tuple[Any, ...]:
        return {"w": X + 1}, [X, X + 2], Parent(Frozen(X, "w"))

    fused, own, other = fuse(function), make(), make()
    for k in range(3):
        np.testing.assert_allclose(fused(X + k, *other), function(X + k, *own))
        assert repr(own) == repr(other)
        own[0].pop("n")
        other[0].pop("n")


def test_the_same_dict_as_argument_and_attribute_is_one_dict() -> None:
    class Model:
        def __init__(self) -> None:
            self.parameters = {"w": np.ones(4)}

        def step(self, x: Any, p: dict[str, Any]) -> Any:
            p["w"] = p["w"] + x
            return self.parameters["w"] * 1

    one, other = Model(), Model()
    fused = fuse(one.step)
    for k in range(2):
        np.testing.assert_array_equal(fused(X + k, one.parameters), other.step(X + k, other.parameters))
    np.testing.assert_array_equal(fused(X, {"w": X}), other.step(X, {"w": X}))
    np.testing.assert_array_equal(one.parameters["w"], other.parameters["w"])


def test_what_a_trace_creates_is_collected() -> None:
    gc.collect()
    before = [one for one in gc.get_objects() if isinstance(one, Traced)]
    module = types.ModuleType("short_lived")
    exec("import numpy as np\nw = np.ones(4)\nclass A:\n    b = w\ndef f(x):\n    return x * A().b\n", module.__dict__)
    sys.modules["short_lived"] = module
    try:
        fuse(module.f, target="reference")(X)
    finally:
        del sys.modules["short_lived"]
    gc.collect()
    assert len([one for one in gc.get_objects() if isinstance(one, Traced)]) == len(before)
    assert module.A.__subclasses__() == []


def test_sizes_as_keys_of_captured_dicts_are_their_values() -> None:
    sums: dict[Any, Any] = {}

    def add(x: Any) -> Any:
        if x.shape not in sums:
            sums[x.shape] = np.zeros(x.size)
        sums[x.shape] += x.ravel()
        return sums[x.shape] * len(x)

    fused = fuse(add, target="reference")
    for n in (3, 3, 4, 3, 4):
        fused(np.ones((n, 2)))
    assert {key: value.tolist() for key, value in sums.items()} == {(3, 2): [3.0] * 6, (4, 2): [2.0] * 8}
    assert all(type(extent) is int for key in sums for extent in key)
