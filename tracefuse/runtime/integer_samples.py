"""Integers that a loop reads from arrays before its first step: their values in sampled steps.

A driver is built from sampled steps. The values of such integers are data, so the samples have the ends of their
ranges, between which every linear extent lies, and a few small ones, for which steps have plans of their own.
"""

from __future__ import annotations

import itertools
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

MOST_SAMPLES_OF_INTEGERS = 600
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
    sampled: list[int] = []
    rows: list[tuple[int, ...]] = []
    for position, parent in enumerate(parents):
        values = list(_values([(least, most[parent], before) for least, most, before in ranges]))
        sampled += [position] * len(values)
        rows += values
        if len(rows) > MOST_SAMPLES_OF_INTEGERS:
            raise NotCompiled("its steps read too many integers")
    columns = zip(*rows, strict=True)
    return IntegerSamples(sampled, [Number(c, None, v) for c, v in zip(columns, variables, strict=True)])


def _values(ranges: Ranges) -> Iterator[tuple[int, ...]]:
    """Yields sampled values of the integers: some in the middle, all ends, and small ones."""
    wanted: list[Sequence[Fraction | int]] = [[Fraction(1, share)] * len(ranges) for share in (3, 2)]
    wanted += itertools.product((Fraction(0), Fraction(1)), repeat=len(ranges))
    for few in (1, 2, 3):
        wanted.append([few] * len(ranges))
        wanted.append([few if before >= 0 else Fraction(1, 2) for _, _, before in ranges])
    yield from dict.fromkeys(_inside(ranges, one) for one in wanted)


def _inside(ranges: Ranges, wanted: Sequence[Fraction | int]) -> tuple[int, ...]:
    """Returns integers in their ranges. wanted: the integer, or its share of the largest value, a fraction."""
    values: list[int] = []
    for (least, most, before), value in zip(ranges, wanted, strict=True):
        largest = max(most - (values[before] if before >= 0 else 0), least)
        chosen = least + int(value * (largest - least)) if isinstance(value, Fraction) else value
        values.append(min(max(chosen, least), largest))
    return tuple(values)
