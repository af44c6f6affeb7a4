"""Lowers the segments of a plan: which results go straight into output buffers, and each segment's own symbols.

A segment has symbols and numbers of its own, so equal segments of one program have equal kernels: the first is lowered,
and the others take its kernels.

Must not know: recording.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

from segments.lazy_dataclasses import replace
from tracefuse.config import Options
from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.layouts import LayoutKey, Strided, stride_name, symbolic_strides
from tracefuse.ir.data_positions import may_raise
from tracefuse.ir.extents import Extent, Symbol, as_symbol, evaluate, substitute, symbol, symbols
from tracefuse.ir.fusion import Node, Shape
from tracefuse.ir.structure import fusion_key
from tracefuse.partition.overwriting import in_place, raises_before_writing, reads_apart, reads_only_slice, same_extents
from tracefuse.partition.segmentation import Part, Segmentation, prepare_lowering
from tracefuse.passes.slice_updates import are_bounds_apart, are_separate, diagonal_axes
from tracefuse.runtime.memory.buffer_facts import OutputBuffer, slice_bounds
from tracefuse.runtime.targets.target import Target
from tracefuse.schedule.choose import Choice, EqualSegments, ReusedChoice, choose
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.nest import contiguous_strides
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.tiling_choice import TilingChooser

_BOUNDS = ("start_indices", "end_indices", "strides")


class SegmentLowering:
    """Lowers the segments one by one and records which results their kernels write straight into output buffers.

    lowerings: the interface and the kernels of each segment, by position. direct: those results.
    """

    def __init__(
        self, segmentation: Segmentation, target: Target, layouts: LayoutKey, values: Mapping[int, int],
        strides: Mapping[str, int], aligned: frozenset[int], options: Options,
        output_buffers: Sequence[OutputBuffer], tilings: TilingChooser | None = None,
    ) -> None:  # fmt: skip
        self.segmentation, self.templates, self.tilings = segmentation, target.templates, tilings
        self.values, self.strides, self.aligned, self.options = values, strides, aligned, options
        self.layout_of: dict[int, Strided | None] = dict(zip(segmentation.fusion.tensor_inputs, layouts, strict=True))
        # A product with an epilogue reads contiguous arrays alone.
        products = [p for p in segmentation.segments if p.library is not None and len(p.fusion.nodes) > 1]
        whole = {value for part in products for value in part.segment.original_inputs}
        usable = (
            b for b in output_buffers
            if b.is_nested and (b.layout is None or (b.layout.aligned and b.value not in whole))
        )  # fmt: skip
        self.output_buffers = {buffer.value: buffer for buffer in usable}
        flagged = self.templates.flags_positions
        self.may_raise = [may_raise(part.fusion, in_kernels=flagged) for part in segmentation.segments]
        self.direct: set[int] = set()
        self.lowerings: dict[int, tuple[SegmentExtents, Lowered]] = {}
        self.computed = frozenset(v for part in segmentation.segments for v in part.segment.original_outputs)
        self.equal = EqualSegments()

    def lower(self, position: int) -> tuple[SegmentExtents, Lowered]:
        part = self.segmentation.segments[position]
        outputs = (v for v in part.segment.original_outputs if v in self.output_buffers)
        direct = {v for v in outputs if not self._is_read_from(position, v) and self._is_separate(v)}
        if any(self.may_raise[position + raises_before_writing(part) :]):
            direct = set()  # arguments change only after every segment that may raise
        read_here = {v for v in direct if self._arguments(part, {v})}
        direct -= {v for v in read_here if not in_place(part, self._arguments(part, {v}))}
        inside = in_place(part, self._arguments(part, direct))
        sliced = {v for v in direct if self._owner(part, v) is not None}
        read_here |= sliced
        inside |= {n for v in sliced for n in (self._local(part, v), self._owner(part, v)) if n is not None}
        interface, key, choice = self._choose(position, direct, inside)
        if inside and not choice.template.writes_in_place:
            direct -= read_here
            interface, key, choice = self._choose(position, direct, frozenset())
        workers = self.options.threads if self.templates.takes_workers else 0
        lowered = choice.lower().with_arithmetic(self.options.fast_math, workers)
        if isinstance(choice, Choice):
            self.equal.add(key, choice, lowered)
        self.direct |= direct
        self.layout_of.update((v, self.output_buffers[v].layout) for v in direct)
        self.lowerings[position] = interface, lowered
        return interface, lowered

    def are_quick(self, position: int, most: int) -> tuple[bool, ...]:
        """Returns for each launch of a lowered segment whether its work is known, and at most so many elements."""
        interface, lowered = self.lowerings[position]
        sizes = interface.sizes(self.values, self.strides)
        extents = (
            spec.work if spec.work is None else substitute(spec.work, lowered.derived) for spec in lowered.launches
        )
        return tuple(e is not None and sizes.knows(e) and sizes.hint(e) <= most for e in extents)

    def _is_read_from(self, position: int, value: int) -> bool:
        """Whether a later segment reads the buffer of `value`, or this segment reads an argument that overlaps it."""
        buffer = self.output_buffers[value]
        for step, part in enumerate(self.segmentation.segments[position:]):
            memory = {*buffer.shares, *(buffer.same if step else ())}
            reads = memory.intersection(part.segment.original_inputs)
            if buffer.owner in reads and self._spares_slice(part, buffer, is_own=not step):
                reads.discard(buffer.owner)
            if reads:
                return True
        return False

    def _is_separate(self, value: int) -> bool:
        """Whether no other update of the same argument may share elements with `value`: those are copied in order."""
        fusion, update = self.segmentation.fusion, self.segmentation.fusion.slice_updates.get(value)
        return update is None or all(
            other == value or fusion.aliases[other] != fusion.aliases[value] or are_separate(fusion, update, node)
            for other, node in fusion.slice_updates.items()
        )

    def _spares_slice(self, part: Part, buffer: OutputBuffer, *, is_own: bool) -> bool:
        """Whether a segment reads nothing of the slice of an argument that a buffer is, or only at its own stores.

        is_own: the segment computes the update of the slice.
        """
        owner, output = self._owner(part, buffer.value), self._local(part, buffer.value)
        assert owner is not None
        fusion = self.segmentation.fusion
        update = fusion.slice_updates[buffer.value]
        interface = SegmentExtents(self.segmentation, part, self.layout_of)
        bounds = [tuple(map(fusion.canonical, axis)) for axis in slice_bounds(fusion, buffer.value)]

        def bounds_of(node: Node) -> list[tuple[Extent, ...]]:
            entries = ([interface.to_original(e) for e in node.attributes[name]] for name in _BOUNDS)
            return list(zip(*entries, strict=True))

        def is_slice(node: Node) -> bool:
            pairs = zip(bounds_of(node), bounds, strict=True)
            is_same = all(same_extents(a, b, lambda extent: evaluate(extent, self.values)) for a, b in pairs)
            return is_same and diagonal_axes(node) == diagonal_axes(update)

        def is_apart(node: Node) -> bool:
            return any(itertools.starmap(are_bounds_apart, zip(bounds_of(node), bounds, strict=True)))

        if not is_own or output is None:
            return reads_apart(part, owner, is_apart)
        return reads_only_slice(part, output, owner, is_slice, is_apart)

    def _owner(self, part: Part, value: int) -> int | None:
        """Returns the segment's number of the argument of which a result updates a slice, if the segment reads it."""
        owner = self.output_buffers[value].owner
        return None if owner is None else self._local(part, owner)

    def _local(self, part: Part, value: int) -> int | None:
        return next((local for local, original in part.segment.index_map.items() if original == value), None)

    def _arguments(self, part: Part, values: Collection[int]) -> frozenset[tuple[int, int]]:
        """Returns the (output, input) pairs that are the same array, by the segment's own numbers."""
        local_of = {original: local for local, original in part.segment.index_map.items()}
        pairs = ((value, argument) for value in values for argument in self.output_buffers[value].same)
        return frozenset((local_of[v], local_of[a]) for v, a in pairs if a in part.segment.original_inputs)

    def _choose(
        self, position: int, direct: Collection[int], shared: frozenset[int]
    ) -> tuple[SegmentExtents, Hashable, Choice | ReusedChoice]:
        """Chooses the template of a segment. Also returns a key of what the choice depends on beside sizes.

        direct: the results that its kernel writes straight into output buffers. shared: see `MemoryFacts`.
        """
        part = self.segmentation.segments[position]
        buffers = {v: self.output_buffers[v] for v in direct}
        layout_of = {**self.layout_of, **{v: buffer.layout for v, buffer in buffers.items()}}
        interface = SegmentExtents(self.segmentation, part, layout_of)
        placed = interface.placed({v for v, b in buffers.items() if b.layout is not None or not b.is_wide})
        decomposed, rule = prepare_lowering(part, self.options)
        sizes, name = interface.sizes(self.values, self.strides), f"s{position}"
        facts = {
            "aligned": interface.aligned(self._is_aligned), "misaligned": interface.misaligned(),
            "placed": placed, "shared": shared, "supplied": interface.outputs(direct),
        }  # fmt: skip
        key = (fusion_key(decomposed), tuple(interface.strides.items()), *facts.values())
        choice: Choice | ReusedChoice | None = self.equal.find(key, sizes, name)
        if choice is None:
            choice = choose(
                decomposed, rule, interface.strides, sizes, self.templates, name=name, contract=self.options.contract,
                options=self.options, tilings=self.tilings, **facts,
            )  # fmt: skip
        return interface, key, choice

    def _is_aligned(self, value: int) -> bool:
        """Returns whether an argument, or a value of an earlier segment, starts at a multiple of 16 bytes."""
        if value in self.direct:
            return self.output_buffers[value].is_wide
        return value in self.aligned or value in self.computed


class SegmentExtents:
    """Maps a segment's own symbols and numbers to those of the enclosing fusion."""

    def __init__(self, segmentation: Segmentation, part: Part, layout_of: Mapping[int, Any]) -> None:
        self.fusion, self.part = segmentation.fusion, part
        self.layout_of = layout_of
        self.original: dict[Symbol, Extent] = {}
        local = part.decomposed
        for key, number, axis in local.axis_ids():
            shape = self.fusion.values[part.segment.index_map[number]].shape
            self.original[Symbol(f"i{-key - 1}", key)] = self.fusion.canonical(shape[axis])
        for number in local.scalar_inputs:
            extent = local.values[number].extent
            local_symbol = None if extent is None else as_symbol(extent)
            if local_symbol is not None:
                self.original.setdefault(local_symbol, self._scalar_extent(number))
        self.strides: dict[int, Shape] = {n: self._strides(n) for n in local.tensor_inputs}

    def _scalar_extent(self, number: int) -> Extent:
        original = self.part.segment.index_map[number]
        if original < 0:
            return self.fusion.canonical(symbol(f"i{-original - 1}", original))
        extent = self.fusion.values[original].extent
        return 0 if extent is None else self.fusion.canonical(extent)

    def outputs(self, values: Collection[int]) -> frozenset[int]:
        """Returns the segment's outputs among `values` of the fusion."""
        return frozenset(n for n in self.part.segment.outputs if self.part.segment.index_map[n] in values)

    def placed(self, values: Collection[int]) -> frozenset[int]:
        """Gives the outputs among `values` of the fusion the strides of their buffers, and returns them."""
        outputs = self.outputs(values)
        self.strides.update((n, self._strides(n)) for n in outputs)
        return outputs

    def _layout(self, number: int) -> Any:
        return self.layout_of.get(self.part.segment.index_map[number])

    def _strides(self, number: int) -> Shape:
        shape, layout = self.part.decomposed.shape_of(number), self._layout(number)
        return contiguous_strides(shape) if layout is None else symbolic_strides(layout, shape, number)

    def aligned(self, is_aligned: Callable[[int], bool]) -> frozenset[int]:
        """Returns the tensor inputs that start at a multiple of 16 bytes. is_aligned: for a value of the fusion."""
        return frozenset(n for n in self.part.decomposed.tensor_inputs if is_aligned(self.part.segment.index_map[n]))

    def misaligned(self) -> frozenset[int]:
        """Returns the tensor inputs whose elements are not at multiples of their size."""
        layouts = ((n, self._layout(n)) for n in self.part.decomposed.tensor_inputs)
        return frozenset(n for n, layout in layouts if layout is not None and not layout.aligned)

    def to_original(self, extent: Extent) -> Extent:
        """Returns an expression of the segment's symbols in terms of the fusion's."""
        if isinstance(extent, int):
            return extent
        values = {**self._renamed, **self._stride_names(extent)}
        return substitute(extent, values) if values else extent

    @functools.cached_property
    def _renamed(self) -> dict[Symbol, Extent]:
        """The symbols that are others in the fusion: none, if the segment is all of it and no extents are equal."""
        return {local: original for local, original in self.original.items() if as_symbol(original) != local}

    def _stride_names(self, extent: Extent) -> dict[Symbol, Extent]:
        unnumbered = [s for s in symbols(extent) if s.id is None]
        if not unnumbered:
            return {}
        axes = {stride_name(n, a): (n, a) for n in self.strides for a in range(len(self.strides[n]))}
        strides = [s for s in unnumbered if s.name in axes]
        index_map = self.part.segment.index_map
        return {s: symbol(stride_name(index_map[axes[s.name][0]], axes[s.name][1])) for s in strides}

    def original_guard(self, guard: Guard) -> Guard:
        return replace(guard, left=self.to_original(guard.left), right=self.to_original(guard.right))

    def sizes(self, values: Mapping[int, int], strides: Mapping[str, int]) -> Sizes:
        """Returns the values of the segment's symbols at a call."""
        extents = {s.id: evaluate(e, values) for s, e in self.original.items() if s.id is not None}
        index_map = self.part.segment.index_map
        named = {
            stride_name(n, a): strides[stride_name(index_map[n], a)]
            for n in self.strides
            for a in range(len(self.strides[n]))
            if stride_name(index_map[n], a) in strides
        }
        return Sizes(extents, named)
