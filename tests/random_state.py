"""Random functions over random captured state, which changes in every way between calls.

Each program reads captured arrays by operators, questions, and functions that no op expresses. Its result is compared
with the plain function at every call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from tracefuse import fuse

PLACES = ("G", "cell", "o.w", "d['k']", "l[1]", "o.inner['a'][0]", "m.w")
"""The places that programs read."""

TERMS = {
    "floats": (
        "y + {0}", "y * {0}.sum()", "y * ({0} * 2)[0]", "y * float({0}[-1])", "y + np.sqrt(abs({0}))",
        "(y if {0}.max() > 1 else y - 1)", "y + np.sort({0})[::-1]", "y + np.cumsum({0})", "y * len({0})",
        "y + sum({0})", "y + np.unique({0}).sum()", "y + np.median({0})", "y * max({0})", "y + {0}[{0} > 0.5].sum()",
        "y + np.asarray({0}).tolist()[0]", "y * (1 if np.allclose({0}, {0}[0]) else 2)", "y * round(float({0}[0]), 1)",
    ),
    "integers": (
        "np.roll(y, int({0}[0]))", "y.take({0}).sum() + y", "sum(y[o] for o in {0}) + y", "(y if 2 in {0} else -y)",
        "y[{0}[0]:].sum() + y", "y[{0}].sum() + y", "y + np.bincount({0}).max()", "np.full({0}[0] + 1, 2.0).sum() + y",
    ),
    "truths": (
        "y[{0}].sum() + y", "(y if {0}.any() else y * 3)", "np.where({0}, y, -y)", "y[np.nonzero({0})[0]].sum() + y",
        "y * np.count_nonzero({0})", "y + np.flatnonzero({0}).sum()", "y * (2 if {0}[0] and not {0}[-1] else 1)",
    ),
    "matrices": (
        "np.linalg.cholesky({0}) @ y", "{0}.T @ {0} @ y / 50", "np.linalg.inv({0}) @ y", "y * np.linalg.det({0}) / 99",
        "y + {0}[0]", "y + np.linalg.eigvalsh({0})", "y * np.trace({0}) / 9", "y + np.linalg.eigh({0}).eigenvalues",
        "np.linalg.solve({0}, {0}[0]) + y", "y + np.linalg.svd({0})[1]",
    ),
}  # fmt: skip

PROGRAM = """
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


class State:
    """The state of one program: an array of some kind at each place."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.kinds = {place: rng.choice(list(TERMS)) for place in PLACES}
        self.names: dict[str, Any] = {"np": np, "o": SimpleNamespace(inner={"a": [None]}), "d": {}, "l": [None, None]}
        self.names["m"] = WithMetaclass()
        for place in PLACES[2:]:
            self.put(place, make_array(self.kinds[place], rng))
        self.names["G"] = make_array(self.kinds["G"], rng)
        self.function = self._function(make_array(self.kinds["cell"], rng))

    def _function(self, cell: Any) -> Callable[[Any], Any]:
        places = [self.rng.choice(PLACES) for _ in range(3)]
        lines = [f"        y = {self.rng.choice(TERMS[self.kinds[place]]).format(place)}" for place in places]
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
        else:
            self.names["new"] = array
            exec(f"{place} = new", self.names)

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
    expected = state.function(x)
    result = fused(x)
    assert result.dtype == expected.dtype, state.text
    assert result.shape == expected.shape, state.text
    tolerance = 1e-3 if any(state.get(place).dtype == np.float32 for place in state.used) else 1e-9
    np.testing.assert_allclose(result, expected, tolerance, 1e-6, err_msg=state.text)


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
