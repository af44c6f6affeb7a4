"""Prints for each model the segments of its forward pass and gradient beside XLA's fusions and library calls.

Run it by hand: python -m tests.models.count_segments [part of a name]
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

import tracefuse as tf
from tests.models.model_cases import CASES, OPTIMIZER, training_step

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = .*? ([\w-]+)\(", re.MULTILINE)

_COUNTED = frozenset(
    ("fusion", "custom-call", "dot", "convolution", "sort", "scatter", "while", "conditional", "call", "reduce",
     "reduce-window", "select-and-scatter")
)  # fmt: skip


def xla_launches(text: str) -> int:
    """Fusions and library calls in the entry computation of optimized HLO; copies and broadcasts do not count."""
    return sum(one in _COUNTED for one in _INSTRUCTION.findall(text[text.index("ENTRY") :]))


def programs(name: str) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    case = CASES[name]()
    yield "forward", case.loss, (case.parameters, *case.inputs)
    yield "gradient", jax.value_and_grad(case.loss), (case.parameters, *case.inputs)
    if name == "language model":
        yield "AdamW step", training_step(case), (case.parameters, OPTIMIZER.init(case.parameters), *case.inputs)


def seconds(function: Callable[..., Any], arguments: tuple[Any, ...], repeats: int = 5) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return min(times)


def main(part: str = "") -> None:
    titles = f"{'segments':>8} {'XLA':>5} {'ratio':>6} {'ms':>8} {'jit ms':>8} {'difference':>11}"
    print(f"{'model':28} {'program':11} {titles}")
    for name in CASES:
        if part not in name:
            continue
        for program, function, arguments in programs(name):
            fused, jitted = tf.fuse(function), jax.jit(function)
            found, expected = fused(*arguments), jitted(*arguments)
            pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
            difference = max(float(np.max(np.abs(np.asarray(a) - np.asarray(b)))) for a, b in pairs)
            segments = len(fused.segments(*arguments))
            launches = xla_launches(jitted.lower(*arguments).compile().as_text())
            times = [1e3 * seconds(one, arguments) for one in (fused, jitted)]
            print(
                f"{name:28} {program:11} {segments:8} {launches:5} {segments / launches:6.2f}"
                f" {times[0]:8.3f} {times[1]:8.3f} {difference:11.1e}", flush=True,
            )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
