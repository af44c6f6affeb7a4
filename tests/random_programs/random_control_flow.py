"""Random Python functions that ask about computed values, as source text, from a seed.

Their arithmetic is exact (multiples of powers of two), so that the order of sums does not matter.
"""

from __future__ import annotations

import itertools
import linecache
import random
from collections.abc import Callable
from typing import Any

import numpy as np

NAMES = itertools.count()

PLAIN = (
    "y = y * {c} + {d}", "y = np.where(y > {c}, y, -y)", "y = y[::-1] - s", "y += x", "y[1:] -= {c}", "y = -y",
    "s = float(y.sum())", "s = y.max()", "s = s * 0.5 + {c}", "s = y[0] - y[-1]", "s = float(len(y[y > {c}]))",
    "k = int((y > {c}).sum())", "k = int(np.argmax(y))", "k = min(k, 3)", "k = len(np.nonzero(y > {c})[0])",
    "y[:k] *= 2", "y = np.concatenate([y[:k], y[k:][::-1]])", "y = np.roll(y, k)", "s = s + np.zeros(k + 1).size",
    "y = y + np.arange(len(y)) * k", "y[y > {c}] = {d}", "s = y[y > {c}].sum()", "x[:k] = {c}", "x *= 0.5",
    "self.calls += 1", "self.last = y.sum()", "self.log.append(k)", "self.weights = self.weights + y[0]",
    "y = y + self.weights", "s = s + self.calls", "s = sum(v for v in y if v > {c})", "s = max(y, key=abs)",
    "y = np.sort(y)", "s = float(sorted(y)[0])", "s, k = (s + 1, k) if s > {c} else (s, k + 1)",
    "s = sum(a * b for a, b in zip(y, reversed(y)))", "k = [i for i, v in enumerate(y) if v >= y.max()][0]",
    "s = s + any(v > {c} for v in y) - all(v > {d} for v in y)", "print(k, y[0], s)", "y = double(y, s)",
)  # fmt: skip
"""Statements; {c} and {d} are numbers."""

CONDITIONS = (
    "s > {c}", "y.max() > {c}", "(y > {c}).any()", "{c} < s <= {d}", "k == 2", "not k", "y[0] > y[-1] and s > {c}",
    "s < {c} or y.min() < {d}", "k", "not (y < {c}).all()", "(y[0] > 0) == (s > 0)", "y.sum() % 2 == 0",
    "self.calls % 2", "any(y > {c})", "{c} in y", "x[0] < y[0] < x[-1] + {d}",
)  # fmt: skip

NUMBERS = ("-3.0", "-1.0", "-0.5", "0.0", "0.25", "1.0", "2.0", "5.0")

HELPER = """
def double(y, s):
    if s > 1:
        return y * 2
    return y if s < 0 else double(y, s + 1)
"""


class _Writer:
    """Writes the lines of one function."""

    def __init__(self, seed: int) -> None:
        self.random, self.lines, self.loops = random.Random(seed), [], 0

    def filled(self, text: str) -> str:
        return text.format(c=self.random.choice(NUMBERS), d=self.random.choice(NUMBERS))

    def condition(self) -> str:
        return self.filled(self.random.choice(CONDITIONS))

    def block(self, depth: int, in_loop: bool, most: int) -> None:
        for _ in range(self.random.randint(1, most)):
            self.statement(depth, in_loop)

    def add(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def statement(self, depth: int, in_loop: bool) -> None:
        kinds = ["plain"] * 6 + ["if"] * 3 + ["while", "for", "try", "end", "match"]
        kind = self.random.choice(kinds) if depth < 5 else "plain"
        getattr(self, f"write_{kind}")(depth, in_loop)

    def write_plain(self, depth: int, in_loop: bool) -> None:
        self.add(depth, self.filled(self.random.choice(PLAIN)))

    def write_if(self, depth: int, in_loop: bool) -> None:
        self.add(depth, f"if {self.condition()}:")
        self.block(depth + 1, in_loop, 2)
        if self.random.random() < 0.3:
            self.add(depth, f"elif {self.condition()}:")
            self.block(depth + 1, in_loop, 2)
        if self.random.random() < 0.5:
            self.add(depth, "else:")
            self.block(depth + 1, in_loop, 2)

    def write_while(self, depth: int, in_loop: bool) -> None:
        counter, self.loops = f"n{self.loops}", self.loops + 1
        self.add(depth, f"{counter} = 0")
        self.add(depth, f"while ({self.condition()}) and {counter} < 3:")
        self.add(depth + 1, f"{counter} += 1")
        self.block(depth + 1, True, 2)
        self._otherwise(depth, in_loop)

    def write_for(self, depth: int, in_loop: bool) -> None:
        counter, self.loops = f"n{self.loops}", self.loops + 1
        self.add(depth, f"for {counter} in range({self.random.choice(['2', '3', 'min(k, 2)'])}):")
        self.block(depth + 1, True, 2)
        self._otherwise(depth, in_loop)

    def _otherwise(self, depth: int, in_loop: bool) -> None:
        if self.random.random() < 0.3:
            self.add(depth, "else:")
            self.block(depth + 1, in_loop, 1)

    def write_try(self, depth: int, in_loop: bool) -> None:
        self.add(depth, "try:")
        self.block(depth + 1, in_loop, 2)
        self.add(depth + 1, f"if {self.condition()}:")
        self.add(depth + 2, "raise LookupError(k)")
        self.add(depth, "except LookupError as error:")
        self.add(depth + 1, "s = s + error.args[0]")
        if self.random.random() < 0.3:
            self.add(depth, "finally:")
            self.block(depth + 1, False, 1)

    def write_match(self, depth: int, in_loop: bool) -> None:
        self.add(depth, "match k:")
        for case in ("0 if s > 0", "1 | 2", "_ if x[0] > y[0]", "_"):
            self.add(depth + 1, f"case {case}:")
            self.write_plain(depth + 2, in_loop)

    def write_end(self, depth: int, in_loop: bool) -> None:
        """A jump, a return, an assertion or an exception under a condition."""
        ends = ["return y, s", "raise ValueError(k, float(s))"]
        if in_loop:
            ends += ["break", "continue"] * 2
        if self.random.random() < 0.2:
            self.add(depth, f"assert not ({self.condition()} and {self.condition()}), 'not so'")
            return
        self.add(depth, f"if {self.condition()} and {self.condition()}:")
        self.add(depth + 1, self.random.choice(ends))


def random_function(seed: int) -> tuple[Callable[[Any, Any], Any], str]:
    """Returns a method `run(self, x)` with two results, an array like x and a number; and its source."""
    writer = _Writer(seed)
    writer.block(1, False, 6)
    body = ["y, s, k = x * 1, 0.0, 0", *[line[4:] for line in writer.lines], "return y, s"]
    text = "\n".join([HELPER, "def run(self, x):", *(f"    {line}" for line in body), ""])
    filename = f"<program {next(NAMES)} of seed {seed}>"
    scope: dict[str, Any] = {"np": np, "__name__": "random_control_flow"}
    exec(compile(text, filename, "exec"), scope)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return scope["run"], text
