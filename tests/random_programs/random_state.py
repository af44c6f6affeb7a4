"""Random functions over random captured state, which changes in every way between calls.

Each program reads captured arrays by operators, questions, numbers of Python, and functions that no op expresses, and
may store numbers, arrays and functions. Its result and the state are compared with the plain function's at every call.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import random
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from tracefuse import fuse

PLACES = (
    "G", "cell", "o.w", "d['k']", "l[1]", "o.inner['a'][0]", "m.w", "s.w", "C.w", "q[0]", "p.w", "f.w", "n.w", "e.w",
    "t['x'].w",
)  # fmt: skip
"""The places that programs read."""

TERMS = {
    "floats": (
        "y + {0}", "y * {0}.sum()", "y * ({0} * 2)[0]", "y * float({0}[-1])", "y + np.sqrt(abs({0}))",
        "(y if {0}.max() > 1 else y - 1)", "y + np.sort({0})[::-1]", "y + np.cumsum({0})", "y * len({0})",
        "y + sum({0})", "y + np.unique({0}).sum()", "y + np.median({0})", "y * max({0})", "y + {0}[{0} > 0.5].sum()",
        "y * math.sqrt(abs({0}.sum()))", "y + 1 / max(float({0}[0]), 0.5)", "y * int({0}.sum() * 3) / 4",
        "y + math.floor({0}[0])", "y + min({0}[0], {0}[-1])", "y + sum([float(v) for v in {0}])",
        "y * _quotient(y, {0})", "y + math.exp(-abs(float(y[0]))) * float({0}[0])", "y + (float(y[0]) // 0.7)",
        "y + round(float(y.sum()) / 7) % 5", "y * (float({0}[0]) < float(y[1]))", "y + max(float({0}[0]), float(y[0]))",
        "y + np.asarray({0}).tolist()[0]", "y * (1 if np.allclose({0}, {0}[0]) else 2)", "y * round(float({0}[0]), 1)",
    ),
    "integers": (
        "np.roll(y, int({0}[0]))", "y.take({0}).sum() + y", "sum(y[o] for o in {0}) + y", "(y if 2 in {0} else -y)",
        "y * float({0}[0]) ** 2", "y * _quotient({0}, y)", "y + int({0}.max()) // 2 + {0}[0].item()",
        "y[{0}[0]:].sum() + y", "y[{0}].sum() + y", "y + np.bincount({0}).max()", "np.full({0}[0] + 1, 2.0).sum() + y",
    ),
    "truths": (
        "y[{0}].sum() + y", "(y if {0}.any() else y * 3)", "np.where({0}, y, -y)", "y[np.nonzero({0})[0]].sum() + y",
        "y * bool({0}[0])", "y + int({0}.sum()) * 0.5",
        "y * np.count_nonzero({0})", "y + np.flatnonzero({0}).sum()", "y * (2 if {0}[0] and not {0}[-1] else 1)",
    ),
    "matrices": (
        "np.linalg.cholesky({0}) @ y", "{0}.T @ {0} @ y / 50", "np.linalg.inv({0}) @ y", "y * np.linalg.det({0}) / 99",
        "y + {0}[0]", "y + np.linalg.eigvalsh({0})", "y * np.trace({0}) / 9", "y + np.linalg.eigh({0}).eigenvalues",
        "np.linalg.solve({0}, {0}[0]) + y", "y + np.linalg.svd({0})[1]",
    ),
}  # fmt: skip

WRITES = (
    "o.seen = float(y.sum())", "o.count += 1", "o.count += int(y[0] > 1)", "o.best = max(o.best, float(y[0]))",
    "o.log.append(float(y.mean()))", "o.log.append(y)", "o.last, o.before = y, o.last", "o.act = lambda v: v * y.sum()",
    "o.count += len(o.log)", "o.log.append(len(o.log))", "o.log += [y, 1.0]", "s.n += 1", "C.n = C.n * 2 + 1",
    "p.n += 1", "q.append(q[-1] + y.sum())", "e.n = e.n / 2 + float(y[0])", "t['x'].n += len(q)",
    "n.h['a'] = y.max()",
    "o.log.append((float(y[0]), o.count))",
    "o.seen = o.seen / 2 + y[1].item()", "o.table['first'] = y[0]", "o.act = _scaled(float(y[0]), y)",
)  # fmt: skip
"""What programs store in the state that they do not read elsewhere."""

NUMBERS = ("s.n", "C.n", "p._n", "e['n']", "t['x'].n")
"""The places of numbers outside of `o` that programs change."""

PROGRAM = """
def _quotient(a, b):
    try:
        return float(a[0]) / float(b[0])
    except ZeroDivisionError:
        return 3.0

def _scaled(by, y):
    def scaled(v):
        return v * by + y
    return scaled

def make(cell):
    def function(x):
        y = x * 1.0
{}
        return y
    def bind(array):
        nonlocal cell
        cell = array
    return function, bind, lambda: cell
"""


class WithMetaclass(metaclass=type("Meta", (type,), {})):
    """An instance has no overlay in a trace."""

    w: Any


class WithSlots:
    """An instance has slots alone."""

    __slots__ = ("n", "w")

    def __init__(self) -> None:
        self.n, self.w = 1, None


class WithClassAttributes:
    """The class itself is the place."""

    n, w = 1, None


class WithProperty:
    """What is read is a property that a method computes, and its setter writes another attribute."""

    def __init__(self) -> None:
        self._w, self._n = None, 1

    @property
    def w(self) -> Any:
        return self._w

    @w.setter
    def w(self, new: Any) -> None:
        self._w = new

    @property
    def n(self) -> int:
        return self._n * 2

    @n.setter
    def n(self, new: int) -> None:
        self._n = new - self._n


@dataclasses.dataclass(frozen=True)
class Frozen:
    """Another instance takes its place."""

    w: Any


class Named(NamedTuple):
    """Another tuple takes its place."""

    w: Any
    h: dict[str, Any]


class Entries(dict[str, Any]):
    """Attributes are entries."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


def make_array(kind: str, rng: random.Random) -> Any:
    """An array of a kind, so that every term has a value for it."""
    numbers = np.random.default_rng(rng.randrange(10**6))
    if kind == "floats":
        return numbers.uniform(-1, 2, 4)
    if kind == "integers":
        return numbers.integers(0, 4, 3)
    if kind == "truths":
        return numbers.uniform(size=4) < 0.5
    half = numbers.uniform(-1, 1, (4, 4))
    return half @ half.T + 2 * np.eye(4)


def fresh() -> dict[str, Any]:
    """What programs store, before the first call."""
    return {
        "seen": 0.5, "count": 0, "best": -1.0, "log": [], "last": np.zeros(4), "before": None, "table": {}, "act": None,
    }  # fmt: skip


class State:
    """The state of one program: an array of some kind at each place."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.kinds = {place: rng.choice(list(TERMS)) for place in PLACES}
        stored = SimpleNamespace(inner={"a": [None]}, **fresh())
        self.names: dict[str, Any] = {"np": np, "math": math, "o": stored, "d": {}, "l": [None, None]}
        self.names |= {
            "m": WithMetaclass(),
            "s": WithSlots(),
            "C": type("C", (WithClassAttributes,), {"n": 1, "w": None}),
        }
        self.names |= {
            "q": deque([None, np.float64(1.0)]),
            "p": WithProperty(),
            "f": Frozen(None),
            "n": Named(None, {}),
        }
        self.names |= {"e": Entries(n=0.5, w=None), "t": {"x": WithSlots()}}
        for place in PLACES[2:]:
            self.put(place, make_array(self.kinds[place], rng))
        self.names["G"] = make_array(self.kinds["G"], rng)
        self.others_before: dict[str, Any] = {}
        self.function = self._function(make_array(self.kinds["cell"], rng))

    def _function(self, cell: Any) -> Callable[[Any], Any]:
        places = [self.rng.choice(PLACES) for _ in range(3)]
        lines = [f"        y = {self.rng.choice(TERMS[self.kinds[place]]).format(place)}" for place in places]
        lines += [f"        {write}" for write in self.rng.sample(WRITES, self.rng.randrange(3))]
        self.text = PROGRAM.format("\n".join(lines))
        exec(self.text, self.names)
        function, self.bind, self.read = self.names["make"](cell)
        self.used = sorted(set(places))
        return function  # type: ignore[no-any-return]

    def get(self, place: str) -> Any:
        return self.read() if place == "cell" else eval(place, self.names)

    def put(self, place: str, array: Any) -> None:
        if place == "cell":
            self.bind(array)
        elif place == "f.w":
            self.names["f"] = dataclasses.replace(self.names["f"], w=array)
        elif place == "n.w":
            self.names["n"] = self.names["n"]._replace(w=array)
        else:
            self.names["new"] = array
            exec(f"{place} = new", self.names)

    def others(self) -> dict[str, Any]:
        """What programs store outside of `o`, by place."""
        names = self.names
        return {place: eval(place, names) for place in NUMBERS} | {"q": list(names["q"])[1:], "h": dict(names["n"].h)}

    def restore_others(self) -> None:
        """Restores what programs store outside of `o` to `others_before`."""
        for place in NUMBERS:
            exec(f"{place} = number", {**self.names, "number": self.others_before[place]})
        queue, table = self.names["q"], self.names["n"].h
        first = queue[0]
        queue.clear()
        queue.extend([first, *self.others_before["q"]])
        table.clear()
        table.update(self.others_before["h"])

    def change(self) -> None:
        """Changes the array of one place that the function reads."""
        place = self.rng.choice(self.used)
        array, new = self.get(place), make_array(self.kinds[place], self.rng)
        way = self.rng.randrange(7) if array.shape == new.shape else 3
        if way == 0:
            array[...] = new
        elif way == 1:
            np.flip(array)[...] = new  # through a view
        elif way == 2:
            self.put(place, array.copy())
        elif way == 3:
            self.put(place, new)
        elif way == 4 and self.kinds[place] in ("floats", "integers"):
            self.put(place, new.astype({"f": np.float32, "i": np.int32}[array.dtype.kind]))
        elif way == 5 and self.kinds[place] == "floats":
            self.put(place, new[:1] if array.size > 1 else new)
        elif way == 6:
            self.put(place, np.asfortranarray(new))


def check_call(state: State, fused: Any, x: Any) -> None:
    stored = state.names["o"]
    before = {name: copy.copy(getattr(stored, name)) for name in fresh()}
    state.others_before = state.others()
    expected = state.function(x)
    after = {name: getattr(stored, name) for name in before}
    vars(stored).update(before)
    others = state.others()
    state.restore_others()
    result = fused(x)
    for name, right in (after | others).items():
        compare_stored(getattr(stored, name) if name in after else state.others()[name], right, f"{name}\n{state.text}")
    assert result.dtype == expected.dtype, state.text
    assert result.shape == expected.shape, state.text
    tolerance = 1e-3 if any(state.get(place).dtype == np.float32 for place in state.used) else 1e-9
    np.testing.assert_allclose(result, expected, tolerance, 1e-6, err_msg=state.text)


def compare_stored(value: Any, right: Any, text: str) -> None:
    """Compares what a call stored: types and values, and what functions return."""
    if isinstance(right, (list, dict)):
        keys = range(len(right)) if isinstance(right, list) else right
        assert len(value) == len(right), text
        for key in keys:
            compare_stored(value[key], right[key], text)
    elif callable(right):
        np.testing.assert_allclose(value(2.0), right(2.0), 1e-3, 1e-6, err_msg=text)
    else:
        assert type(value) is type(right), text
        if right is not None:
            np.testing.assert_allclose(value, right, 1e-3, 1e-6, err_msg=text)


def check_program(seed: int) -> None:
    """Checks one program: values, types, and that contents that a trace has served need no other trace."""
    state = State(random.Random(seed))
    fused = fuse(state.function, target="reference")
    x = np.arange(4.0) + 1
    first = {place: state.get(place).copy() for place in state.used}
    check_call(state, fused, x)
    for _ in range(7):
        state.change()
        check_call(state, fused, x)
        traces = fused.cache_info().traces
        check_call(state, fused, x)
        assert fused.cache_info().traces == traces  # nothing changed
    traces = fused.cache_info().traces
    for place, array in first.items():
        state.put(place, array)
    check_call(state, fused, x)
    assert fused.cache_info().traces == traces, "the first trace serves the first contents"
