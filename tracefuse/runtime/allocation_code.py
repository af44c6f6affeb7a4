"""Writes the allocations of the arrays and the intermediates of a call that have no slot in an arena."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from segments import AllocateBuffer, name_of
from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.ir.extents import Extent, product
from tracefuse.runtime.arena import ArenaPlan
from tracefuse.runtime.call_checks import address_of
from tracefuse.runtime.targets.call_text import CallText


@dataclass(frozen=True, slots=True)
class AllocationCode:
    """Writes the allocations of one call.

    named: binds a name to an object that a text refers to. extent: writes an extent as text. hold: records a variable
    that keeps an allocation alive, and returns it. addresses: the lines that read the addresses of arrays.
    """

    arena_plan: ArenaPlan
    calls: CallText
    named: Callable[[str, Any], str]
    extent: Callable[[Extent], str]
    hold: Callable[[str], str]
    addresses: Callable[[Iterable[int]], list[str]]

    def one(self, value: int, spec: Any) -> list[str]:
        if value in self.arena_plan.slots:
            return []
        if value in self.arena_plan.kernel_only:
            size = self.extent(product(spec.extents) * spec.dtype.itemsize)
            return [f"    {self.hold(f'm{value}')} = allocate({size})", f"    {address_of(value)} = m{value}.ptr"]
        text = self.calls.empty_text(*self._asked(spec))
        return [f"    {self.hold(name_of(value))} = {text}", *self.addresses((value,))]

    def together(self, allocations: Sequence[AllocateBuffer]) -> list[str]:
        """Writes the allocations of results that launches write together."""
        text = self.calls.several_text([self._asked(one.spec) for one in allocations])
        if text is None:
            return [line for one in allocations for line in self.one(one.value, one.spec)]
        values = [one.value for one in allocations]
        targets = [*(self.hold(name_of(value)) for value in values), *map(address_of, values)]
        return [f"    {', '.join(targets)} = {text}"]

    def _asked(self, spec: Any) -> tuple[str, DType, str, str]:
        """Returns the arguments of `CallText.empty_text` for an array."""
        shape = f"({''.join(f'{self.extent(extent)}, ' for extent in spec.extents)})"
        size = self.extent(product(spec.extents) * spec.dtype.itemsize)
        return shape, spec.dtype, self.named("d", spec.dtype), size
