"""Tests every kind of state that Python has: read, changed between calls, and written, as the plain function does.

Each section of kinds_of_state.txt is the text of a module and of the body of a function of `x` in it, with statements
that change the state between two calls.
"""

from __future__ import annotations

import abc
import bisect
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import heapq
import itertools
import math
import operator
import random
import re
import textwrap
import types
import typing
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.errors import TraceError, UnsupportedError
from tracefuse.frontend import trace_cache

MODULES = (
    abc, bisect, collections, contextlib, copy, dataclasses, enum, functools, heapq, itertools, math, operator, random,
    types, typing,
)  # fmt: skip


class Kind(NamedTuple):
    """A kind of state. changes: statements that change it, one before a call."""

    name: str
    setup: str
    body: str
    changes: tuple[str, ...] = ()

    @property
    def compared(self) -> list[str]:
        """Expressions of the state that every call leaves as the plain function does."""
        return re.findall(r"# check: (.*)", self.setup)


def _kinds() -> list[Kind]:
    """The kinds of kinds_of_state.txt."""
    text = Path(__file__).with_name("kinds_of_state.txt").read_text()
    result = []
    for section in text.split("=== ")[1:]:
        name, _, rest = section.partition("\n")
        setup, _, rest = rest.partition("--- x\n")
        body, *changes = rest.split("--- change\n")
        result.append(Kind(name, setup, body, tuple(changes)))
    return result


KINDS = _kinds()


def module_of(setup: str, body: str) -> dict[str, Any]:
    """The names of a module with a function."""
    names: dict[str, Any] = {module.__name__: module for module in MODULES} | {"np": np, "__name__": "kinds"}
    body = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    text = f"{textwrap.dedent(setup)}\ndef function(x):\n{body}\n"
    exec(compile(text, "<kind>", "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name.replace(" ", "_") for kind in KINDS])
def test_calls_see_and_make_the_changes_that_the_plain_function_does(kind: Kind) -> None:
    plain, fused = (module_of(kind.setup, kind.body) for _ in range(2))
    x, call = np.arange(4.0) + 1, fuse(fused["function"], target="reference")
    for change in (None, None, None, *(step for one in kind.changes for step in (one, None))):
        if change is not None:
            exec(change, plain)
            exec(change, fused)
        expected, result = plain["function"](x), call(x)
        assert result.dtype == expected.dtype, change
        np.testing.assert_allclose(result, expected, 1e-12, err_msg=str(change))
        for text in kind.compared:
            assert eval(text, fused) == eval(text, plain), (text, change)


def test_functions_that_only_their_own_writes_change_are_traced_three_times_at_most() -> None:
    for kind in KINDS:
        if kind.changes:
            continue
        names = module_of(kind.setup, kind.body)
        call = fuse(names["function"], target="reference")
        for _ in range(3):
            call(np.ones(4))
        assert call.cache_info().traces <= 3, kind.name


GROWING = (
    ("l = []", "l.append(x.sum())\nreturn x * len(l)"), ("l = [1.0]", "l.extend([2.0, 3.0])\nreturn x * (len(l) % 4)"),
    ("l = [[], []]", "l[0].append(x)\nl[1].append(len(l[0]))\nreturn x / len(l[1])"),
    ("d = {'a': []}", "n = len(d['a'])\nd['a'].append(n)\nreturn x * n + len(d['a'])"),
    ("l = []", "l.extend([x, x])\nreturn x * 2 if len(l) > 100 else x * len(l)"),
    ("c = collections.deque([np.ones(4), 1.0])", "c.append(c[-1] + x.sum())\nreturn x + c[-1]"),
    ("d, n = {}, 0", "global n\nn += 1\nd[n] = x.sum()\nd['last'] = n\nreturn x * n"),
    ("d = collections.OrderedDict()", "d[len(d)] = x.mean()\nreturn x"), ("d = {}", "d[int(x[0] * 3)] = 2.0\nreturn x"),
    ("d = {}", "d[x[0]] = x\nreturn x"), ("d, n = {}, 0", "global n\nn += 2\nd[n] = x.sum()\nreturn x * d[n]"),
    ("s, n = set(), 0", "global n\nm = len(s)\nn += 1\ns.add(n)\nreturn x * m"),
    ("s = {1.0}", "s.add(float(x[0]))\ns.add(7)\nreturn x"),
    ("c = collections.deque()", "c.append(1.0)\nreturn x * len(c)"), ("n = 0", "global n\nn += 1\nreturn x * 0.9**n"),
    ("a = np.zeros((0, 4))", "global a\na = np.concatenate([a, x[None]])\nreturn a.sum(0) * len(a)"),
    ("n = 0\nb = np.zeros(5)", "global n\nb[n % 5] = x.sum()\nn += 1\nreturn b * 1.0"),
    (
        "class A:\n    log = []\n    def __len__(self):\n        return len(self.log)\na = A()",
        "a.log.append(x.mean())\nreturn x + len(a)",
    ),
)  # fmt: skip
"""State that grows at every call."""


@pytest.mark.parametrize(("setup", "body"), GROWING)
def test_state_that_grows_is_traced_at_most_three_times(setup: str, body: str) -> None:
    plain, fused = (module_of(setup, body) for _ in range(2))
    call = fuse(fused["function"], target="reference")
    for k in range(9):
        x = np.arange(4.0) + k
        np.testing.assert_allclose(call(x), plain["function"](x), 1e-12)
    for name in {"d", "s"} & plain.keys():
        grown, expected = fused[name], plain[name]
        assert list(map(type, grown)) == list(map(type, expected))
        assert list(grown) == list(expected)
    assert call.cache_info().traces <= 3


REFUSED = (
    ("m = np.ma.masked_array(np.ones(4), [0, 1, 0, 1])", "return x + m", "m is a numpy MaskedArray"),
    ("m = np.matrix(np.ones((4, 4)))", "return m @ x", "m is a numpy matrix"),
    ("g = (k for k in range(9))", "return x * next(g)", "g is a generator, whose state"),
    ("c = itertools.count()", "return x * next(c)", "c is a count, whose state"),
    ("b = np.arange(8.0)\nv = b[:4]", "np.add(v, x, out=v)\nreturn b[2:6] + x", "v is changed in place and b lies in"),
    (
        "class Sub(np.ndarray): pass\ns = np.ones(4).view(Sub)", "return x + s",
        "s is a Sub, a subclass of np.ndarray",
    ),
    ("@functools.cache\ndef t(): return 1", "t.cache_clear()\nreturn x + t()", "t.cache_clear() while a function"),
    ("import os", "os.environ['A'] = 'b'\nreturn x + 1", "os.environ is changed while"),
    (
        "d = {'n': 0}\ndef g(a):\n    d['n'] += 1\n    return a * d['n']", "return np.vectorize(g)(x)",
        "the function g, and it stores entries, and may write the global d",
    ),
    (
        "import contextvars\nv = contextvars.ContextVar('v')", "v.set(x)\nreturn x + 1", "v is changed while",
    ),
    (
        "class Meta(type):\n    def __call__(cls, v):\n        return super().__call__(v)\n"
        "class A(metaclass=Meta):\n    def __init__(self, v):\n        self.v = v",
        "return A(x).v + 1", "A is a class whose calls run Meta.__call__",
    ),
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize(("setup", "body", "message"), REFUSED)
def test_state_that_no_call_can_compare_is_refused(setup: str, body: str, message: str) -> None:
    call = fuse(module_of(setup, body)["function"], target="reference")
    with pytest.raises((TraceError, UnsupportedError), match=re.escape(message)):
        call(np.ones(4))


def test_dicts_that_are_returned_have_the_keys_of_the_call() -> None:
    def counts(x: Any) -> Any:
        result: dict[Any, Any] = {}
        for value in np.floor(x):
            result[value] = result.get(value, 0) + 1
        return result, {int(x[0]): x.sum(), (int(x[1]), "b"): 2}

    call = fuse(counts, target="reference")
    for first in (1.0, 2.5, 1.0):
        x = np.array([first, 2.5, 2.1])
        result, expected = call(x), counts(x)
        assert result == expected
        assert [list(map(type, one)) for one in result] == [list(map(type, one)) for one in expected]


CLOCKS = (
    ("import datetime", "datetime.datetime.now()", "datetime.now"),
    ("from datetime import datetime", "datetime.utcnow() if False else datetime.today()", "datetime.today"),
    ("import datetime", "datetime.date.today()", "date.today"),
    ("from datetime import date as day", "day.today()", "date.today"),
    ("import secrets", "secrets.randbelow(5)", "secrets.randbelow"),
    ("from secrets import token_hex", "token_hex(4)", "secrets.token_hex"),
    ("import time", "time.perf_counter()", "time.perf_counter"),
    ("import uuid", "uuid.uuid4()", "uuid.uuid4"),
)


@pytest.mark.parametrize(("setup", "call", "name"), CLOCKS)
def test_what_differs_at_every_call_warns_with_its_name(setup: str, call: str, name: str) -> None:
    fused = fuse(module_of(setup, f"{call}\nreturn x + 1")["function"], target="reference")
    with pytest.warns(UserWarning, match=rf"{name}\(\) while a function is traced"):
        fused(np.ones(4))


def test_dates_in_a_trace_are_dates() -> None:
    names = module_of(
        "import datetime\ndays = []",
        """
        day = datetime.datetime(2020, 5, 17, 3)
        days.append(day)
        assert isinstance(day, datetime.datetime) and isinstance(datetime.date(2020, 1, 1), datetime.date)
        assert datetime.datetime.fromisoformat("2020-05-17T03:00") == day
        return x * day.day + (day - datetime.datetime(2020, 5, 1)).days
        """,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = fuse(names["function"], target="reference")(np.ones(4))
    np.testing.assert_array_equal(result, np.ones(4) * 17 + 16)
    assert [type(day) for day in names["days"]] == [names["datetime"].datetime]


class Scaled:
    factor = 2.0

    def __init__(self) -> None:
        self.weight = np.ones(3)

    @fuse
    @classmethod
    def above(cls, x: Any) -> Any:
        return x * cls.factor

    @classmethod
    @fuse
    def below(cls, x: Any) -> Any:
        return x * cls.factor

    @property
    @fuse
    def doubled(self) -> Any:
        return self.weight * 2

    @fuse
    def weighted(self, x: Any) -> Any:
        return x * self.weight


class ScaledMore(Scaled):
    factor = 5.0

    @fuse
    def weighted(self, x: Any) -> Any:
        return Scaled.weighted(self, x) + 1


def test_methods_of_classes_read_the_class_that_they_are_called_on() -> None:
    x = np.ones(3)
    for _ in range(2):
        for owner, factor in ((Scaled, 2.0), (ScaledMore, 5.0), (ScaledMore(), 5.0), (Scaled(), 2.0)):
            np.testing.assert_array_equal(owner.above(x), x * factor)
            np.testing.assert_array_equal(owner.below(x), x * factor)


def test_properties_and_calls_through_a_base_class_know_their_object() -> None:
    one, x = ScaledMore(), np.ones(3)
    for weight in (2.0, 3.0):
        one.weight = np.full(3, weight)
        np.testing.assert_array_equal(one.doubled, one.weight * 2)
        np.testing.assert_array_equal(one.weighted(x), x * weight + 1)
        np.testing.assert_array_equal(Scaled.weighted(one, x), x * weight)  # type: ignore[arg-type]


def test_a_function_that_is_traced_for_each_call_runs_itself_once_it_has_many_traces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trace_cache, "MOST_TRACES_UNUSED", 4)
    names: list[str] = []
    fused = fuse(lambda x: x * len("".join(names)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(12):
            names[:] = ["a" * (number % 9)]
            np.testing.assert_array_equal(fused(np.ones(2)), np.full(2, number % 9.0))
    assert sum("was traced 4 times" in str(one.message) for one in caught) == 1
    assert fused.cache_info().traces == 4


ITERATORS: dict[str, Callable[[], Any]] = {
    "list": lambda: iter([1.0, 2.0, 3.0, 4.0]),
    "pairs": lambda: zip(itertools.count(), (k * 0.5 for k in range(9)), strict=False),
    "arrays": lambda: itertools.cycle([np.ones(2), np.zeros(2)]),
    "short": lambda: iter([np.ones(2)]),
}


@pytest.mark.parametrize("make", ITERATORS.values(), ids=list(ITERATORS))
def test_functions_that_advance_iterators_run_as_plain_python_after_one_warning(make: Callable[[], Any]) -> None:
    outcomes = []
    for wrap in (fuse, lambda function: function):
        holder = types.SimpleNamespace(entries=make(), total=np.zeros(2))

        def advance(x: Any, holder: Any = holder) -> Any:
            holder.total = holder.total + x
            entry = next(holder.entries)
            return x + (entry if isinstance(entry, (float, np.ndarray)) else entry[0] * entry[1])

        call, results = wrap(advance), []
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number in range(4):
                try:
                    results.append(call(np.full(2, float(number))).tolist())
                except StopIteration:
                    results.append(holder.total.tolist())
        assert len(caught) == (wrap is fuse)
        outcomes.append((results, holder.total.tolist()))
    assert outcomes[0] == outcomes[1]


def test_tables_of_other_libraries_are_refused_with_what_to_pass() -> None:
    table = type("DataFrame", (), {"__module__": "pandas.core.frame", "shape": (3, 2), "to_numpy": lambda self: None})()
    holder = types.SimpleNamespace(table=table)
    x = np.ones(3)
    for function, arguments, path in (
        (lambda x: x * table.to_numpy(), (x,), "table"),
        (lambda x: x * holder.table.to_numpy(), (x,), "holder.table"),
        (lambda x, given: x * given.to_numpy(), (x, table), "given"),
    ):
        with pytest.raises(UnsupportedError, match=f"{path} is a pandas DataFrame") as refusal:
            fuse(function, target="reference")(*arguments)
        assert refusal.value.hint == f"pass the columns that it reads as arrays: {path}[name].to_numpy()"


UNDONE = (
    ("class E(enum.Enum):\n    A = 1\nE.A.n = 0\nE.A.log = []", "E.A.n += 1\nE.A.log.append(x)", "(E.A.n, E.A.log)"),
    ("import threading\nt = threading.local()\nt.n = 1", "t.n += 1\nt.last = x", "vars(t)"),
    (
        "import weakref\nclass K: pass\nk = K()\nd = weakref.WeakKeyDictionary({k: 1})",
        "d[k] = d[k] + 1", "list(d.values())",
    ),
    ("import weakref\nclass K: pass\nk = K()\ns = weakref.WeakSet()", "s.add(k)", "len(s)"),
    (
        "class M(type):\n    size = 0\nclass A(metaclass=M):\n    n = 0\na = A()",
        "A.top = a.n = x", "(vars(a), hasattr(A, 'top'))",
    ),
    ("class N(float): pass\nn = N(2)\nn.seen = [1]", "n.last = x\nn.seen[0] = 2", "(n, vars(n))"),
    ("e = ValueError('a')", "e.last = x", "vars(e)"),
)  # fmt: skip
"""Objects without overlays, statements that change one, and an expression of what it holds."""


@pytest.mark.parametrize(("setup", "body", "contents"), UNDONE)
def test_changes_of_objects_without_overlays_are_undone_and_refused(setup: str, body: str, contents: str) -> None:
    names = module_of(setup, f"{body}\nreturn x + 1")
    before = copy.deepcopy(eval(contents, names))
    with pytest.raises(UnsupportedError, match=r"the function changes .*; no later call would change it"):
        fuse(names["function"], target="reference")(np.ones(4))
    assert eval(contents, names) == before
    names = module_of(setup, f"{body}\nraise RuntimeError('at the end')")
    with pytest.raises(RuntimeError, match="at the end"):
        fuse(names["function"], target="reference")(np.ones(4))
    assert eval(contents, names) == before
