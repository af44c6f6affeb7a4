"""Integers that a loop reads from arrays before its first step: their values in sampled steps.

A driver is built from sampled steps. The values of such integers are data, so the samples have ends of their ranges,
values between them, and a few small ones, for which steps have plans of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from tracefuse.dtypes import int64
from tracefuse.ir.fusion import Node
from tracefuse.kernel.kernel_ir import Variable
from tracefuse.kernel.loop_driver import DriverStatement, LoadNumber
from tracefuse.runtime.driver_parameters import NotCompiled, StepTensor
from tracefuse.runtime.step_integers import Number, Operand, StepIntegers

MOST_SAMPLES = 240
"""The number of sampled steps of a loop that reads integers."""

Ranges: TypeAlias = Sequence[tuple[int, int, int]]
"""For each integer the smallest and the largest value, and the position of one that counts against this, or -1."""


@dataclass(frozen=True, slots=True)
class IntegerSamples:
    """The integers of a loop in the sampled steps of its body.

    parents: the position, among the steps that `samples_of` was given, of each sampled step. numbers: the integers.
    """

    parents: Sequence[int]
    numbers: Sequence[Number]


def samples_of(
    node: Node, operands: Sequence[Operand], bounds: StepIntegers, parents: Sequence[int], names: Iterator[str],
    out: list[DriverStatement],
) -> IntegerSamples:  # fmt: skip
    """Adds the statements that read the integers of a loop. Raises NotCompiled.

    bounds: of the op's attributes. parents: the sampled step around each sampled step of the loop. names: of variables.
    """
    entries: Sequence[Any] = node.attributes["integers"]
    variables: list[Variable] = []
    for operand, name in zip(operands[1:], names, strict=False):
        if len(variables) == len(entries):
            break
        if not isinstance(operand, StepTensor):
            raise NotCompiled("an integer that a loop reads is a number of the host")
        variables.append(Variable(name, int64))
        out.append(LoadNumber(variables[-1], operand.pointer))
    ranges = [(least, bounds.values(most), before) for least, most, before in entries]
    choices = len(_SHARES) ** len(ranges)
    pairs: list[tuple[int, tuple[int, ...]]] = []
    for place in _some_of(len(parents) * choices):
        position, choice = divmod(place, choices)
        values = _chosen([(least, most[parents[position]], before) for least, most, before in ranges], choice)
        pairs.append((position, values))
    columns = zip(*(values for _, values in pairs), strict=True)
    numbers = [
        Number(column, None, variable, bounds.most(most))
        for column, variable, (_, most, _) in zip(columns, variables, entries, strict=True)
    ]
    return IntegerSamples([position for position, _ in pairs], numbers)


_SHARES: Sequence[tuple[Fraction, int]] = (
    (Fraction(1, 3), 0), (Fraction(0), 0), (Fraction(1), 0), (Fraction(1, 2), 0), (Fraction(0), 1), (Fraction(1), -1),
)  # fmt: skip
"""The sampled values in a range: a share of its length after the smallest value, and what is added.

Slices of one element have a plan of their own, so lengths of 1 and positions before the last one are among them.
"""


def _some_of(count: int) -> list[int]:
    """Returns places below `count`: all, or as many as are sampled, from all parts."""
    if count <= MOST_SAMPLES:
        return list(range(count))
    stride = int(count * 0.618) | 1
    while math.gcd(stride, count) > 1:
        stride += 2
    return [k * stride % count for k in range(MOST_SAMPLES)]


def _chosen(ranges: Ranges, place: int) -> tuple[int, ...]:
    """Returns integers in their ranges. place: the number of the choice among all."""
    values: list[int] = []
    for least, most, before in ranges:
        place, choice = divmod(place, len(_SHARES))
        share, more = _SHARES[choice]
        largest = max(most - (values[before] if before >= 0 else 0), least)
        values.append(min(max(least + int(share * (largest - least)) + more, least), largest))
    return tuple(values)
