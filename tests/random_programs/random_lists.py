"""Random functions that fill lists in loops and then change, alias and read their entries, as source, from a seed."""

from __future__ import annotations

import linecache
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

NEW_ARRAYS = ("np.full(2, v)", "np.full(2, v) * k", "x[:2] * v", "np.outer(x[:2], [v, 1.0])[0]")
"""The array that an iteration makes."""

ENTRIES = (
    "t", "t", "t", "t * 2", "t[::-1]", "t[:1]", "v", "k", "(t, v)", "(v, k)", "{'p': t, 'n': v}", "{'n': k}", "[t]",
    "[v, v]", "[v]", "(v, [k])", "[t, t]", "[[v], [k]]", "{'l': [v]}", "t.sum()",
)  # fmt: skip
"""What an iteration appends to a list."""

POSITIONS = ("0", "1", "-1", "n // 2", "n // 3", "2")

ON_LISTS = (
    "{a}[{i}] = {b}[{j}]", "d = {a}[1:]", "d = list({a})", "d = {a}[::-1]", "{a}.reverse()", "d = {a}[:3] + {b}[2:]",
    "{a}.pop()", "{a} += {b}[:2]", "q = {a}[{i}]", "{a}.extend({b})", "d = [q for q in {a}]", "s = len({a})",
    "t = t * 2", "t += 5",
)  # fmt: skip

ON_ENTRIES = {
    "t": (
        "{a}[{i}] += 1", "{a}[{i}][0] = 7", "for q in {a}: q *= 2", "q = {a}[{i}]; q += 3",
        "for i, q in enumerate({a}): q += i", "d = {a}[1:4]\nfor q in d: q += 9", "d = np.array({a}); d[0] = 1",
    ),
    "[": (
        "{a}[{i}].append(n)", "{a}[{i}][0] = 7.0", "for q in {a}: q.append(1)", "{a}[{i}].reverse()",
        "for q in {a}: q[0] = q[-1]", "d = [q[0] for q in {a}]", "for i in range(len({a})): {a}[i].append(i)",
        "d = {a}[2:]; d[0].append(5)", "d = np.array([len(q) for q in {a}])",
    ),
    "{": (
        "{a}[{i}]['n'] = 3", "for q in {a}: q['m'] = 1", "for q in {a}: q['n'] = 2", "{a}[{i}].update(w=1)",
        "d = [q.get('n', 0) for q in {a}]",
    ),
    "(": (
        "d = [q[0] for q in {a}]", "for q, w in {a}: q = q + 1", "q, w = {a}[{i}]", "q, w = {a}[{i}]; q *= 2",
        "d = list(zip(*{a}))", "{a}[{i}][1].append(4)",
    ),
}  # fmt: skip
"""Statements on lists, by the first character of the entries."""


def random_lists(seed: int) -> tuple[Callable[..., Any], str]:
    """Returns a function of an array `x` and its length `n`, and its source."""
    draw = random.Random(seed)
    lists = draw.sample(("a", "b", "c"), draw.choice((1, 2, 2, 3)))
    lines = [f"{name} = {draw.choice(('[]', '[]', '[]', '[np.full(2, 0.5)]'))}" for name in lists]
    entries = {name: draw.choice(ENTRIES) for name in lists}
    lines += ["for k, v in enumerate(x):", *("    " + line for line in _body(draw, lists, entries))]
    for _ in range(draw.randint(1, 4)):
        name = draw.choice(lists)
        on_entries = ON_ENTRIES.get(entries[name][0], ())
        text = draw.choice((*ON_LISTS, *on_entries, *on_entries))
        parts = {"a": name, "b": draw.choice(lists), "i": draw.choice(POSITIONS), "j": draw.choice(POSITIONS)}
        lines += text.format(**parts).split("\n")
    results = sorted({*lists, *(("t",) if draw.random() < 0.5 else ())})
    results += [name for name in "dqs" if any(line.startswith(f"{name} = ") for line in lines) and draw.random() < 0.6]
    lines.append(f"return {', '.join(results)}")
    text = "def program(x, n):\n" + "".join(f"    {line}\n" for line in lines)
    name = f"<lists of seed {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope = {"np": np}
    exec(compile(text, name, "exec"), scope)
    return scope["program"], text  # type: ignore[return-value]


def _body(draw: random.Random, lists: Sequence[str], entries: dict[str, str]) -> list[str]:
    """Returns the lines of an iteration."""
    lines = [f"t = {draw.choice(NEW_ARRAYS)}"]
    for name in lists:
        condition = "if v > 0.5: " if draw.random() < 0.2 else ""
        lines += [f"{condition}{name}.append({entries[name]})"] * (1 + (draw.random() < 0.1))
    if draw.random() < 0.2:
        lines.append("t += 1")
    if draw.random() < 0.2:
        lines += [f"u = {draw.choice(('[v]', 't', '{0: v}'))}", f"{draw.choice(lists)}.append(u)"]
    return lines
