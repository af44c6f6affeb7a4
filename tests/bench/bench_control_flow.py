"""Host time of a step of a loop and of a question: python tests/bench/bench_control_flow.py

CPU time of this process, the least of several. A step: a call of many steps less one of none, and its launches alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import tracefuse
from tracefuse import fuse
from tracefuse.runtime.bound_parts import BoundPart

STEPS = 20_000
X = np.linspace(0, 1, 8)
ROWS = np.zeros((STEPS, 8))

LOOPS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "fori_loop": (lambda x, n: tracefuse.fori_loop(0, n, lambda i, c: c * 0.5 + x, x), (X, STEPS), (X, 0)),
    "fori_loop with i": (lambda x, n: tracefuse.fori_loop(0, n, lambda i, c: c * 0.5 + i, x), (X, STEPS), (X, 0)),
    "while_loop": (
        lambda x, n: tracefuse.while_loop(lambda c: c[1] < n, lambda c: (c[0] * 0.5 + x, c[1] + 1), (x, 0)),
        (X, STEPS), (X, 0),
    ),
    "scan": (lambda xs: tracefuse.scan(lambda c, x: (c * 0.5 + x, c), xs[0], xs), (ROWS,), (ROWS[:2],)),
}  # fmt: skip


def best(run: Callable[[], Any], repeats: int = 7) -> float:
    """The least CPU time of a run in us."""
    times = []
    for number in range(repeats + 1):
        if number == 1:
            tracefuse.wait_for_compilation()
            times.clear()
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times) * 1e6


def launches_of(function: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    """The time of the launches of one step in us."""
    started: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
    start = BoundPart.start

    def watched(part: BoundPart, operands: Any, outputs: Any) -> tuple[bool, Callable[..., None]]:
        by_address, step = start(part, operands, outputs)
        started.append((step, part.arguments(by_address, operands, outputs)))
        return by_address, step

    BoundPart.start = watched  # type: ignore[method-assign]
    try:
        function(*arguments)
    finally:
        BoundPart.start = start  # type: ignore[method-assign]

    def run() -> None:
        for step, given in started:
            for _ in range(STEPS):
                step(*given)

    return best(run) / STEPS


def asking(questions: int) -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        for _ in range(questions):
            x = x * 0.5 + 1
            if x.sum() > 1e9:
                x = -x
        return x

    return fuse(function)


def repeat(function: Callable[..., Any], times: int, *arguments: Any) -> None:
    for _ in range(times):
        function(*arguments)


def main() -> None:
    for name, (function, many, none) in LOOPS.items():
        fused = fuse(function)
        for arguments in (many, none):
            fused(*arguments)
        launches = launches_of(fused, many)
        whole, fixed = best(partial(fused, *many)), best(partial(repeat, fused, 50, *none)) / 50
        step = (whole - fixed) / STEPS
        print(f"{name:18} {step:6.2f} us a step, {launches:5.2f} us of launches; a call without steps {fixed:6.1f} us")
    functions = [fuse(lambda x: (x * 0.5 + 1, (x * 0.5 + 1).sum() > 1e9)), asking(5), asking(25)]
    for fused in functions:
        repeat(fused, 3, X)
    rounds = [[best(partial(repeat, fused, 50, X), 1) / 50 for fused in functions] for _ in range(40)]
    stage, few, more = map(min, zip(*rounds, strict=True))
    print(f"a question {(more - few) / 20:6.2f} us; its stage as a fused function {stage:6.2f} us")


if __name__ == "__main__":
    main()
