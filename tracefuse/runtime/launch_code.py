"""What a segment's kernels are given, as Python text: pointers or arrays, scratch buffers, extents and scalars.

The same arithmetic stands in the function of a whole call and in the function of one segment; they differ in how they
name values.

Knows: lowered segments, how their symbols read in the fusion. Must not know: kernels, when something is launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tracefuse.dynamic.layouts import STRIDE_NAME
from tracefuse.ir.data_positions import origin_of_positions, raise_noted
from tracefuse.ir.extents import Expression, Extent, Symbol, python_text, substitute
from tracefuse.ir.fusion import Node
from tracefuse.partition.segmentation import Part
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered


class Border(Protocol):
    """How a segment's own symbols read in the fusion that it is a part of."""

    part: Part
    original: dict[Symbol, Extent]

    def to_original(self, extent: Extent) -> Extent:
        """An expression of the segment's symbols in the fusion's."""
        ...


@dataclass(frozen=True, slots=True)
class Names:
    """How values are written, by their original numbers, and scratch buffers by position.

    tensor: what a kernel is given for one. array: the array itself. value: an extent or a scalar. cell: where kernels
    note positions outside their axis.
    """

    tensor: Callable[[int], str]
    array: Callable[[int], str]
    value: Callable[[int], str]
    scratch: Callable[[int], str]
    cell: str = "c"


class LaunchCode:
    """The arguments of a segment's launches under any names."""

    def __init__(self, border: Border, lowered: Lowered) -> None:
        self.border, self.lowered = border, lowered
        self.index_map = border.part.segment.index_map

    def inputs(self) -> tuple[int, ...]:
        """What is read, by original number: tensors first, then extents and scalars as they come."""
        found = dict.fromkeys(self.index_map[number] for number in self.border.part.written.tensor_inputs)

        def noted(number: int) -> str:
            found[number] = None
            return ""

        made = frozenset(self.border.part.segment.original_outputs)
        names = Names(lambda n: "" if n in made else noted(n), lambda n: "" if n in made else noted(n), noted, str)
        list(self.scratch(names))
        list(self.arguments(names))
        list(self.checks(names, ""))
        return tuple(found)

    def scratch(self, names: Names) -> Iterator[str]:
        """The elements of each scratch buffer."""
        for scratch in self.lowered.scratch:
            yield self._extent(scratch.size, names)

    def scratch_extents(self) -> list[Extent]:
        """The elements of each scratch buffer, in the fusion's own extents."""
        own = (substitute(scratch.size, self.lowered.derived) for scratch in self.lowered.scratch)
        return [self.border.to_original(size) for size in own]

    def arguments(self, names: Names) -> Iterator[list[str]]:
        """The arguments of each launch."""
        for launch in self.lowered.launches:
            yield self._arguments(launch, names)

    def _arguments(self, launch: LaunchSpec, names: Names) -> list[str]:
        tensors = [names.tensor(self.index_map[number]) for number in launch.tensors]
        scratch = [names.scratch(k) for k in launch.scratch]
        cell = [names.cell] if launch.noted else []
        integers = [self._extent(Expression((((s,), 1),)), names) for s in launch.integers]
        scalars = [text for number in launch.scalars for text in self._scalar(number, names)]
        return [*tensors, *scratch, *cell, *integers, *scalars]

    @property
    def noted(self) -> dict[int, Node]:
        """By number, the nodes of which kernels note positions outside their axis."""
        return {number: node for launch in self.lowered.launches for number, node in launch.noted.items()}

    def raise_noted(self, noted: Any, found: Mapping[int, tuple[int, Any]]) -> None:
        """What `checks` calls."""
        raise_noted(self.border.part.written, int(noted), found)

    def checks(self, names: Names, call: str) -> Iterator[str]:
        """The lines after the launches that raise what kernels noted. call: the name of `raise_noted`."""
        if not self.noted:
            return
        yield f"    if {names.cell}[0]:"
        found = (f"{number}: ({self._checked(node, names)})" for number, node in self.noted.items())
        yield f"        {call}({names.cell}[0], {{{', '.join(found)}}})"

    def _checked(self, node: Node, names: Names) -> str:
        """The extent of the axis that is indexed, and the array of positions if it is in memory."""
        local = self.border.part.written
        extent = local.shape_of(node.operands[0])[node.attributes["dim"]]
        positions = origin_of_positions(local, node)
        array = "None" if positions is None else names.array(self.index_map[positions])
        return f"{self._extent(extent, names)}, {array}"

    def _scalar(self, number: int, names: Names) -> list[str]:
        """The number, or the two parts of a complex one."""
        text = names.value(self.index_map[number])
        is_complex = self.border.part.written.values[number].dtype.is_complex
        return [f"{text}.real", f"{text}.imag"] if is_complex else [text]

    def _extent(self, extent: Extent, names: Names) -> str:
        return python_text(substitute(extent, self.lowered.derived), lambda own: self._symbol(own, names))

    def _symbol(self, own: Symbol, names: Names) -> str:
        original = self.border.original.get(own)
        if original is not None:
            return python_text(original, lambda s: names.value(s.id if s.id is not None else 0))
        found = STRIDE_NAME.fullmatch(own.name)
        assert found is not None
        number, axis = map(int, found.groups())
        itemsize = self.border.part.written.values[number].dtype.itemsize
        return f"({names.array(self.index_map[number])}.strides[{axis}] // {itemsize})"
