"""The checks of a generated call: everything that a plan depends on, as Python conditions.

A call fits a plan if the types, devices and sizes of its arguments do, if all guards hold, and if each array has the
layout that the kernels were compiled for. The conditions are cheapest first, since they end the check where one fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from segments import name_of
from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.layouts import STRIDE_NAME
from tracefuse.ir.extents import Extent, symbols
from tracefuse.ir.fusion import Fusion, Requirement
from tracefuse.runtime.code_lines import unless
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.targets.call_text import CallText

_PYTHON_TYPES = {"bool": "bool", "int": "int", "uint": "int", "float": "float", "complex": "complex"}
_VALUE = re.compile(r"\bt\d+")

CONDITIONS_OF_AN_EXTENT = 2
"""From so many conditions for each extent on, sizes that have fitted are kept: looking them up is faster."""
MOST_KNOWN_SIZES = 16

register(Cache(
    "runtime.call_checks.CallChecks.size_lines", "sizes that fit a plan", "extents", f"{MOST_KNOWN_SIZES}",
    "a compiled call",
))  # fmt: skip


def address_of(number: int) -> str:
    """Returns the variable that holds the address of a value, on targets whose kernels take addresses."""
    return f"p{number}"


class CallChecks:
    """Writes the conditions. name: registers an object under a new name. extent: writes an extent as Python text."""

    def __init__(
        self, plan: Plan, calls: CallText, name: Callable[[str, Any], str], extent: Callable[[Extent], str]
    ) -> None:
        self.plan, self.calls, self.name, self.extent = plan, calls, name, extent
        self.fusion: Fusion = plan.segmentation.fusion

    def types(self) -> Iterable[str]:
        """Yields the conditions on the types, ranks and devices of the arguments."""
        for number in self.fusion.inputs:
            value, name = self.fusion.values[number], name_of(number)
            if value.is_tensor:
                yield f"type({name}) is array_type"
                dtype = self.name("d", value.dtype.numpy)
                yield f"({name}.dtype is {dtype} or {name}.dtype == {dtype})"  # nearly always the same object
                yield f"{name}.ndim == {len(value.shape)}"
                is_here = self.calls.here_text(name)
                if is_here is not None:
                    yield is_here
            else:
                yield f"type({name}) is {_PYTHON_TYPES[value.dtype.kind]}"

    def shapes(self) -> list[str]:
        """Returns the lines that read the extents of the arguments."""
        lines = []
        ids = list(self.fusion.axis_ids())
        for number in self.fusion.tensor_inputs:
            extents = [name_of(key) for key, owner, _ in ids if owner == number]
            if extents:
                lines.append(f"    {', '.join(extents)}, = {name_of(number)}.shape")
        return lines

    def size_lines(self, facts: Sequence[Guard]) -> list[str]:
        """Returns the lines that check extents and integers.

        Sizes that have fitted are kept, so that calls with them evaluate none of the conditions on extents alone.
        """
        extents = [name_of(key) for key, _, _ in self.fusion.axis_ids()]
        tests = list(dict.fromkeys(self.sizes(facts)))
        known = [test for test in tests if not _VALUE.search(test)]
        if not extents or len(known) < CONDITIONS_OF_AN_EXTENT * len(extents):
            return unless(tests)
        fitting = self.name("fitting", BoundedTable[tuple[int, ...], bool](MOST_KNOWN_SIZES))
        return [
            f"    sizes = ({''.join(f'{extent}, ' for extent in extents)})", f"    if sizes not in {fitting}:",
            *(f"    {line}" for line in unless(known)), f"        {fitting}[sizes] = True",
            *unless(test for test in tests if test not in known),
        ]  # fmt: skip

    def sizes(self, facts: Sequence[Guard]) -> Iterable[str]:
        """Yields the conditions on extents and integers: static extents, ranges, requirements and guards.

        All but those on the strides of slices that are written, whose bounds divide by what the guards keep from 0.
        """
        for key, number, axis in self.fusion.axis_ids():
            extent = self.fusion.values[number].shape[axis]
            if isinstance(extent, int):
                yield f"{name_of(key)} == {extent}"
        for number in self.fusion.scalar_inputs:
            dtype = self.fusion.values[number].dtype
            if dtype.is_integer:
                limits = np.iinfo(dtype.name)
                yield f"{limits.min} <= {name_of(number)} <= {limits.max}"
        yield from (self._relation(one) for one in self._relations(facts) if not self._is_of_slice(one))

    def strides_of_slices(self, facts: Sequence[Guard]) -> Iterable[str]:
        """Yields the conditions on the strides of slices of arguments that are written."""
        yield from (self._relation(one) for one in self._relations(facts) if self._is_of_slice(one))

    def _relations(self, facts: Sequence[Guard]) -> list[Guard | Requirement]:
        return [*facts, *self.plan.segmentation.original.requirements, *self.plan.guards]

    def _relation(self, one: Guard | Requirement) -> str:
        return f"{self.extent(one.left)} {one.relation} {self.extent(one.right)}"

    def _is_of_slice(self, one: Guard | Requirement) -> bool:
        slices = {buffer.value for buffer in self.plan.output_buffers if buffer.owner is not None}
        named = (STRIDE_NAME.fullmatch(s.name) for side in (one.left, one.right) for s in symbols(side) if s.id is None)
        return any(match is not None and int(match[1]) in slices for match in named) if slices else False

    def layouts(self) -> Iterable[str]:
        """Yields the conditions on the layouts and alignments of the arrays."""
        wide = [(name_of(n), address_of(n)) for n in self.fusion.tensor_inputs if n in self.plan.aligned]
        if wide:
            yield self.calls.all_wide_text(wide)
        for number, layout in zip(self.fusion.tensor_inputs, self.plan.layouts, strict=True):
            name, address = name_of(number), address_of(number)
            itemsize = 1 if number in self.plan.aligned else self.fusion.values[number].dtype.itemsize
            plain = self.calls.plain_text(name, address, itemsize)
            if layout is None:
                yield plain
            else:
                yield f"not ({plain})"
                yield f"layout_of({name}, is_aligned) == {self.name('l', layout)}"
