"""Random functions over objects of many kinds, which change between calls and which the functions change.

A program reads and writes a few kinds of state. Two modules with the same text run it, one of them fused: results,
exceptions and the state are compared after every call. A call that raises leaves the fused state as it was, so that
both modules are made anew after it.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import operator
import random
import re
import textwrap
import types
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tracefuse import fuse


class Kind(NamedTuple):
    """A kind of state: statements that make it, expressions and statements of programs, and changes between calls.

    y: the value that a program computes. r: a number of the change, w: an array of four elements. state: an expression
    of what calls leave.
    """

    setup: str
    reads: list[str]
    writes: list[str]
    changes: list[str]
    state: str


def _kinds() -> dict[str, Kind]:
    """The kinds of kinds_of_objects.txt, by name."""
    kinds = {}
    for section in Path(__file__).with_name("kinds_of_objects.txt").read_text().split("=== ")[1:]:
        name, _, text = section.partition("\n")
        setup, *parts, state = re.split(r"--- \w+\n", text)
        kinds[name] = Kind(setup, *(re.split(r"\n(?! )", part.strip()) for part in parts), state.strip())
    return kinds


KINDS = _kinds()
PLAIN_LINES = (
    "y = y + x", "y = y * 0.5", "y = np.tanh(y)", "if y.sum() > 1:\n    y = y - 1", "y = np.where(y > 0, y, -y * 0.1)",
    "if x[0] < 0:\n    raise ValueError('negative')", "y = y / (1 + abs(float(y[0])))",
)  # fmt: skip
NAMES = ("pair", "mode", "bound", "made")
"""Globals that programs bind."""
MODULES = {
    "np": np, "collections": collections, "contextlib": contextlib, "dataclasses": dataclasses, "enum": enum,
    "functools": functools, "operator": operator, "types": types, "weakref": weakref,
}  # fmt: skip


class RandomObjects:
    """A random program over a few kinds of state. text: of its module."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.kinds = [KINDS[name] for name in rng.sample(sorted(KINDS), rng.randrange(1, 4))]
        lines = ["y = x * 1.0"]
        for _ in range(rng.randrange(2, 7)):
            kind = rng.choice(self.kinds)
            draw = rng.random()
            if draw < 0.45:
                lines.append(f"y = {rng.choice(kind.reads)}")
            elif draw < 0.85:
                lines.append(rng.choice(kind.writes))
            else:
                lines.append(rng.choice(PLAIN_LINES))
        body = textwrap.indent("\n".join([f"global {', '.join(NAMES)}", *lines, "return y"]), "    ")
        self.text = "\n".join([*(kind.setup for kind in self.kinds), f"def function(x):\n{body}\n"])
        self.state = f"[{', '.join(kind.state for kind in self.kinds)}]"

    def module(self) -> dict[str, Any]:
        names = {**MODULES, "__name__": "random_objects"}
        exec(compile(self.text, "<objects>", "exec", dont_inherit=True), names)
        return names

    def change(self, *modules: dict[str, Any]) -> None:
        """Makes one change in every module."""
        text = self.rng.choice(self.rng.choice(self.kinds).changes)
        seed = self.rng.randrange(10**6)
        for names in modules:
            numbers = np.random.default_rng(seed)
            names["r"], names["w"] = float(numbers.uniform(0.5, 2)), numbers.uniform(-1, 2, 4)
            exec(text, names)


def outcome(function: Any, x: Any) -> Any:
    """The result of a call, or the type of its exception and its text."""
    try:
        return function(x)
    except ValueError as error:
        return type(error), str(error)


def check_equal(value: Any, right: Any, text: str) -> None:
    """Checks types and values of nested containers."""
    if isinstance(right, (list, tuple, dict)):
        assert type(value) is type(right), text
        assert len(value) == len(right), text
        if isinstance(right, dict):
            assert list(value) == list(right), text
            value, right = list(value.values()), list(right.values())
        for one, other in zip(value, right, strict=True):
            check_equal(one, other, text)
    elif isinstance(right, (np.ndarray, np.generic, float)):
        is_reduced = isinstance(right, np.generic) and isinstance(value, np.ndarray)  # a full reduction is an array
        assert type(value) is type(right) or is_reduced, text
        np.testing.assert_allclose(value, right, 1e-9, 1e-9, err_msg=text)
    else:
        assert type(value) is type(right), text
        assert value == right, text


def check_objects(seed: int, calls: int = 9) -> None:
    """Checks one program. An error of a call leaves the fused state as it was; the modules are made anew."""
    program = RandomObjects(seed)
    plain, fused = program.module(), program.module()
    call = fuse(fused["function"], target="reference")
    for count in range(calls):
        x = np.arange(4.0) - (1 if program.rng.random() < 0.2 else -0.5)
        expected, result = outcome(plain["function"], x.copy()), outcome(call, x.copy())
        text = f"call {count} of\n{program.text}"
        check_equal(result, expected, text)
        if isinstance(expected, tuple):
            plain, fused = program.module(), program.module()
            call = fuse(fused["function"], target="reference")
            continue
        check_equal(eval(program.state, fused), eval(program.state, plain), text)
        if program.rng.random() < 0.6:
            program.change(plain, fused)
