"""Integers that a loop reads from arrays before its first step: their values in sampled steps.

A driver is built from sampled steps. The values of such integers are data, so the samples have ends of their ranges,
values between them, and a few small ones, for which steps have plans of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from tracefuse.dtypes import int64
from tracefuse.ir.fusion import Node
from tracefuse.kernel.kernel_ir import Variable
from tracefuse.kernel.loop_driver import DriverStatement, LoadNumber
from tracefuse.runtime.driver_parameters import NotCompiled, StepTensor
from tracefuse.runtime.step_integers import Number, Operand, StepIntegers

SAMPLES_OF_INTEGER = 60
"""The number of sampled steps for each integer that a loop reads."""

Ranges: TypeAlias = Sequence[tuple[int, int, int]]
"""For each integer the smallest and the largest value, and the position of one that counts against this, or -1."""

MOST_SAMPLES = 200
"""The number of steps that a driver is built from, for a loop with those around it."""


def sampled_steps(
    starts: Sequence[int], stops: Sequence[int], active: Sequence[int]
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Returns the outer step and the counter of each sampled step of a loop.

    starts, stops: for each outer step. active: the outer steps that reach the loop.
    """
    parents: list[int] = []
    steps: list[int] = []
    few = min(12, MOST_SAMPLES // max(len(active), 1))
    for parent in active:
        start, stop = starts[parent], stops[parent]
        ends, between = [stop - 1, start], [*range(start + 1, start + few - 3), stop - 2]
        sampled = [(start + stop) // 2, *ends, *between] if few > 0 else ends  # of deep nests
        for step in dict.fromkeys(sampled):
            if start <= step < stop:
                parents.append(parent)
                steps.append(step)
    return parents, steps


def numbers_of_steps(
    node: Node, operands: Sequence[Operand], bounds: StepIntegers, parents: list[int], steps: Sequence[int],
    counter: Variable, names: Iterator[str], out: list[DriverStatement],
) -> tuple[list[int], list[Number]]:  # fmt: skip
    """Returns the outer step of each sampled step of a loop, and its numbers: the counter, and integers that it reads.

    Adds the statements that read them. bounds: of the op's attributes. parents, steps: the outer step and the counter
    of each step without such integers. names: of variables. Raises NotCompiled.
    """
    stop = node.attributes["stop"]
    largest = bounds.most(stop - 1) if bounds.may_be_larger(stop) else None
    entries: Sequence[Any] = node.attributes.get("integers", ())
    if not entries:
        return parents, [Number(tuple(steps), None, counter, largest)]
    ranges = [(least, bounds.values(most), before) for least, most, before in entries]
    choices = len(_SHARES) ** len(ranges)
    sampled: list[int] = []
    rows: list[tuple[int, ...]] = []
    for place in _some_of(len(parents) * choices, SAMPLES_OF_INTEGER * len(ranges)):
        position, choice = divmod(place, choices)
        sampled.append(position)
        rows.append(_chosen([(least, most[parents[position]], before) for least, most, before in ranges], choice))
    numbers = [Number(tuple(steps[position] for position in sampled), None, counter, largest)]
    for column, operand, (_, most, _) in zip(zip(*rows, strict=True), operands[1:], entries, strict=False):
        if not isinstance(operand, StepTensor):
            raise NotCompiled("an integer that a loop reads is a number of the host")
        variable = Variable(next(names), int64)
        out.append(LoadNumber(variable, operand.pointer))
        numbers.append(Number(column, None, variable, bounds.most(most)))
    return [parents[position] for position in sampled], numbers


_SHARES: Sequence[tuple[int, int, int]] = ((1, 3, 0), (0, 1, 0), (1, 1, 0), (1, 2, 0), (0, 1, 1), (1, 1, -1))
"""The sampled values in a range: a share of its length after the smallest value, a fraction, and what is added.

Slices of one element have a plan of their own, so lengths of 1 and positions before the last one are among them.
"""


def _some_of(count: int, most: int) -> list[int]:
    """Returns places below `count`: all, or `most` from all parts."""
    if count <= most:
        return list(range(count))
    stride = int(count * 0.618) | 1
    while math.gcd(stride, count) > 1:
        stride += 2
    return [k * stride % count for k in range(most)]


def _chosen(ranges: Ranges, place: int) -> tuple[int, ...]:
    """Returns integers in their ranges. place: the number of the choice among all."""
    values: list[int] = []
    for least, most, before in ranges:
        place, choice = divmod(place, len(_SHARES))
        share, whole, more = _SHARES[choice]
        largest = max(most - (values[before] if before >= 0 else 0), least)
        values.append(min(max(least + share * (largest - least) // whole + more, least), largest))
    return tuple(values)
