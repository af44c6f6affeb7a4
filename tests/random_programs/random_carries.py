"""Random recorded loops, as source text, from a seed.

Their numbers are no powers of two: a product that is rounded, or contracted with a later sum, shows in the bits.
"""

from __future__ import annotations

import itertools
import linecache
import random
from collections.abc import Callable
from typing import Any

import numpy as np

import tracefuse

NAMES = itertools.count()

STATEMENTS = (
    "s = s * {c}", "s = s + {c}", "s = s * {c} + {d}", "s = np.sin(s)", "s = s * 0.5 + x.sum() * 0.01", "k = k + 1",
    "k = (k * 5 + i) % 17", "s = s + k * {c}", "s = np.where(k > 7, s * {c}, s)", "x = x * {c} + s",
    "x = np.roll(x, 1) * 0.3 + x * 0.6", "x = np.where(x > s, x * {c}, x)", "x = x + w * {c}", "s = s * 0.5 + w[i % 5]",
    "x = x * 0.5 + (x.max() - x) * {c}", "x = np.cumsum(x) * 0.1", "x[1:-1] = x[:-2] * {c} + x[2:] * 0.3",
    "z = x * {c}; x = z + {d}", "x = x / (1 + abs(s))", "s = s / (1 + abs(x).max())",
)  # fmt: skip
"""Statements of a step; {c} and {d} are numbers."""

LOOPS = (
    "fori_loop(0, {n}, lambda j, s: s * {c} + j + k * 0.1, s)",
    "while_loop(lambda s: abs(s) > 1.3, lambda s: s * 0.37, s)",
    "scan(lambda s, v: (s * {c} + v, s), s, x)[0]",
)
INNER_ARRAYS = (
    "fori_loop(k, {n}, lambda j, x: x * {c} + s * j, x)", "fori_loop(0, {n}, lambda j, x: x * 0.5 + j, x)",
    "scan(lambda t, v: (t * 0.5 + v, t * {c}), s, x, reverse=True)[1]",
)  # fmt: skip

NUMBERS = ("0.7", "-0.3", "0.1", "0.9", "0.37")

SKELETONS = (
    "return fori_loop(0, 40, step, (x, s, 0))",
    "return while_loop(lambda c: c[3] < 30, lambda c: (*step(c[3], c[:3]), c[3] + 1), (x, s, 0, 0))",
    "return scan(lambda c, v: (step(c[2], (c[0], c[1] + v, c[2])), c[0] * v), (x, s, 0), rows)",
    "return scan(lambda c, v: (step(c[2], (c[0] + v, c[1], c[2])), c[1]), (x, s, 0), table, reverse=True)",
)


def random_carry(seed: int) -> tuple[Callable[..., Any], str]:
    """Returns a function of (x, s, w, rows, table) with a loop of 30 to 40 steps; and its source."""
    draw = random.Random(seed)

    def filled(text: str) -> str:
        return text.format(c=draw.choice(NUMBERS), d=draw.choice(NUMBERS), n=draw.choice("23"))

    lines = [filled(draw.choice(STATEMENTS)) for _ in range(draw.randint(1, 5))]
    if draw.random() < 0.3:
        lines.append(f"s = {filled(draw.choice(LOOPS))}")
    if draw.random() < 0.2:
        lines.append(f"x = {filled(draw.choice(INNER_ARRAYS)).replace('(k,', '(0,')}")
    draw.shuffle(lines)
    text = "\n".join([
        "def run(x, s, w, rows, table):", "    def step(i, c):", "        x, s, k = c", "        x = x.copy()",
        *(f"        {line}" for line in lines), "        return x, s, k", f"    {draw.choice(SKELETONS)}", "",
    ])  # fmt: skip
    filename = f"<loop {next(NAMES)} of seed {seed}>"
    names = ("fori_loop", "while_loop", "scan")
    scope: dict[str, Any] = {"np": np, "__name__": "random_carries", **{n: getattr(tracefuse, n) for n in names}}
    exec(compile(text, filename, "exec"), scope)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return scope["run"], text
