"""Programs that change objects and containers of the state: dataclasses, slots, lists, dicts, linked nodes."""

from __future__ import annotations

import collections
import dataclasses
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tests.frontend.state.programs_of_numbers_and_arrays import Program
from tracefuse import fuse


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
    (a_dataclass_that_is_replaced, 3), (a_class_with_slots, 1), (class_attributes_and_super, 2),
    (new_containers_in_the_state, 2), (a_list_that_is_reordered, 1), (entries_that_come_and_go, 3),
    (a_linked_list, 6), (one_object_at_two_places, 2), (a_counting_dict_of_the_user, 1), (a_default_dict, 2),
    (a_fused_function_inside, 1), (a_default_argument, 1),
]  # fmt: skip
"""Programs, with the number of their traces at most."""
