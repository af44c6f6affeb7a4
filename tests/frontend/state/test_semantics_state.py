"""Tests the contract for scalars, static values, symbolic sizes, captured state and pytrees, one test per sentence.

What changes in place is tested in test_in_place.py and test_aliases.py, random numbers in test_random_watch.py.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

import tracefuse
from tracefuse import fuse, pytrees
from tracefuse.frontend.fuse import FusedFunction

A = np.arange(12, dtype=np.float32).reshape(3, 4)
reference = functools.partial(fuse, target="reference")


def traces(function: FusedFunction[Any, Any]) -> int:
    return function.cache_info().traces


# -- scalars ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [(0.5, 2.5, -1.0, float("inf")), (1j, 2 - 1j), (True, False), (3, 4, -5, 1 << 40)])
def test_a_number_never_compiles_again_while_nobody_asks_for_its_value(values: tuple[Any, ...]) -> None:
    f = fuse(lambda x, s: x * 2 + s)
    for value in values:
        np.testing.assert_array_equal(f(A.astype(np.float64), value), A.astype(np.float64) * 2 + value)
    assert f.cache_info()[:2] == (1, 1)


@pytest.mark.parametrize(
    ("use", "first", "second"),
    [
        (lambda x, n: x.sum(axis=n), 0, 1),
        (lambda x, n: sum((x * k for k in range(n)), x), 2, 3),
        (lambda x, n: x * 2 if n else x, 1, 0),
        (lambda x, n: x + [10.0, 20.0, 30.0][n], 0, 2),
        (lambda x, n: np.roll(x, 1, axis=n), 0, 1),
        (lambda x, n: x * math.factorial(n), 3, 4),
        (lambda x, n: f"{n}" and x * {1: 2, 2: 3}[n], 1, 2),
    ],
    ids=["axis", "range", "if", "list", "roll", "math", "dict"],
)
def test_a_python_integer_whose_value_is_asked_for_is_guarded(use: Any, first: int, second: int) -> None:
    f = reference(use)
    for n in (first, second, first, second):
        np.testing.assert_array_equal(f(A, n), use(A, n))
    assert traces(f) == 2
    assert f.cache_info().hits == 2


def test_an_integer_as_a_size_stays_symbolic() -> None:
    f = reference(lambda x, n: tracefuse.xp.zeros((n, 2)) + x[0, 0])
    assert [f(A, n).shape for n in (2, 3, 7)] == [(2, 2), (3, 2), (7, 2)]
    assert traces(f) == 1


def test_defaults_that_the_caller_does_not_pass_are_no_arguments() -> None:
    kinds = []

    @reference
    def f(x: Any, scale: float = 2.0, *, shift: int = 1) -> Any:
        kinds.append((type(scale), type(shift)))
        return x * scale + shift

    np.testing.assert_array_equal(f(A), A * 2 + 1)
    np.testing.assert_array_equal(f(A, 3.0), A * 3 + 1)
    np.testing.assert_array_equal(f(A, 4.0), A * 4 + 1)
    assert kinds[0] == (float, int)
    assert [kind[1] for kind in kinds] == [int, int, int]
    assert traces(f) == 2


def test_a_value_computed_from_arrays_steers_python() -> None:
    for ask in (bool, int, float, complex):
        fused = fuse(lambda x, y, ask=ask: y * ask(x.sum()), static_argnames="ask", target="reference")
        for x in (A, A + 1, A):
            result = fused(x, A)
            assert result.dtype == (A * ask(x.sum())).dtype
            np.testing.assert_allclose(result, A * ask(x.sum()))


# -- symbolic sizes ---------------------------------------------------------------------------------------------------


def test_a_size_answers_as_a_python_integer() -> None:
    seen = []
    reference(lambda x: seen.append((isinstance(x.shape[0], int), type(x.shape[0]) is int)) or x + 1)(A)
    assert seen == [(True, True)]


@pytest.mark.parametrize(
    "use",
    [
        lambda n, m: n + m, lambda n, m: n * m - 1, lambda n, m: (n + 3) // 2, lambda n, m: n * m % 5,
        lambda n, m: -n + 2 * m + 9, lambda n, m: n**2, lambda n, m: 7 - n, lambda n, m: divmod(n, 2)[1],
    ],
)  # fmt: skip
def test_integer_arithmetic_of_sizes_guards_nothing(use: Any) -> None:
    f = reference(lambda x: x * 0 + use(*x.shape))
    for shape in ((2, 3), (5, 4), (9, 2)):
        assert f(np.ones(shape))[0, 0] == use(*shape)
    assert f.cache_info() == (1, 1, 2)


@pytest.mark.parametrize(
    "use", [lambda n: n / 2, lambda n: 1 / n, lambda n: np.sqrt(n), lambda n: n * 0.5, lambda n: n**0.5]
)
def test_sizes_beside_floats_are_weak_scalars_and_guard_nothing(use: Any) -> None:
    f = reference(lambda x: x * use(x.shape[0]))
    for n in (2, 5, 9):
        result = f(np.ones((n, 2), np.float32))
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, np.full((n, 2), use(n)), rtol=1e-6)
    assert f.cache_info() == (1, 1, 2)


def test_a_comparison_guards_its_outcome_and_never_the_value() -> None:
    f = reference(lambda x: x * 2 if x.shape[0] >= 4 and x.shape[0] != x.shape[1] else -x)
    for n in (4, 5, 6, 9, 2, 3, 2, 12):
        f(np.ones((n, 7)))
    assert traces(f) == 2


def test_what_needs_the_value_says_so_with_the_line_and_the_symbolic_spelling() -> None:
    f = fuse(lambda x: x + sum(range(x.shape[0])))
    text = str(f.explain(A))
    assert (
        "i0 == 3: the value of a size was asked for; tracefuse.xp and np.zeros_like keep sizes symbolic, and " in text
    )
    assert "(test_semantics_state.py:" in text


# -- captured state ---------------------------------------------------------------------------------------------------

WEIGHT = np.full(4, 2, np.float32)
NAMES = {"scale": 3.0}


def test_a_global_a_cell_and_an_attribute_that_are_bound_again_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = np.ones(4, np.float32)
    holder = SimpleNamespace(weight=np.ones(4, np.float32))
    f = reference(lambda x: x * WEIGHT + cell + holder.weight)
    np.testing.assert_array_equal(f(A), A * 2 + 2)
    monkeypatch.setitem(globals(), "WEIGHT", np.full(4, 5, np.float32))
    np.testing.assert_array_equal(f(A), A * 5 + 2)
    cell = np.full(4, 7, np.float32)
    np.testing.assert_array_equal(f(A), A * 5 + 8)
    holder.weight = np.full(4, 2, np.float32)
    np.testing.assert_array_equal(f(A), A * 5 + 9)
    assert traces(f) == 1


class Dense:
    __slots__ = ("bias", "weight")

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        self.weight, self.bias = random.random((4, 4)), random.random(4)

    def __call__(self, x: Any) -> Any:
        return x @ self.weight + self.bias


@dataclasses.dataclass(slots=True)
class Block:
    layers: list[Dense]
    scale: float


class Network:
    def __init__(self) -> None:
        self.blocks = {"first": Block([Dense(0), Dense(1)], 2.0), "second": Block([Dense(2)], 3.0)}

    @fuse(target="reference")
    def __call__(self, x: Any) -> Any:
        return self.plain(x)

    def plain(self, x: Any) -> Any:
        for block in self.blocks.values():
            for layer in block.layers:
                x = layer(x)
            x = x * block.scale
        return x


def test_a_method_with_weights_in_nested_objects() -> None:
    network = Network()
    changes = [
        lambda: None,
        lambda: setattr(network.blocks["first"].layers[1], "weight", np.eye(4)),
        lambda: setattr(network.blocks["second"].layers[0], "bias", np.ones(4)),
        lambda: setattr(network.blocks["second"], "scale", 0.5),
        lambda: network.blocks["first"].layers.append(Dense(5)),
        lambda: network.blocks["first"].layers.pop(0),
        lambda: network.blocks.pop("second"),
        lambda: network.blocks.update(third=Block([Dense(6)], 1.0)),
    ]
    for change in changes:
        change()
        np.testing.assert_allclose(network(A), network.plain(A), rtol=1e-12)
        np.testing.assert_allclose(Network.__call__(network, A), network.plain(A), rtol=1e-12)


def test_explain_lists_every_capture() -> None:
    cell = np.ones(4, np.float32)
    f = fuse(lambda x: x * WEIGHT + cell + np.array([0, 1, 2, 3], np.float32))
    text = str(f.explain(A))
    assert "captured (read at every call):\n  WEIGHT\n  cell\n  a constant array" in text


@pytest.mark.parametrize(
    ("state", "change"),
    [
        ([1.0, 2.0], lambda s: s.append(3.0)),
        ([1.0, 2.0], lambda s: s.__setitem__(0, 5.0)),
        ({"a": 1.0}, lambda s: s.update(b=2.0)),
        ({"a": 1.0}, lambda s: s.update(a=2.0)),
        ({1.0, 2.0}, lambda s: s.add(3.0)),
        (collections.deque([1.0]), lambda s: s.append(3.0)),
        (collections.deque([1.0]), lambda s: s.__setitem__(0, 3.0)),
        (bytearray(b"\x01"), lambda s: s.__setitem__(0, 7)),
    ],
    ids=["append", "list item", "dict key", "dict value", "set", "deque", "deque item", "bytes"],
)
def test_containers_that_the_trace_read_are_compared_by_what_they_hold(state: Any, change: Any) -> None:
    values = state.values() if isinstance(state, dict) else state
    f = reference(lambda x: x * sum(state.values() if isinstance(state, dict) else state))
    np.testing.assert_array_equal(f(A), A * sum(values))
    change(state)
    np.testing.assert_array_equal(f(A), A * sum(values))
    f(A)
    assert traces(f) == 2


def test_state_that_cannot_be_compared_is_an_error_that_names_it() -> None:
    numbers = itertools.count(1)
    with pytest.raises(tracefuse.TraceError) as error:
        fuse(lambda x: x * next(numbers), target="reference")(A)
    assert error.value.message == "numbers is a count, whose state cannot be compared from call to call"
    assert error.value.hint == "advance it outside of the fused function and pass what it gives: f(x, next(numbers))"
    assert next(numbers) == 1


def test_arrays_made_while_tracing_are_constants() -> None:
    f = reference(lambda x: x + np.ones(4, np.float32) * 2)
    np.testing.assert_array_equal(f(A), A + 2)
    np.testing.assert_array_equal(f(A * 2), A * 2 + 2)
    assert traces(f) == 1


# -- pytrees ----------------------------------------------------------------------------------------------------------


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    weight: Any
    name: str = "w"


class Attributes:
    """As classes of attrs are: fields are listed in `__attrs_attrs__`."""

    __attrs_attrs__ = (SimpleNamespace(name="left"), SimpleNamespace(name="right"))

    def __init__(self, left: Any, right: Any) -> None:
        self.left, self.right = left, right


class Pair:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts


tracefuse.register_pytree_node(Pair, lambda pair: (pair.parts, len(pair.parts)), lambda _, parts: Pair(*parts))


def test_trees_of_every_kind_go_in_and_come_out() -> None:
    f = reference(lambda tree: pytrees.unflatten(pytrees.flatten(tree)[1], [v * 2 for v in pytrees.flatten(tree)[0]]))
    for tree in (
        [A, (A, 1.5)], {"b": A, "a": [A]}, collections.OrderedDict(z=A, y=A), Point(A, [A]), Attributes(A, (A,)),
        Pair(A, A), collections.deque([A]), collections.defaultdict(list, k=A),
    ):  # fmt: skip
        leaves, structure = pytrees.flatten(tree)
        found, same = pytrees.flatten(f(tree))
        assert same == structure
        for leaf, made in zip(leaves, found, strict=True):
            np.testing.assert_array_equal(made, leaf * 2)


def test_a_frozen_dataclass_with_a_static_field() -> None:
    f = reference(lambda w: Frozen(w.weight * len(w.name), w.name))
    for name in ("ab", "abc", "ab"):
        result = f(Frozen(A, name))
        assert (type(result), result.name) == (Frozen, name)
        np.testing.assert_array_equal(result.weight, A * len(name))
    assert traces(f) == 2


def test_a_class_that_is_registered_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="Pair is already a pytree node"):
        tracefuse.register_pytree_node(Pair, lambda pair: (pair.parts, None), lambda _, parts: Pair(*parts))


def test_flat_positional_arrays_skip_the_pytree_code(monkeypatch: pytest.MonkeyPatch) -> None:
    f = fuse(lambda x, y, s: x + y * s)
    f(A, A, 2.0)

    def refused(tree: Any) -> Any:
        raise AssertionError("the pytree code ran")

    monkeypatch.setattr(pytrees, "flatten", refused)
    np.testing.assert_array_equal(f(A, A, 3.0), A + A * 3)
