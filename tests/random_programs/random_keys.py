"""Random functions over containers of the state under keys that calls pass, compared with Python at every call."""

from __future__ import annotations

import copy
import random
import warnings
from collections import Counter, OrderedDict, defaultdict
from typing import Any

import numpy as np

from tracefuse import fuse

CONTAINERS: dict[str, Any] = {
    "dict": dict, "OrderedDict": OrderedDict, "defaultdict": lambda: defaultdict(float), "Counter": Counter,
    "list": lambda: [0.0] * 6, "set": set,
}  # fmt: skip
KEYS = ("k", "j", "k + 1", "k % 3", "(k, j)", "(j, k)", "len(x)", "owner.n", "1", "2", "'a'", "(1, 2)")
OF_DICTS = (
    "c[{0}] = {1}", "c[{0}] += {1}", "r.append({0} in c)", "r.append(c.get({0}, 0.5))", "r.append(c.get({0}))",
    "r.append(c.setdefault({0}, {1}))", "r.append(c.pop({0}, 7.0))", "r.append(len(c))", "r.append(c[{0}])",
    "del c[{0}]", "r.append(list(c))", "r.append(bool(c))", "if {0} in c:\n        c[{2}] = c[{0}]",
    "if {0} not in c:\n        c[{0}] = {1}", "r.append(sum(v for v in c.values()))", "owner.n += 1",
    "try:\n        r.append(c[{0}])\n    except KeyError:\n        r.append('none')", "c.update({{{0}: {1}}})",
)  # fmt: skip
OF_LISTS = (
    "c[{0}] = {1}", "c[{0}] += {1}", "r.append(c[{0}])", "r.append(len(c))", "r.append(c[-1])", "c.append({1})",
    "r.append(sum(c))", "c[{0}], c[{2}] = c[{2}], c[{0}]", "owner.n += 1", "if c[{0}] == 0:\n        c[{0}] = 1.0",
)  # fmt: skip
OF_SETS = (
    "c.add({0})", "c.discard({0})", "r.append({0} in c)", "r.append(len(c))", "if {0} not in c:\n        c.add({0})",
    "r.append(sorted(map(str, c)))", "c.remove({0})", "owner.n += 1", "r.append(bool(c))",
)  # fmt: skip
VALUES = ("x.sum()", "1.0", "k", "x", "2 * x", "x[0]")
OF_NUMBERS = ("x.sum()", "1.0", "x[0] * k")


class Owner:
    """What holds the container and a counter."""

    def __init__(self, container: Any) -> None:
        self.c, self.n = container, 0


def program(draw: random.Random) -> tuple[str, str]:
    """The name of a container, and the text of a function `run(owner, x, k, j)`."""
    kind = draw.choice([*CONTAINERS])
    statements = {"list": OF_LISTS, "set": OF_SETS}.get(kind, OF_DICTS)
    keys = [key for key in KEYS if kind != "list" or key[0] not in "('"]
    chosen = draw.sample(keys, 3)
    values = VALUES if kind in ("dict", "OrderedDict") and draw.random() < 0.5 else OF_NUMBERS
    lines = ["def run(owner, x, k, j):", "    c, r = owner.c, []"]
    for _ in range(draw.randrange(2, 7)):
        statement = draw.choice(statements)
        lines.append("    " + statement.format(draw.choice(chosen), draw.choice(values), draw.choice(chosen)))
    return kind, "\n".join([*lines, "    return r, x * 2"]) + "\n"


def outcome(function: Any, *arguments: Any) -> Any:
    """The result of a call, or the name of the exception of Python that it raises."""
    try:
        return function(*arguments)
    except (KeyError, IndexError, ValueError, TypeError) as error:
        kinds = (KeyError, IndexError, ValueError, TypeError)
        return next(kind.__name__ for kind in kinds if isinstance(error, kind))


def check_keys(seed: int, calls: int = 14) -> int:
    """Compares a random function with Python at every call; returns how often it was traced."""
    draw = random.Random(seed)
    kind, text = program(draw)
    scope: dict[str, Any] = {}
    exec(text, scope)
    run = scope["run"]
    state = Owner(CONTAINERS[kind]())
    fused = fuse(lambda x, k, j: run(state, x, k, j))
    most = draw.choice([3, 5])
    for call in range(calls):
        x, k, j = np.arange(draw.choice([2.0, 3.0])) + call, draw.randrange(most), draw.randrange(most)
        if draw.random() < 0.1:
            state.n = 0
        if draw.random() < 0.1 and kind != "list":
            state.c.clear()
        plain = copy.deepcopy(state)
        expected = outcome(run, plain, x.copy(), k, j)
        if isinstance(expected, str):
            plain = copy.deepcopy(state)  # a call that raises changes nothing
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            got = outcome(fused, x, k, j)
        where = f"seed {seed}, call {call}: k={k}, j={j}\n{kind}\n{text}"
        np.testing.assert_equal(got, expected, err_msg=where)
        if isinstance(expected, str):
            state = _restored(state, plain)
        pairs = zip(_contents(state), _contents(plain), strict=True)
        for one, other in pairs:
            np.testing.assert_equal(one, other, err_msg=where)
    return fused.cache_info().traces


def _contents(owner: Owner) -> tuple[Any, Any, Any]:
    """What the state holds, with the order of its keys."""
    entries = owner.c if isinstance(owner.c, (list, set)) else list(owner.c.items())
    return entries, owner.n, type(owner.c).__name__


def _restored(state: Owner, plain: Owner) -> Owner:
    """The state after a call that raised: the fused function may have run itself, which leaves what it changed."""
    if _contents_text(state) != _contents_text(plain):
        content = plain.c
        state.c.clear()
        (state.c.extend if isinstance(content, list) else state.c.update)(content)
        state.n = plain.n
    return state


def _contents_text(owner: Owner) -> str:
    return repr(_contents(owner))
