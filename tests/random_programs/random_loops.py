"""Random Python functions with long `for` loops over ranges and arrays, as source text, from a seed.

Their arrays hold integers, and their arithmetic is exact modulo 2 ** 64, so that every result has one value.
"""

from __future__ import annotations

import itertools
import linecache
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

NAMES = itertools.count()

RANGES = {
    "i": ("range(n)", "range(1, n)", "range(n - 1)", "range(n - 1, -1, -1)", "range(2, n, 3)", "range(m, n)"),
    "j": ("range(i)", "range(i, n)", "range(i + 1, n)", "range(n)", "range(i, -1, -1)", "range(1, n - 1)", "range(2)"),
}
"""What the outer loop iterates over, and a loop in it."""

ENTRIES = ("enumerate(x)", "enumerate(A[1:], 1)", "zip(range(n), y)", "reversed(range(n))")
"""What else an outer loop without questions iterates over."""

STATEMENTS = (
    "x[i] = y[i] - {c} * x[0]", "y[i] += x[i] * {c}", "A[i, i] = s + i", "A[i] += y", "A[:, i] -= A[i]",
    "s = s + y[i]", "s += x[:i].sum()", "t = x[i] * {c}", "x[i:] += i", "x[:i] -= A[i, :i]", "y[0] = A[i, i:] @ y[i:]",
    "A[i, :i] += x[:i] * y[i]", "k += {c}", "y[i] = k - i * {c}", "z = z * {c} - x", "x = x + i",
    "v[1:-1] = v[2:] - v[:-2]",
    "y += z", "s = y[i]", "x[i] = np.maximum(y[i], A[i, 0])", "A[i, i] = np.dot(A[i, :i], A[:i, i])", "last = i",
    "y[n - 1 - i] = i % {c}", "if i > {c}: y[i] = s", "if n > {c}: y[i] -= 1", "w.append(s)", "t = A[i].sum()",
)  # fmt: skip
"""Statements of a loop; those of an inner one have j in place of i at random places."""


CONDITIONS = (
    "x[i] > {c}", "y[i] < x[0]", "i % 2", "i == 0", "i + {c} < n", "s > y[i]", "i > {c} and x[i - 1] > s",
    "not x[i] > y[i]", "x[i] > 0 or i == {c}", "0 < x[i] < {c}", "s & 1", "i == n - 1", "t != 0 and s % t > {c}",
)  # fmt: skip
"""What `if` and `while` ask in a loop."""

SELDOM = ("x = x + i", "w.append(s)", "z = z * {c} - x", "y[i] = k - i * {c}")
"""Statements that let other ones unroll the loop."""

MOST_STEPS = 25
"""Of a `while` loop."""


def _branching(draw: random.Random, inner: bool, indent: str, may_leave: bool, depth: int = 0) -> list[str]:
    """Returns lines with a branch or a `while` loop."""
    condition = _statement(draw, inner, CONDITIONS)
    kind = draw.random()
    if kind < 0.15 and depth == 0:
        lines = [f"{indent}r = 0", f"{indent}while ({condition}) and r < {MOST_STEPS}:", f"{indent}    r += 1"]
        return [*lines, *_lines(draw, inner, indent + "    ", False, 1)]
    if kind < 0.25:
        other = _statement(
            draw, inner, ("x[i] = s if COND else y[i]", "s = y[i] if COND else s", "x[i] += {c} if COND else y[i]")
        )
        return [indent + other.replace("COND", condition)]
    if kind < 0.35 and may_leave:
        return [f"{indent}if {condition}:", f"{indent}    {draw.choice(('continue', 'break'))}"]
    lines = [f"{indent}if {condition}:", *_lines(draw, inner, indent + "    ", may_leave, depth + 1)]
    if draw.random() < 0.3:
        condition = _statement(draw, inner, CONDITIONS)
        lines += [f"{indent}elif {condition}:", *_lines(draw, inner, indent + "    ", may_leave, depth + 1)]
    if draw.random() < 0.5:
        lines += [f"{indent}else:", *_lines(draw, inner, indent + "    ", may_leave, depth + 1)]
    return lines


def _lines(draw: random.Random, inner: bool, indent: str, may_leave: bool, depth: int) -> list[str]:
    lines = [indent + _statement(draw, inner) for _ in range(draw.randint(1, 2))]
    if depth < 2 and draw.random() < 0.4:
        lines += _branching(draw, inner, indent, may_leave, depth)
    return lines


def _statement(draw: random.Random, inner: bool, among: Sequence[str] = STATEMENTS) -> str:
    usual = [one for one in among if one not in SELDOM]
    among = usual if draw.random() < 0.9 else among
    text = draw.choice(among).replace("{c}", str(draw.randint(1, 5)))
    if not inner:
        return text
    return "".join("j" if part == "i" and draw.random() < 0.6 else part for part in _tokens(text))


def _tokens(text: str) -> list[str]:
    return ["".join(group) for _, group in itertools.groupby(text, lambda c: c.isalnum() or c == "_" or id(c))]


def random_loops(seed: int, branches: bool = False) -> tuple[Callable[..., Any], str]:
    """Returns a function of a matrix and an integer, which returns arrays and numbers; and its source.

    branches: whether the loops ask about values and counters.
    """
    draw = random.Random(seed)
    lines = ["def run(A, m):", "    n, s, k, t, last, w = A.shape[0], 0, m, 0, -1, []"]
    lines += ["    x, y = A[0] * 2, A[:, 1].copy()", "    z, v = x - 1, A[2]"]
    for _ in range(draw.randint(1, 2)):
        entries = draw.choice(RANGES["i"] if branches else (*RANGES["i"], *ENTRIES))
        target = "i, entry" if entries.startswith(("enumerate", "zip")) else "i"
        lines.append(f"    for {target} in {entries}:")
        lines += [f"        {_statement(draw, False)}" for _ in range(draw.randint(1, 3))]
        if branches:
            lines += _branching(draw, False, "        ", True)
        if draw.random() < 0.6:
            lines.append(f"        for j in {draw.choice(RANGES['j'])}:")
            lines += [f"            {_statement(draw, True)}" for _ in range(draw.randint(1, 3))]
            if branches and draw.random() < 0.5:
                lines += _branching(draw, True, "            ", True)
            lines += [f"        {_statement(draw, False)}" for _ in range(draw.randint(0, 2))]
        lines += [f"    {draw.choice(('y += s', 'x = y - 1', 'v[0] = last', 's = s + t'))}"]
    text = "\n".join([*lines, "    return x, y, z, s, k, t, last, np.array(w, np.int64)", ""])
    filename = f"<loops {next(NAMES)} of seed {seed}>"
    scope: dict[str, Any] = {"np": np, "__name__": "random_loops"}
    exec(compile(text, filename, "exec"), scope)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return scope["run"], text
