"""Programs that change state around them, against the plain function on a state of its own, over ten calls.

After each call the result, every object of the state and the arguments are those of the plain function. The number of
traces is bounded.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

from tracefuse import fuse

Program = Callable[[], tuple[Callable[..., Any], Any]]
"""Makes a function of one array, and everything that it changes."""


def sgd_in_a_dict() -> Any:
    p = {"w": np.ones(4), "b": np.zeros(1)}

    def step(x: Any) -> Any:
        for k in p:
            p[k] = p[k] - 0.1 * x.mean() * (k == "w")
        return p["w"].sum() + p["b"]

    return step, p


def momentum_in_place() -> Any:
    class Momentum:
        def __init__(self) -> None:
            self.w, self.v = np.ones(4), np.zeros(4)

        def step(self, x: Any) -> Any:
            self.v *= 0.9
            self.v += x.sum()
            self.w -= 0.1 * self.v
            return self.w * 2

    one = Momentum()
    return one.step, one


class Adam:
    """As the optimizers of the usual libraries, with moments in dicts that the first step creates."""

    def __init__(self, parameters: dict[str, Any], rate: float = 0.1) -> None:
        self.parameters, self.rate, self.t = parameters, rate, 0
        self.m: dict[str, Any] = {}
        self.v: dict[str, Any] = {}

    def step(self, gradients: dict[str, Any]) -> None:
        self.t += 1
        for name, g in gradients.items():
            if name not in self.m:
                self.m[name] = np.zeros_like(g)
                self.v[name] = np.zeros_like(g)
            self.m[name] = 0.9 * self.m[name] + 0.1 * g
            self.v[name] = 0.99 * self.v[name] + 0.01 * g**2
            m = self.m[name] / (1 - 0.9**self.t)
            v = self.v[name] / (1 - 0.99**self.t)
            self.parameters[name] -= self.rate * m / (np.sqrt(v) + 1e-8)


def adam_in_a_class() -> Any:
    parameters = {"w": np.ones(4), "b": np.ones(4)}
    optimizer = Adam(parameters)

    def train(x: Any) -> Any:
        error = parameters["w"] * x.sum() - parameters["b"]
        optimizer.step({"w": error, "b": -error})
        return (error**2).sum()

    return train, (parameters, optimizer)


class Cell:
    def __init__(self, n: int) -> None:
        self.w = np.eye(n) * 0.5
        self.h: Any = None

    def __call__(self, x: Any) -> Any:
        if self.h is None:
            self.h = np.zeros_like(x)
        self.h = np.tanh(x + self.h @ self.w)
        return self.h


def a_recurrent_cell() -> Any:
    cell = Cell(3)
    return lambda x: cell(x[:3]) * 2, cell


def a_running_average() -> Any:
    state = SimpleNamespace(mean=0.0, count=0)

    def update(x: Any) -> Any:
        state.count += 1
        state.mean = state.mean + (x.mean() - state.mean) / state.count
        return x - state.mean

    return update, state


def a_ring_buffer() -> Any:
    recent: collections.deque[Any] = collections.deque(maxlen=3)

    def push(x: Any) -> Any:
        recent.append(x.sum())
        return x + sum(recent)

    return push, recent


def a_ring_buffer_of_an_array() -> Any:
    state = SimpleNamespace(buffer=np.zeros((4, 3)), position=0)

    def push(x: Any) -> Any:
        state.buffer[state.position % 4] = x[:3]
        state.position += 1
        return state.buffer.mean(axis=0)

    return push, state


COUNTER = 0
TOTAL = np.zeros(3)


def a_global_counter() -> Any:
    globals().update(COUNTER=0, TOTAL=np.zeros(3))

    def count(x: Any) -> Any:
        global COUNTER, TOTAL
        COUNTER += 1
        TOTAL = TOTAL + x[:3]
        return x * COUNTER

    return count, lambda: (COUNTER, TOTAL)


def a_counter_in_a_cell() -> Any:
    calls, last = 0, np.zeros(3)

    def count(x: Any) -> Any:
        nonlocal calls, last
        calls += 2
        last, before = x[:3] * calls, last
        return last + before

    return count, lambda: (calls, last)


def a_history_of_losses() -> Any:
    losses: list[Any] = []

    def step(x: Any) -> Any:
        losses.append((x**2).sum())
        losses.append("done")
        return x * 2

    return step, losses


def the_last_entry_of_a_history() -> Any:
    history = [np.zeros(3)]

    def step(x: Any) -> Any:
        history.append(history[-1] * 0.5 + x[:3])
        return history[-1] - history[-2]

    return step, history


def previous_and_current() -> Any:
    state = SimpleNamespace(current=np.zeros(3), previous=np.ones(3))

    def step(x: Any) -> Any:
        new = 2 * state.current - state.previous + x[:3]
        state.previous, state.current = state.current, new
        return new

    return step, state


def a_lazily_created_buffer() -> Any:
    class Layer:
        def __init__(self) -> None:
            self.scale = 2.0

        def __call__(self, x: Any) -> Any:
            if not hasattr(self, "buffer"):
                self.buffer = np.zeros(3)
            self.buffer += x[:3] * self.scale
            return self.buffer.copy()

    layer = Layer()
    return layer, layer


class Cached:
    def __init__(self) -> None:
        self.w = np.arange(3.0)
        self.reads = 0

    @functools.cached_property
    def normalized(self) -> Any:
        self.reads += 1
        return self.w / (self.w.sum() + 1)

    @property
    def scale(self) -> float:
        return 2.0 + self.reads

    @scale.setter
    def scale(self, value: float) -> None:
        self.reads = value


def a_cached_property() -> Any:
    one = Cached()

    def use(x: Any) -> Any:
        one.scale = one.scale - 1.0
        return x[:3] * one.normalized

    return use, one


def a_memo_dict() -> Any:
    memo: dict[Any, Any] = {}

    def table(n: int) -> Any:
        if n not in memo:
            memo[n] = np.arange(n) * 2.0
        return memo[n]

    return lambda x: x[:3] * table(3) + table(4)[1:], memo


@dataclasses.dataclass
class State:
    step: int
    mean: Any
    tags: list[str] = dataclasses.field(default_factory=list)


def a_dataclass_that_is_replaced() -> Any:
    held = SimpleNamespace(state=State(0, np.zeros(3)))

    def step(x: Any) -> Any:
        state = held.state
        held.state = dataclasses.replace(
            state, step=state.step + 1, mean=state.mean + x[:3], tags=[*state.tags[:1], "a"]
        )
        return held.state.mean * held.state.step

    return step, held


@dataclasses.dataclass(slots=True)
class Slotted:
    total: Any
    count: float = 0.0

    def add(self, x: Any) -> None:
        self.total, self.count = self.total + x, self.count + 0.5


def a_class_with_slots() -> Any:
    one = Slotted(np.zeros(3))

    def step(x: Any) -> Any:
        one.add(x[:3])
        return one.total * one.count

    return step, one


class Base:
    made: ClassVar[int] = 0
    table: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.w = np.ones(3)

    def update(self, x: Any) -> Any:
        type(self).made += 1
        self.w = self.w + x
        return self.w


class Derived(Base):
    def update(self, x: Any) -> Any:
        Base.table["last"] = super().update(x) * 0.5
        return self.table["last"] + self.made


def class_attributes_and_super() -> Any:
    if "made" in vars(Derived):
        del Derived.made
    Base.table = {}
    one = Derived()
    return lambda x: one.update(x[:3]), lambda: (one, Derived.made, Base.made, Base.table)


class Pair(NamedTuple):
    a: Any
    b: Any


def new_containers_in_the_state() -> Any:
    state = SimpleNamespace(pair=Pair(np.zeros(3), 0), nested={"k": [np.zeros(3)]}, same=None)

    def step(x: Any) -> Any:
        y = x[:3] + state.pair.a
        state.pair = Pair(y, state.pair.b + 1)
        state.nested = {"k": [y * 2, *state.nested["k"][:1]], "y": y}
        state.same = [y, state.nested]
        return state.nested

    return step, state


def a_list_that_is_reordered() -> Any:
    held = [np.zeros(3), np.ones(3), np.full(3, 2.0)]

    def step(x: Any) -> Any:
        first = held.pop(0)
        held.insert(1, first + x[:3])
        held[0] = held[0] * 0.5
        return sum(held)

    return step, held


def entries_that_come_and_go() -> Any:
    held: dict[str, Any] = {"old": np.ones(3), "n": 1, "flag": False}
    seen: set[str] = set()

    def step(x: Any) -> Any:
        if held.pop("flag"):
            held.setdefault("extra", x[:3])
        held["flag"] = "old" in held
        held["n"] *= 2
        seen.add("step")
        return x[:3] * held["n"] + len(seen)

    return step, (held, seen)


class Node:
    def __init__(self, value: Any, following: Any = None) -> None:
        self.value, self.following = value, following


def a_linked_list() -> Any:
    state = SimpleNamespace(head=Node(np.zeros(3)), size=1)

    def push(x: Any) -> Any:
        state.head = Node(x[:3] + state.head.value, None if state.size > 3 else state.head)
        state.size = state.size + 1 if state.size <= 3 else 1
        return state.head.value

    return push, state


def one_object_at_two_places() -> Any:
    shared = {"w": np.zeros(3)}
    a, b = SimpleNamespace(p=shared, last=None), SimpleNamespace(p=shared, last=None)

    def step(x: Any) -> Any:
        a.p["w"] = a.p["w"] + x[:3]
        a.last = b.last = b.p["w"] * 2
        return a.last

    return step, (a, b)


def a_counting_dict_of_the_user() -> Any:
    class Counting(dict[str, Any]):
        def __getitem__(self, key: str) -> Any:
            self.update({"reads": super().__getitem__("reads") + 1})
            return super().__getitem__(key)

    held = Counting(reads=0, w=np.ones(3))

    def step(x: Any) -> Any:
        held["w"] = held["w"] + x[:3]
        return held["w"] * held["reads"]

    return step, held


def a_default_dict() -> Any:
    sums: collections.defaultdict[str, Any] = collections.defaultdict(lambda: np.zeros(3))
    counts: collections.Counter[str] = collections.Counter()

    def step(x: Any) -> Any:
        for name in ("a", "b"):
            sums[name] += x[:3]
            counts[name] += 1
        return sums["a"] * counts["b"]

    return step, (sums, counts)


def a_fused_function_inside() -> Any:
    state = SimpleNamespace(w=np.zeros(3), n=0)

    @fuse
    def inner(x: Any) -> Any:
        state.n += 1
        state.w = state.w + x
        return state.w

    def outer(x: Any) -> Any:
        return inner(x[:3]) + inner(x[:3] * 2) * state.n

    return outer, state


def a_default_argument() -> Any:
    def step(x: Any, seen: Any = None, weights: Any = None) -> Any:
        seen.append(x[:3] * 2)
        weights["w"] = weights["w"] * 0.5
        return weights["w"]

    defaults = ([], {"w": np.ones(3)})
    step.__defaults__ = defaults
    return step, defaults


PROGRAMS: list[tuple[Program, int]] = [
    (sgd_in_a_dict, 1), (momentum_in_place, 1), (adam_in_a_class, 2), (a_recurrent_cell, 2), (a_running_average, 3),
    (a_ring_buffer, 4), (a_ring_buffer_of_an_array, 4), (a_global_counter, 1), (a_counter_in_a_cell, 1),
    (a_history_of_losses, 1), (the_last_entry_of_a_history, 2), (previous_and_current, 1),
    (a_lazily_created_buffer, 2), (a_cached_property, 2), (a_memo_dict, 2), (a_dataclass_that_is_replaced, 3),
    (a_class_with_slots, 1), (class_attributes_and_super, 2), (new_containers_in_the_state, 2),
    (a_list_that_is_reordered, 1), (entries_that_come_and_go, 3), (a_linked_list, 6), (one_object_at_two_places, 2),
    (a_counting_dict_of_the_user, 1), (a_default_dict, 2), (a_fused_function_inside, 1), (a_default_argument, 1),
]  # fmt: skip


def reached(value: Any, seen: dict[int, int]) -> Any:
    """A picture of everything that is reached from a value: types, numbers, elements, and which objects are one."""
    if callable(value) and not hasattr(value, "__dict__"):
        return "callable"
    if isinstance(value, float) and not isinstance(value, np.generic):
        return "float", value
    if isinstance(value, (bool, int, str, type(None))):
        return type(value).__name__, value
    if id(value) in seen:
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, np.generic):
        return "scalar", str(value.dtype), float(value)
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), value.tolist()
    if isinstance(value, dict):
        parts = [(key, reached(part, seen)) for key, part in value.items()]
    elif isinstance(value, set):
        parts = sorted(value)
    elif isinstance(value, (list, tuple, collections.deque)):
        parts = [reached(part, seen) for part in value]
    else:
        parts = []
    own = dict(getattr(value, "__dict__", {})) if not callable(value) or not hasattr(value, "__code__") else {}
    for name in getattr(type(value), "__slots__", ()):
        own[name] = getattr(value, name)
    return type(value).__name__, parts, [(name, reached(own[name], seen)) for name in sorted(own)]


def is_close(one: Any, other: Any) -> bool:
    """Whether two pictures are the same but for rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=1e-12, atol=1e-12))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(is_close, one, other))
    return type(one) is type(other) and bool(one == other)


COMPILED = [
    (momentum_in_place, 1), (a_running_average, 3), (previous_and_current, 1), (the_last_entry_of_a_history, 2),
    (one_object_at_two_places, 2), (class_attributes_and_super, 2),
]  # fmt: skip
"""Programs whose later calls take the fast path."""


@pytest.mark.parametrize(("program", "most"), PROGRAMS, ids=lambda value: getattr(value, "__name__", None))
def test_every_call_changes_the_state_as_the_plain_function_does(program: Program, most: int) -> None:
    check(program, most, "reference")


@pytest.mark.parametrize(("program", "most"), COMPILED, ids=lambda value: getattr(value, "__name__", None))
def test_the_fast_path_changes_the_state_as_the_plain_function_does(program: Program, most: int) -> None:
    check(program, most, "cpu")


def check(program: Program, most: int, target: str) -> None:
    """Compares ten calls, with growing sizes, of a fused function and of the plain one."""
    x = np.arange(5.0)

    def run(wrap: Callable[[Any], Any]) -> tuple[Any, list[Any]]:
        function, state = program()
        wrapped = wrap(function)
        steps = []
        for call in range(10):
            argument = np.concatenate([x + call, np.ones(call // 4)])
            result = wrapped(argument)
            now = state() if callable(state) and hasattr(state, "__code__") else state
            steps.append(reached((_array(result), now), {}))
        return wrapped, steps

    _, expected = run(lambda function: function)
    fused, steps = run(lambda function: fuse(function, target=target))
    for call, (one, other) in enumerate(zip(steps, expected, strict=True)):
        assert is_close(one, other), f"call {call}: {one}, not {other}"
    assert fused.cache_info().traces <= most


def _array(result: Any) -> Any:
    """A result with 0-d arrays as NumPy scalars, which a fused function returns as arrays."""
    return result[()] if isinstance(result, np.ndarray) and not result.shape else result
