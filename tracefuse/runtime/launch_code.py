"""Writes the arguments of a segment's kernels as Python text: pointers or arrays, scratch buffers, extents, scalars.

The function of a whole call and the function of one segment contain the same arithmetic. They differ only in the names
of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from segments.lazy_dataclasses import dataclass
from tracefuse.dynamic.layouts import STRIDE_NAME
from tracefuse.ir.data_positions import check_positions, origin_of_positions, raise_flagged
from tracefuse.ir.extents import Expression, Extent, Symbol, product, python_text, substitute
from tracefuse.ir.fusion import Node
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.partition.segmentation import Part
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered


class SegmentInterface(Protocol):
    """Maps a segment's own symbols to expressions of the enclosing fusion."""

    part: Part
    original: dict[Symbol, Extent]

    def to_original(self, extent: Extent) -> Extent:
        """Returns an expression of the segment's symbols in terms of the fusion's."""
        ...


def error_flag_name(step: int) -> str:
    """Returns the variable of the error flag that the kernels of a segment set for an index out of range."""
    return f"c{step}"


@dataclass(frozen=True, slots=True)
class ArgumentNames:
    """The variables of values, by their number in the fusion, and of scratch buffers, by position.

    tensor: the kernel argument of a tensor. array: the array itself. value: an extent or a scalar. error_flag: the flag
    that kernels set for an index out of range.
    """

    tensor: Callable[[int], str]
    array: Callable[[int], str]
    value: Callable[[int], str]
    scratch: Callable[[int], str]
    error_flag: str = "c"


class LaunchCode:
    """Writes the arguments of a segment's launches with any naming of values."""

    def __init__(self, interface: SegmentInterface, lowered: Lowered) -> None:
        self.interface, self.lowered = interface, lowered
        self.index_map = interface.part.segment.index_map

    def inputs(self) -> tuple[int, ...]:
        """Returns the values that the launches read, by number in the fusion.

        Tensors come first, then extents and scalars in order of use.
        """
        inputs = dict.fromkeys(self.index_map[number] for number in self.interface.part.decomposed.tensor_inputs)
        outputs = frozenset(self.interface.part.segment.original_outputs)

        def record(number: int) -> str:
            inputs[number] = None
            return ""

        def record_tensor(number: int) -> str:
            return "" if number in outputs else record(number)

        names = ArgumentNames(record_tensor, record_tensor, record, str)
        list(self.scratch(names))
        list(self.arguments(names))
        list(self.checks(names, ""))
        return tuple(inputs)

    def scratch(self, names: ArgumentNames) -> Iterator[str]:
        """Yields the number of elements of each scratch buffer."""
        for scratch in self.lowered.scratch:
            yield self._extent(scratch.size, names)

    def scratch_extents(self) -> list[Extent]:
        """Returns the number of elements of each scratch buffer, in the extents of the fusion."""
        sizes = (substitute(scratch.size, self.lowered.derived) for scratch in self.lowered.scratch)
        return [self.interface.to_original(size) for size in sizes]

    def arguments(self, names: ArgumentNames) -> Iterator[list[str]]:
        """Yields the arguments of each launch."""
        for launch in self.lowered.launches:
            yield self._arguments(launch, names)

    def _arguments(self, launch: LaunchSpec, names: ArgumentNames) -> list[str]:
        tensors = [names.tensor(self.index_map[number]) for number in launch.tensors]
        scratch = [names.scratch(k) for k in launch.scratch]
        error_flag = [names.error_flag] if launch.checked_nodes else []
        integers = [self._extent(Expression((((s,), 1),)), names) for s in launch.integers]
        scalars = [text for number in launch.scalars for text in self._scalar(number, names)]
        return [*tensors, *scratch, *error_flag, *integers, *scalars]

    @property
    def checked_nodes(self) -> dict[int, Node]:
        """The nodes whose indices kernels check, by the number that a kernel leaves in the error flag."""
        return {number: node for launch in self.lowered.launches for number, node in launch.checked_nodes.items()}

    def raise_error(self, error_flag: Any, indexed: Mapping[int, tuple[int, Any]]) -> None:
        """Raises the error of the node that set the error flag, or of one without elements. indexed: see `checks`."""
        if error_flag:
            raise_flagged(self.interface.part.decomposed, int(error_flag), indexed)
        for number, (extent, positions) in indexed.items():
            if positions is not None:
                check_positions(self.checked_nodes[number], positions, extent)

    def checks(self, names: ArgumentNames, call: str) -> Iterator[str]:
        """Yields the lines after the launches that raise if a kernel set the error flag.

        call: the name of `raise_error`. It is called with the flag and, for each checked node, the extent of the
        indexed axis and the array of indices; also where a node has no elements, of which a kernel checks no index.
        """
        if not self.checked_nodes:
            return
        rows = dict.fromkeys(text for node in self.checked_nodes.values() if (text := self._rows(node, names)))
        without_elements = f" or not ({' and '.join(rows)})" if rows else ""
        yield f"    if {names.error_flag}[0]{without_elements}:"
        indexed = (f"{number}: ({self._indexed(node, names)})" for number, node in self.checked_nodes.items())
        yield f"        {call}({names.error_flag}[0], {{{', '.join(indexed)}}})"

    def _rows(self, node: Node, names: ArgumentNames) -> str:
        """Returns how many elements a checked index takes, as text; an empty one if that is never 0."""
        if isinstance(node.op, Pointwise):
            return ""
        shape = self.interface.part.decomposed.shape_of(node.outputs[0])
        count = product(extent for axis, extent in enumerate(shape) if axis != node.attributes.get("dim", 0))
        return "" if isinstance(count, int) and count else self._extent(count, names)

    def _indexed(self, node: Node, names: ArgumentNames) -> str:
        """Returns the extent of the indexed axis, and the array of indices if it is in memory; 0 for a pointwise op."""
        if isinstance(node.op, Pointwise):
            return "0, None"
        local = self.interface.part.decomposed
        extent = local.shape_of(node.operands[0])[node.attributes.get("dim", 0)]
        positions = origin_of_positions(local, node)
        array = "None" if positions is None else names.array(self.index_map[positions])
        return f"{self._extent(extent, names)}, {array}"

    def _scalar(self, number: int, names: ArgumentNames) -> list[str]:
        """Returns a scalar, or the real and imaginary part of a complex one."""
        text = names.value(self.index_map[number])
        is_complex = self.interface.part.decomposed.values[number].dtype.is_complex
        return [f"{text}.real", f"{text}.imag"] if is_complex else [text]

    def _extent(self, extent: Extent, names: ArgumentNames) -> str:
        return python_text(substitute(extent, self.lowered.derived), lambda s: self._symbol(s, names))

    def _symbol(self, local: Symbol, names: ArgumentNames) -> str:
        original = self.interface.original.get(local)
        if original is not None:
            return python_text(original, lambda s: names.value(s.id if s.id is not None else 0))
        match = STRIDE_NAME.fullmatch(local.name)
        assert match is not None
        number, axis = map(int, match.groups())
        itemsize = self.interface.part.decomposed.values[number].dtype.itemsize
        return f"({names.array(self.index_map[number])}.strides[{axis}] // {itemsize})"
