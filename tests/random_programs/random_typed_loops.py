"""Random functions with loops over carries of many types, views, slices, state and helpers, as source, from a seed.

Values stay small, so that NumPy and kernels compute the same results up to rounding.
"""

from __future__ import annotations

import itertools
import linecache
import random
from collections.abc import Callable
from typing import Any

import numpy as np

NAMES = itertools.count()

DTYPES = ("int64", "int64", "int64", "float64", "float64", "int8", "float16", "float32", "bool", "complex128", "uint8")
"""The types of the arrays x and y."""

LENGTHS = (
    *("n",) * 6, "n - 1", "1, n", "n - 1, -1, -1", "0, n, 2", "m", "m, n", "n - 2, 0, -3", "3", "17", "16", "0",
)  # fmt: skip
"""Arguments of range() of an outer loop."""

INNER = ("{v}", "{v} + 1", "{v}, n", "{v} + 1, n", "{v}, -1, -1", "3", "n", "m", "n - {v}", "max(0, {v} - 2), {v}")

ITERABLES = (
    ("i, e", "enumerate(x)"), ("e, g", "zip(x, y)"), ("e", "reversed(x)"), ("e", "x"), ("r", "A"),
    ("i, r", "enumerate(A)"), ("e, g", "zip(x[1:], x[:-1])"), ("e", "y[::-1]"), ("i, (e, g)", "enumerate(zip(x, y))"),
    ("i, j", "zip(range(n), range(n - 1, -1, -1))"), ("e", "[x, y, w]"), ("e", "(x, y[1:], w * 2)"), ("e", "A.T"),
    ("e, j", "zip(x, range(2, n))"), ("i, j", "itertools.product(range(n), range(m))"), ("i, j", "np.ndindex(n, 3)"),
    ("i, j", "np.ndindex(A.shape)"), ("e", "idx"), ("i, e", "enumerate(idx)"), ("e", "x.tolist()"),
)  # fmt: skip
"""What else a loop iterates over, with its variables."""

ARRAYS = (
    "y = y + one", "y = x * one", "x, y = y, x", "x, y = y, x + y", "x, y, u = u, x, y", "u = y", "u = y + x",
    "y += one", "x += y", "u = np.where(x > y, x, y)", "y = y % three", "u[0] = x[-1]", "w[0] = one", "w += one",
    "w = w + one", "y = x.copy()", "x[1:] = x[:-1]", "x[1:] += x[:-1]", "y[::-1] += one", "A[0] = y", "A += one",
    "u = A.sum(0)", "y = A[-1]", "y[mask] = 0", "x[idx] = y[idx]", "y = np.roll(y, 1)", "x[::2] = one",
    "u = np.maximum(u, x)", "y = np.minimum(x, u)", "u = x[::-1]", "u = np.sort(y)", "u = np.cumsum(x)", "A = A.T",
    "A = A + A.T", "A[:, 0] = x", "p = A[1]; p += one", "p = x[2:]; p[0] = one", "mask = x > y", "mask = ~mask",
    "mask[1] = b", "y = np.abs(y)", "y = y.astype(float)", "x = x.astype(np.int64)", "u = np.zeros_like(x)",
    "u = np.full(n, s)", "u = np.arange(n)", "x -= y.sum()", "u = twice(x)", "x = clipped(x, 5)", "u = total(y, m)",
    "y.fill(2)", "np.add(x, one, out=x)", "x = np.concatenate([x[1:], x[:1]])", "u = np.stack([x, y]).max(0)",
    "u = A @ u",
)  # fmt: skip
"""Statements that need no counter."""

NUMBERS = (
    "s = s + 1", "s += 2", "f = f * 0.5 + 1", "f = f / 2", "z = z * 1j + 1", "b = not b", "s = s % 7", "s, k = k, s",
    "s, k = k, s + 1", "s, k, f = k, s + 1, f + s", "f = s", "s = int(f)", "k = x.sum()", "k = y[0]",
    "f = float(y.sum())", "b = s > k", "b = bool(x[0] > y[0])", "s = max(s, 3)", "f = min(f, 2.5)", "k = k // 2",
    "s = -s", "s = abs(s) % 5", "last = s", "t = 1.5", "t = None", "t = k", "f += y[0]", "s -= one", "s = halved(s)",
    "k = s if b else k", "f = np.sqrt(abs(f))", "z = z + s", "b = b and s > 2", "b |= s > 3", "s = s ^ 1",
    "s <<= 1; s %= 8", "f = round(f, 2)", "k = len(lst)", "t = (s, f)", "c = np.int8(3)", "c = c + 1",
    "h = np.float32(0.5)", "h = h * 2 % 3", "q += 1", "q -= 3", "b = b or s > 3", "s = s or 3", "f = f or s",
    "b = s in (1, 2, 3)", "b = s not in [1, k]", "b = 0 < s <= k", "s += b", "s += not b", "t = b and s",
    "b = x.max() > 1 or b", "k = y[0] or s", "b = k == y[0] == 0", "s += s in {0, 2} and 2",
    "o = None", "o = s", "o = f", "o2 = o", "o2, o = o, k", "o, o2 = None, s", "o = None if b else s", "o = o2 = None",
    "s += o is None", "k = 0 if o is None else o", "t = o", "o += 1", "row = None", "row = A[-1]", "row = x * 1",
    "mode = 'busy'", "mode = 'idle' if b else 'done'", "now = mode", "s += mode == 'busy'", "lst.append(mode)",
    "lst.append(o)", "if o is not None: lst.append(o)", "pair = (s, k)", "pair = (pair[1], s)", "s += pair[0]",
    "k, s = pair", "held = None", "held = (s, f)", "s = 0 if held is None else held[0]", "lst.append(pair)", "t = pair",
)  # fmt: skip

COUNTED = (
    "x[{v}] = s", "x[{v}] = one", "y[{v}] += x[{v}]", "s = s + {v}", "k = k + x[{v}]", "f = f + {v} * 0.5",
    "last = {v}", "u = x[{v}:]", "u = x[:{v} + 1]", "f = x[{v}:].sum()", "k = x[:{v}].sum()",
    "k = y[max({v} - 1, 0):{v} + 2].max()", "y[{v}:] = x[{v}:]", "y[:{v}] += one", "x[-1 - {v}] = y[{v}]",
    "A[{v}] = x", "A[{v}] += y", "A[:, {v}] = y", "A[{v}, {v}] = one", "r = A[{v}]; r += one", "w = A[{v}]",
    "w = A[:, {v}]", "y = A[{v}] + x", "x[({v} * 3) % n] = y[{v}]", "k = x[{v} - 1]", "b = x[{v}] > y[{v}]",
    "mask[{v}] = b", "s += mask[{v}]", "x[idx[{v}]] = one", "k = y[idx[{v}]]", "A[idx[{v}], {v}] = one",
    "y[[0, {v}]] = x[[{v}, 0]]", "x[{v}], x[0] = x[0], x[{v}]", "A[[{v}, 0]] = A[[0, {v}]]", "x[{v}] = f",
    "x[{v}] = b", "x[{v}::2] = one", "y[{v}::-1] = one", "k = y[{v}::-1].sum()", "f = A[:{v}, {v}:].sum()",
    "f = A[{v}, :{v}] @ A[:{v}, {v}]", "x[{v}:{v} + 2] = y[{v}:{v} + 2]", "t = x[{v}]", "u = x * {v}", "u = x + {v}",
    "s = {v} % 3", "s = {v} ** 2 % 5", "f = {v} / 2", "k = {v} // 2", "k = -{v}", "x[{v} // 2] += one",
    "u = np.roll(x, {v})", "u = np.where(np.arange(n) < {v}, x, y)", "b = {v} > 3", "k = twice({v})",
    "k = halved({v})", "s = total(x, {v})", "p = x[{v}:]; p += one", "c = x[{v}]", "s += divmod({v}, 3)[1]",
    "y[mask] = {v}", "x[idx[{v}]:idx[{v}] + 3] += one", "f = x[idx[{v}]:].sum()", "k = y[idx[{v}]:idx[-1 - {v}]].sum()",
    "y[:idx[{v}]] = x[:idx[{v}]]", "s += len(x[idx[{v}]:n - 2])", "p = x[idx[{v}] - 1:idx[{v}] + 1]; p += one",
    "A[idx[{v}]:, {v}] += one", "y[{v}] = x[min(idx[{v}], {v}):max(idx[{v}], {v}) + 1].max()",
    "f = x[idx[{v}]:idx[0]] @ y[idx[{v}]:idx[0]]", "b = x[{v}] > 0 and y[{v}] > 0", "b = 0 < x[{v}] < 3",
    "k = x[{v}] or s", "s = x[{v}] and 2", "b = not x[{v}]", "b = x[{v}] in [0, 2]", "b = b and x[{v}] > 0",
    "b = b or x[{v}] == 3", "b = {v} > 3 and x[{v}] > 0", "b = {v} in (2, 5)", "k = (s or 2) + (x[{v}] and 1)",
    "s += x[{v}] == 1 or y[{v}] == 1", "b = {v} < 4", "x[{v}] = y[{v}] or 1", "mask[{v}] = x[{v}] > 1 or {v} == 2",
    "o = x[{v}]", "o = {v}", "o = {v} if x[{v}] > 0 else None", "if o is None or x[{v}] > o: o = x[{v}]",
    "if o is None: o, o2 = {v}, s", "if x[{v}] > 0 and o is not None: s += {v} - o; o = None",
    "if row is None or A[{v}].sum() > row.sum(): row = A[{v}]", "if row is not None: f = row.sum()", "row = A[{v}]",
    "row = x[{v}:]", "row = A[:, {v}]", "if A[{v}, 0] > 0: w = A[{v}]", "if x[{v}] > 1: u = A[{v}]",
    "mode = 'busy' if x[{v}] > 1 else mode", "x[{v}] = 0 if o is None else 1",
    "pair = ({v}, x[{v}])", "held = ({v}, s)", "if held is None or {v} > held[0]: held = ({v}, k)",
    "if x[{v}] > 0 and held is not None: s, held = held[1], None",
)  # fmt: skip

OF_ENTRIES = (
    "s = s + e", "k = e * 2", "lst.append(e)", "e = e + 1", "f = e.sum()", "last = e", "u = u + e", "e += one",
)  # fmt: skip
"""Statements of loops over entries."""

OF_ROWS = ("r += one", "u = r * 2", "lst.append(r.sum())", "r[0] = s", "last = r", "y = r")
"""Statements of loops over rows."""

AFTER = (
    "x = x + one", "y[0] = one", "u[0] = one", "s = s + i", "w[0] = one", "p[0] = one", "k = k + j", "last = last",
)  # fmt: skip
"""Statements after a loop."""

NUMBERS_BEFORE = (
    "0, 1, 0.0, 0j, False, None, 0, -1", "1, 0, 1, 1j, True, 0, 5, None", "2, m, 0.5, 0, b'' == '', 1, 0, 0",
)  # fmt: skip

ARRAYS_BEFORE = (
    "y * 1, x[1:], x * 1", "x, A[0], y[1:]", "np.zeros_like(x), A[:, 1], A[1]", "x + y, x[::2], y[::-1]",
    "np.zeros_like(y), A.T[0], x",
)  # fmt: skip

STATE = (
    "lst.append(s)", "lst.append(x * 1)", "lst.append(y)", "lst.append((s, f))", "lst.append(x[{v}])",
    "lst.append({v})", "d['a'] = s", "d['x'] = d['x'] + one", "d['n'] += 1", "d[{v}] = s", "self.t += 1",
    "self.t = self.t * 0.5", "self.x = self.x + one", "self.x[{v}] = s", "self.x += one", "self.log.append(s)",
    "self.n = {v}", "self.n += s", "self.step(one)", "d['x'][{v}] = s", "two[0] = s", "two[1] += x",
    "two[0], two[1] = two[1], two[0]", "self.x, self.y = self.y, self.x", "self.y = x", "self.y = x[{v}:]",
    "k = self.t", "u = self.x * 2", "x = d['x'] + x", "self.b = not self.b", "lst += [s]", "pairs[{v} % 2][1] = s",
    "self.d['k'] = self.d['k'] + {v}", "lst[0] = s", "seen.add(s)", "self.c.t += s",
)  # fmt: skip

PATTERNS = ("0", "1 | 2", "-1", "e2 if e2 > 1", "3 if s > 2", "1 | 2 as e2", "_ if b", "e2")
"""Patterns of `match x[{v}]`, of which the last fits every value."""

CONDITIONS = (
    "x[{v}] > y[{v}]", "s > 3", "s % 2", "b", "{v} % 2 == 0", "{v} > 3", "{v} == 0", "x.sum() > y.sum()", "f > 1.5",
    "mask[{v}]", "x[0] != y[0] and s > 1", "not b", "k is None", "{v} > 0 and x[{v} - 1] > x[{v}]", "s in (1, 3)",
    "n > 7", "mask.any()", "np.all(x > y)", "0 < s < 4", "x[{v}] > 0 or y[{v}] > 0", "self.t > 2", "len(lst) > 3",
    "t is None", "isinstance(s, int)", "o is None", "o is not None and x[{v}] > o", "mode == 'idle'",
    "mode in ('idle', 'done')", "mode != now", "row is None", "row is not None and row[0] > 0", "o", "not o",
)  # fmt: skip

HELPERS = """\
def twice(v):
    return v + v
def halved(v):
    if v > 4:
        return v - 4
    return v
def clipped(v, most):
    v = v.copy()
    for a in range(v.shape[0]):
        if abs(v[a]) > most:
            v[a] = v[a] - v[a]
    return v
def total(v, count):
    result = 0
    for a in range(count):
        result = result + v[a % v.shape[0]]
    return result
"""


class Inner:
    """An object in an object."""

    def __init__(self) -> None:
        self.t = 0


class Carrier:
    """An object with attributes that loops read and change."""

    def __init__(self, x: Any) -> None:
        self.t, self.n, self.b = 1.0, 0, True
        self.x, self.y = x * 1, x + x
        self.log: list[Any] = []
        self.d = {"k": 0}
        self.c = Inner()

    def step(self, amount: Any) -> None:
        self.t = self.t + 1
        self.x = self.x + amount

    def state(self) -> tuple[Any, ...]:
        return self.t, self.n, self.b, self.x, self.y, self.log, self.d, self.c.t


class _Writer:
    def __init__(self, seed: int, asks: float, state: float) -> None:
        self.draw = random.Random(seed)
        self.lines: list[str] = []
        self.asks = asks
        few = [*self.draw.sample(ARRAYS, 4), *self.draw.sample(NUMBERS, 4), *self.draw.sample(COUNTED, 6)]
        self.few = few + (self.draw.sample(STATE, 3) if self.draw.random() < state else [])

    def add(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def filled(self, text: str, counters: list[str]) -> str:
        if not counters:
            return text.replace("{v}", "0")
        return text.replace("{v}", counters[-1] if self.draw.random() < 0.6 else self.draw.choice(counters))

    def block(self, depth: int, counters: list[str], most: int, inside: bool = True) -> None:
        for _ in range(self.draw.randint(1, most)):
            self.statement(depth, counters, inside)

    def statement(self, depth: int, counters: list[str], inside: bool) -> None:
        kind = self.draw.random()
        if kind < self.asks and depth < 5:
            condition = self.filled(self.draw.choice(CONDITIONS), counters)
            self.add(depth, f"if {condition}:")
            self.branch(depth + 1, counters, inside)
            if self.draw.random() < 0.4:
                self.add(depth, "else:")
                self.branch(depth + 1, counters, inside)
        elif kind < self.asks + 0.12 and len(counters) < 3:
            self.loop(depth, counters)
        elif kind < self.asks + 0.12 + 0.3 * self.asks and depth < 4:
            name = f"g{len(self.lines)}"
            self.add(depth, f"{name} = 0")
            condition = self.filled(self.draw.choice(CONDITIONS), counters)
            self.add(depth, f"while {name} < {self.draw.choice((2, 5, 20))} and ({condition}):")
            self.add(depth + 1, f"{name} += 1")
            self.block(depth + 1, counters, 2)
        elif kind < self.asks + 0.14 + 0.3 * self.asks and depth < 4:
            self.add(depth, self.filled(self.draw.choice(("match x[{v}]:", "match mode:", "match s:")), counters))
            is_text = "mode" in self.lines[-1]
            for pattern in ("'idle'", "_") if is_text else (*self.draw.sample(PATTERNS[:-1], 2), PATTERNS[-1]):
                self.add(depth + 1, f"case {pattern}:")
                self.branch(depth + 2, counters, inside)
        else:
            self.add(depth, self.filled(self.draw.choice(self.few), counters))

    def branch(self, depth: int, counters: list[str], inside: bool) -> None:
        if inside and self.draw.random() < 0.25:
            ends = ("break", "continue", "break", "continue", "return x, s, k", "raise ValueError(s)")
            self.add(depth, self.draw.choice(ends))
        else:
            self.block(depth, counters, 2, inside)

    def loop(self, depth: int, counters: list[str]) -> None:
        name = "ijl"[len(counters)]
        if counters or self.draw.random() < 0.65:
            among = INNER if counters and self.draw.random() < 0.7 else LENGTHS
            self.add(depth, f"for {name} in range({self.filled(self.draw.choice(among), counters)}):")
            bound = [*counters, name]
        else:
            target, iterable = self.draw.choice(ITERABLES)
            self.add(depth, f"for {target} in {iterable}:")
            bound = [one for one in ("i", "j") if one in target]
            if "e" in target:
                self.few = [*self.few, *self.draw.sample(OF_ENTRIES, 2)]
            if "r" in target:
                self.few = [*self.few, *self.draw.sample(OF_ROWS, 2)]
        self.block(depth + 1, bound, 3)
        if self.draw.random() < 0.12:
            self.add(depth, "else:")
            self.add(depth + 1, self.draw.choice(self.few).replace("{v}", "0"))


def random_typed_loops(seed: int, asks: float = 0.15, state: float = 0.25) -> tuple[Callable[..., Any], str]:
    """Returns a function `run(self, A, x, y, idx, m)`, and its source.

    asks: the share of statements that ask about values. state: the share of programs that change objects and
    containers.
    """
    writer = _Writer(seed, asks if seed % 3 else 0.0, state)
    draw = writer.draw
    for _ in range(draw.randint(1, 2)):
        if draw.random() < 0.3:
            writer.add(1, writer.filled(draw.choice(writer.few), []))
        writer.loop(1, [])
        if draw.random() < 0.4:
            writer.add(1, draw.choice(AFTER))
    head = [
        "def run(self, A, x, y, idx, m):", "    n, one, three = x.shape[0], x.dtype.type(1), x.dtype.type(3)",
        f"    s, k, f, z, b, t, q, last = {draw.choice(NUMBERS_BEFORE)}",
        "    c, h, lst, two, pairs, seen = 1, 2.0, [], [s, x * 1], [[1, 2], [3, 4]], set()",
        "    d = {'a': 0, 'x': x * 1, 'n': 0}",
        f"    o, o2, row = {draw.choice(('None, None, None', 'None, 1, A[0]', '0, None, x * 1'))}",
        "    pair, held = (0, 1), None",
        "    mode = 'idle'",
        "    now = 'busy'",
        f"    mask = {draw.choice(('x > y', 'np.zeros(n, bool)', 'np.arange(n) % 2 == 0'))}",
        f"    u, w, p = {draw.choice(ARRAYS_BEFORE)}",
    ]  # fmt: skip
    tail = "    return A, x, y, s, k, f, z, b, t, q, last, c, h, lst, two, d, mask, u, w, p, o, o2, row, mode, now, "
    tail += "pair, held" + draw.choice(("", "", ", i", ", np.array(lst)"))
    text = "\n".join([HELPERS + "\n".join(head), *writer.lines, tail, ""])
    filename = f"<typed loops {next(NAMES)} of seed {seed}>"
    scope: dict[str, Any] = {"np": np, "itertools": itertools, "__name__": "random_typed_loops"}
    exec(compile(text, filename, "exec"), scope)
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    return scope["run"], text


def arguments_of(seed: int, size: int) -> list[Any]:
    """Returns an object, a matrix, two arrays, positions and a number of steps."""
    draw = np.random.default_rng(seed + size)
    dtype = np.dtype(DTYPES[seed % len(DTYPES)])
    x, y, matrix = (draw.integers(0, 5, shape).astype(dtype) for shape in (size, size, (size, size)))
    if dtype.kind in "if" and dtype.itemsize > 1:
        x, y, matrix = x - 2, y - 2, matrix - 2
    return [Carrier(x), matrix, x, y, draw.integers(0, max(size, 1), size), 4]
