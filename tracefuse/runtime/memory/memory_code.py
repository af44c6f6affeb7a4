"""Writes the checks that the function of a call does on output buffers, updated arguments and donated arguments.

The checks establish that each buffer is as the plan assumes: its layout, its writability, and the arguments that it
overlaps. Every check is exact. In the common case, flags and addresses alone decide it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import field
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.dynamic.layouts import known_memory
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Fusion
from tracefuse.ops.movement_diagonals import diagonal_view
from tracefuse.passes.slice_updates import diagonal_axes
from tracefuse.runtime.memory.buffer_facts import OutputBuffer, slice_bounds
from tracefuse.runtime.memory.donation import Donated, ReusedBuffer
from tracefuse.runtime.memory.spans import APART, SAME, SHARES, are_apart, relation
from tracefuse.runtime.targets.array_device import ArrayDevice
from tracefuse.runtime.targets.call_text import CallText

MOST_PAIRS = 4
"""More pairs of an array that a call writes and another one are compared by sorting their addresses."""


def memory_names(device: ArrayDevice) -> dict[str, Any]:
    """Returns the names that the texts refer to."""
    return {
        "may_share": device.may_share,
        "are_apart": are_apart,
        "relation": functools.partial(relation, device),
        "buffer_layout_of": _buffer_layout_of,
        "diagonal_view": diagonal_view,
        "reuse_buffer": device.reuse_buffer,
        "APART": APART,
        "SAME": SAME,
        "SHARES": SHARES,
    }


def _buffer_layout_of(array: Any, aligned: Callable[[Any], bool]) -> Any:
    return known_memory(array.shape, array.strides, array.dtype.itemsize, aligned(array))


@dataclass(frozen=True, slots=True)
class MemoryCode:
    """Writes the checks for one plan.

    output_buffers, donated, reused: those of the plan. plain: the inputs that are contiguous. named: binds a name to an
    object that a text refers to. extent: writes an extent as text. tensor, address: the variables of an array and of
    its address, by number.
    """

    fusion: Fusion
    device: ArrayDevice
    calls: CallText
    output_buffers: Sequence[OutputBuffer]
    donated: Sequence[Donated]
    reused: Sequence[ReusedBuffer]
    plain: Collection[int]
    named: Callable[[str, Any], str]
    extent: Callable[[Extent], str]
    tensor: Callable[[int], str]
    address: Callable[[int], str]
    _compared: set[frozenset[int]] = field(default_factory=set)
    _contiguous: set[int] = field(default_factory=set)

    @property
    def buffers(self) -> list[OutputBuffer]:
        """The output buffers that a call takes besides its arguments."""
        owned = (*self.fusion.inputs, *(buffer.memory for buffer in self.output_buffers if buffer.owner is not None))
        return [buffer for buffer in self.output_buffers if buffer.memory not in owned]

    def overlaps(self) -> dict[int, tuple[int, ...]]:
        """Returns for each result in the caller's memory the arrays that share it, but for slices of arguments."""
        buffers = (*self.output_buffers, *(reuse.buffer for reuse in self.reused))
        donors = {reuse.buffer.value: (reuse.donor,) for reuse in self.reused}
        return {
            b.value: (b.memory, *b.same, *b.shares, *donors.get(b.value, ())) for b in buffers if b.owner is None
        }  # fmt: skip

    def slices(self) -> Iterator[tuple[int, str]]:
        """Yields (number, text) of each buffer that is a slice of an argument."""
        for buffer in self.output_buffers:
            if buffer.owner is not None:
                bounds = slice_bounds(self.fusion, buffer.value)
                key = ", ".join(":".join(self.extent(entry) for entry in bounds_of_axis) for bounds_of_axis in bounds)
                text = f"{self.tensor(buffer.owner)}[{key}]"
                axes = diagonal_axes(self.fusion.slice_updates[buffer.value])
                yield buffer.memory, f"diagonal_view({text}, {axes})" if axes else text

    def types(self) -> Iterator[str]:
        """Yields the checks that buffers have the array type, dtype and rank of their results."""
        for buffer in self.buffers:
            name, value = self.tensor(buffer.memory), self.fusion.values[buffer.value]
            yield f"type({name}) is array_type"
            yield f"{name}.dtype == {self.named('d', value.dtype.numpy)}"
            yield f"{name}.ndim == {len(value.shape)}"

    def tests(self) -> Iterator[str]:
        """Yields the remaining checks, which run after those of the arguments."""
        for buffer in self.buffers:
            shape = "".join(f"{self.extent(extent)}, " for extent in self.fusion.shape_of(buffer.value))
            yield f"{self.tensor(buffer.memory)}.shape == ({shape})"
        for buffer in self.output_buffers:
            yield from self._layout(buffer)
        self._contiguous.update(self.plain, (b.memory for b in self.output_buffers if b.layout is None))
        written, read = self._sorted()
        if written:
            names = [(self.tensor(n), self.address(n)) for n in (*written, *read)]
            starts = "".join(f"{self.calls.address_text(name, address)}, " for name, address in names)
            sizes = "".join(f"{name}.nbytes, " for name, _ in names)
            yield f"are_apart(({starts}), ({sizes}), {len(written)})"
        compared = {*written, *read}
        for buffer in self.output_buffers:
            yield from self._relations(buffer, compared)
        for donor in self.donated:
            yield from self._donated(donor, compared)

    def _sorted(self) -> tuple[dict[int, None], list[int]]:
        """Returns the arrays that are compared by sorting their addresses: those that are written, and the others.

        They are contiguous, so that their first and last addresses tell whether they overlap, and no two may overlap.
        """
        related = {n for b in self.output_buffers for n in (*b.same, *b.shares) if n != b.memory}
        buffers = (
            b.memory for b in self.output_buffers
            if b.layout is None and b.owner is None and not b.shares and {*b.same} <= {b.memory}
        )  # fmt: skip
        donors = (donor.number for donor in self.donated)
        written = dict.fromkeys(n for n in (*buffers, *donors) if n not in related)
        read = [n for n in self.fusion.tensor_inputs if n in self.plain and n not in related and n not in written]
        few = len(written) * (len(written) + len(read)) <= MOST_PAIRS
        return ({}, []) if few else (written, read)

    def reused_arrays(self) -> Iterator[tuple[int, str]]:
        """Yields (number, text) of the array of each value that reuses a donated buffer."""
        for reuse in self.reused:
            shape = "".join(f"{self.extent(extent)}, " for extent in self.fusion.shape_of(reuse.buffer.value))
            dtype = self.named("d", self.fusion.values[reuse.buffer.value].dtype)
            yield reuse.buffer.memory, f"reuse_buffer({self.tensor(reuse.donor)}, ({shape}), {dtype})"

    def _layout(self, buffer: OutputBuffer) -> Iterator[str]:
        name, address = self.tensor(buffer.memory), self.address(buffer.memory)
        writable = self.calls.writable_text(name)
        if writable is not None:
            yield writable
        if self.device.uses_alignment:
            yield self._wide(name, address, buffer.is_wide)
        is_known = buffer.is_wide and self.device.uses_alignment  # that its address fits the elements
        itemsize = 1 if is_known else self.fusion.values[buffer.value].dtype.itemsize
        plain = self.calls.plain_text(name, address, itemsize)
        if buffer.layout is None:
            yield plain
            return
        yield f"not ({plain})"
        # The False: a plan never has a broadcast buffer, since `read_output_buffers` rejects one.
        yield f"buffer_layout_of({name}, is_aligned) == {self.named('l', (buffer.layout, buffer.is_nested, False))}"

    def _wide(self, name: str, address: str, is_wide: bool) -> str:
        text = self.calls.wide_text(name, address)
        return text if is_wide else f"not ({text})"

    def _relations(self, buffer: OutputBuffer, compared: set[int]) -> Iterator[str]:
        """Yields the checks of a buffer against the others. compared: the arrays that `are_apart` compares."""
        known = compared if buffer.memory in compared else ()
        for number in self.fusion.tensor_inputs:
            if number == buffer.owner or number in known:
                continue  # the slice and the extents determine how an owner overlaps it, and the guards the rest
            expected = SAME if number in buffer.same else SHARES if number in buffer.shares else APART
            yield from self._relation(buffer.memory, number, expected)
        for other in self.output_buffers:
            if other.memory in known or (buffer.owner is not None and other.owner == buffer.owner):
                continue  # updates of one argument happen in order
            yield from self._relation(buffer.memory, other.memory, APART)

    def _relation(self, left: int, right: int, expected: str) -> Iterator[str]:
        """Yields the check that two arrays have the expected relation, once for each pair."""
        pair = frozenset((left, right))
        if len(pair) == 1 or pair in self._compared:
            return
        self._compared.add(pair)
        first, second = self.tensor(left), self.tensor(right)
        if expected == SAME:
            yield f"({first} is {second} or relation({first}, {second}) == SAME)"
        elif expected == SHARES:
            yield f"may_share({first}, {second}) and relation({first}, {second}) == SHARES"
        else:
            apart = f"not may_share({first}, {second})"
            if self._contiguous.issuperset(pair):
                apart = self.calls.apart_text(first, self.address(left), second, self.address(right))
            yield f"({apart} or relation({first}, {second}) == APART)"

    def _donated(self, donor: Donated, compared: set[int]) -> Iterator[str]:
        """Yields the checks that the buffer of a donated argument can be reused."""
        name, address = self.tensor(donor.number), self.address(donor.number)
        writable = self.calls.writable_text(name)
        if writable is not None:
            yield writable
        yield f"{name}.size"
        if self.device.uses_alignment:
            yield self._wide(name, address, donor.is_wide)
        for number in self.fusion.tensor_inputs:
            if donor.number not in compared or number not in compared:
                yield from self._relation(donor.number, number, APART)
