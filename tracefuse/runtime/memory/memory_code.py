"""What the function of a call tests of the memory that results go into: given buffers, updated and donated arguments.

The tests say whether the memory lies as the plan was made for: its layout, whether it can be written, which bytes of
which arguments it shares. Each is exact, and what is usual is told by flags and addresses alone.

Knows: given and donated memory, the texts that a target gives. Must not know: programs, how a plan is made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracefuse.dynamic.layouts import known_memory
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion
from tracefuse.runtime.memory.donation import Donated, Taken
from tracefuse.runtime.memory.given_buffers import Given
from tracefuse.runtime.memory.spans import APART, SAME, SHARES, relation
from tracefuse.runtime.targets.array_device import ArrayDevice
from tracefuse.runtime.targets.call_text import CallText


def memory_names(device: ArrayDevice) -> dict[str, Any]:
    """What the texts refer to."""
    return {
        "may_share": device.may_share, "relation": functools.partial(relation, device), "memory_of": _memory_of,
        "over": device.over, "APART": APART, "SAME": SAME, "SHARES": SHARES,
    }  # fmt: skip


def _memory_of(array: Any, aligned: Callable[[Any], bool]) -> Any:
    return known_memory(array.shape, array.strides, array.dtype.itemsize, aligned(array))


@dataclass(frozen=True, slots=True)
class MemoryCode:
    """The texts for one plan.

    given, donated, taken: the plan's. named: binds a name to an object that a text needs. extent: an extent as text.
    tensor, address: the variables of an array and of its address, by number.
    """

    fusion: Fusion
    device: ArrayDevice
    calls: CallText
    given: Sequence[Given]
    donated: Sequence[Donated]
    taken: Sequence[Taken]
    named: Callable[[str, Any], str]
    extent: Callable[[Extent], str]
    tensor: Callable[[int], str]
    address: Callable[[int], str]
    _compared: set[frozenset[int]] = field(default_factory=set)

    @property
    def buffers(self) -> list[Given]:
        """The given memory that is no argument."""
        return [one for one in self.given if one.memory not in self.fusion.inputs]

    def types(self) -> Iterator[str]:
        """Whether buffers are arrays of the type and the rank of their result."""
        for one in self.buffers:
            name, value = self.tensor(one.memory), self.fusion.values[one.value]
            yield f"type({name}) is array_type"
            yield f"{name}.dtype == {self.named('d', value.dtype.numpy)}"
            yield f"{name}.ndim == {len(value.shape)}"

    def tests(self) -> Iterator[str]:
        """Whether all of the memory is as the plan takes it to be; after what is tested of the arguments themselves."""
        for one in self.buffers:
            shape = "".join(f"{self.extent(extent)}, " for extent in self.fusion.shape_of(one.value))
            yield f"{self.tensor(one.memory)}.shape == ({shape})"
        for one in self.given:
            yield from self._layout(one)
        for one in self.given:
            yield from self._relations(one)
        for donor in self.donated:
            yield from self._donated(donor)

    def taken_arrays(self) -> Iterator[tuple[int, str]]:
        """(number, text) of an array in the memory of each donated argument that a value takes."""
        for one in self.taken:
            shape = "".join(f"{self.extent(extent)}, " for extent in self.fusion.shape_of(one.given.value))
            dtype = self.named("d", self.fusion.values[one.given.value].dtype)
            yield one.given.memory, f"over({self.tensor(one.donor)}, ({shape}), {dtype})"

    def _layout(self, one: Given) -> Iterator[str]:
        name, address = self.tensor(one.memory), self.address(one.memory)
        writable = self.calls.writable_text(name)
        if writable is not None:
            yield writable
        if self.device.uses_alignment:
            yield self._wide(name, address, one.is_wide)
        plain = self.calls.plain_text(name, address, self.fusion.values[one.value].dtype.itemsize)
        if one.layout is None:
            yield plain
            return
        yield f"not ({plain})"
        # What no axis steps over is refused, and is not memory that a plan is made for.
        yield f"memory_of({name}, is_aligned) == {self.named('l', (one.layout, one.is_nested, False))}"

    def _wide(self, name: str, address: str, is_wide: bool) -> str:
        text = self.calls.wide_text(name, address)
        return text if is_wide else f"not ({text})"

    def _relations(self, one: Given) -> Iterator[str]:
        for number in self.fusion.tensor_inputs:
            known = SAME if number in one.same else SHARES if number in one.shares else APART
            yield from self._related(one.memory, number, known)
        for other in self.given:
            yield from self._related(one.memory, other.memory, APART)

    def _related(self, one: int, two: int, known: str) -> Iterator[str]:
        """Whether two arrays are, or share, what they did; nothing for what has been compared."""
        pair = frozenset((one, two))
        if len(pair) == 1 or pair in self._compared:
            return
        self._compared.add(pair)
        first, second = self.tensor(one), self.tensor(two)
        if known == SAME:
            yield f"({first} is {second} or relation({first}, {second}) == SAME)"
        elif known == SHARES:
            yield f"may_share({first}, {second}) and relation({first}, {second}) == SHARES"
        else:
            yield f"(not may_share({first}, {second}) or relation({first}, {second}) == APART)"

    def _donated(self, donor: Donated) -> Iterator[str]:
        """Whether the memory of an argument can still be taken."""
        name, address = self.tensor(donor.number), self.address(donor.number)
        writable = self.calls.writable_text(name)
        if writable is not None:
            yield writable
        yield f"{name}.size"
        if self.device.uses_alignment:
            yield self._wide(name, address, donor.is_wide)
        for number in self.fusion.tensor_inputs:
            yield from self._related(donor.number, number, APART)
