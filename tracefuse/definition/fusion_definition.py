"""FusionDefinition: a fusion recorded call by call, as in nvFuser's Python frontend.

It is a façade over the recording, the printer, the segmenter and the compiler. A definition prints as a Python function
that records the same definition:

    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.sum(x, dims=[1]))
    (y,) = fd.execute([array])
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from types import TracebackType
from typing import Any

from segments import Predicate
from tracefuse import config, source
from tracefuse.compiler.executable import merge_of
from tracefuse.compiler.placed_fusion import CacheInfo, PlacedFusion
from tracefuse.definition.handles import Scalar, Tensor, Vector
from tracefuse.definition.operations import Operations
from tracefuse.definition.output_checks import aliased_input, check_outputs, check_values
from tracefuse.definition.part_recorder import part_recorder
from tracefuse.definition.recording import Recording
from tracefuse.definition.segment import DefinitionSegment, Segments
from tracefuse.definition.segmentation_phases import SegmentationPhases
from tracefuse.definition.signatures import reads, records
from tracefuse.diagnostics.explain import Explanation, Outline
from tracefuse.diagnostics.repro import script_text
from tracefuse.dtypes import DataType, check_fits, dtype_of, python_kind
from tracefuse.dynamic.concretization import Concretization
from tracefuse.dynamic.index_classes import Indexing, index_classes
from tracefuse.errors import DtypeError, FusionError, OutOfRangeError, ShapeError, UnsupportedError
from tracefuse.ir.extents import Extent, maximum, minimum
from tracefuse.ir.fusion import Fusion, Layout, Literal
from tracefuse.ir.printing import definition_text
from tracefuse.ops import REGISTRY
from tracefuse.partition import segment_table
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.runtime.devices.array_descriptions import (
    contiguity_of,
    description,
    input_text,
    layout_of,
)
from tracefuse.runtime.host_text import HostProgram
from tracefuse.runtime.memory.call_facts import check_arguments, check_list, check_names

_PROCESS_IDS = itertools.count(1)
"""Numbers the names of printed definitions; `FusionDefinition(ids=...)` takes another counter."""

_SCALAR_DEFAULTS = {
    "bool": DataType.Bool,
    "int": DataType.Int,
    "float": DataType.Double,
    "complex": DataType.ComplexDouble,
}


@source.methods_hide_own_frames
class FusionDefinition:
    """A definition: record it inside `with`, then execute, segment or print it.

    ops: the operations. recording: the recording interface. ids: the counter for the numbers in the printed names of
    this definition and of its segments; by default one counter for the process.
    """

    def __init__(self, *, ids: Iterator[int] | None = None) -> None:
        self.recording = Recording()
        self.ops = self.recording.ops = Operations(self.recording)
        self.recording.record_part = part_recorder(type(self))
        self._ids = _PROCESS_IDS if ids is None else ids
        self.id = next(self._ids)
        self._phases: SegmentationPhases[FusionDefinition] | None = None
        self._placed: PlacedFusion | None = None
        self._segments: list[DefinitionSegment[FusionDefinition]] | None = None
        self._saved: list[str] | None = None

    @classmethod
    def from_fusion(cls, fusion: Fusion, *, ids: Iterator[int] | None = None) -> FusionDefinition:
        """Returns a complete definition of `fusion`."""
        fd = cls(ids=ids)
        fd.recording.fusion = fusion
        return fd

    @classmethod
    def from_placed(cls, placed: PlacedFusion) -> FusionDefinition:
        """Returns a complete definition of a fusion that is already segmented and compiled."""
        fd = cls.from_fusion(placed.fusion)
        fd._placed = placed
        return fd

    def __enter__(self) -> FusionDefinition:
        self.recording.require_builder()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.recording.fusion = self.recording.builder.build()
            check_outputs(self.recording.fusion)

    @property
    def fusion(self) -> Fusion:
        """The fusion; inside `with`, what has been recorded so far."""
        complete = self.recording.fusion
        return self.recording.builder.build() if complete is None else complete

    def __repr__(self) -> str:
        return definition_text(self.fusion, f"nvfuser_fusion_id{self.id}", self.recording.vectors)

    def _repr_html_(self) -> str:
        return segment_table.html_of(repr(self))

    def definition(self, inputs: Sequence[Any] | None = None) -> FusionDefinition:
        """Returns the definition itself, as `definition` of a fused function does; it serves all inputs."""
        return self

    def cache_info(self) -> CacheInfo:
        """Counts traces (always 1), compilations, and calls that reused a compilation."""
        return CacheInfo(1, *((0, 0) if self._placed is None else (self._placed.compiles, self._placed.hits)))

    # -- inputs and outputs -------------------------------------------------------------------------------------------

    @records
    def define_tensor(
        self, shape: Sequence[int] | None = None, contiguity: bool | Sequence[bool | None] | None = None,
        dtype: Any = DataType.Float, is_cpu: bool = False, stride_order: Sequence[int] | None = None, *,
        sizes: Sequence[int] | None = None, strides: Sequence[int] | None = None, static_sizes: bool = False,
    ) -> Tensor:  # fmt: skip
        """Adds an input tensor, by `shape` (-1 symbolic, 1 broadcast, n static) and contiguity or by sizes and strides.

        contiguity: one bool, or one per axis, None for a broadcast axis. strides: in elements. static_sizes: keep
        `sizes` as static extents. Raises ShapeError if the arguments do not describe one layout.
        """
        if sizes is not None or strides is not None:
            if sizes is None or strides is None or len(sizes) != len(strides):
                raise ShapeError(
                    f"define_tensor: sizes {sizes} and strides {strides}", hint="give both, one entry per axis",
                    where=source.user_line(),
                )  # fmt: skip
            shape = [int(s) if static_sizes or s == 1 else -1 for s in sizes]
            contiguity, stride_order = layout_of(sizes, strides)
        if shape is None:
            raise ShapeError("define_tensor needs a shape, or sizes and strides", where=source.user_line())
        order = tuple(stride_order or ())
        if order and sorted(order) != list(range(len(shape))):
            raise ShapeError(
                f"define_tensor: stride_order {list(order)} does not order {len(shape)} axes",
                hint="give each axis its rank by stride", where=source.user_line(),
            )  # fmt: skip
        layout = Layout(contiguity_of(shape, contiguity), order, bool(is_cpu))
        builder, where = self.recording.require_builder(), source.user_line()
        return Tensor(self.recording, builder.tensor_input(dtype_of(dtype), list(shape), layout=layout, where=where))

    @records
    def define_scalar(self, value: Any = None, dtype: Any = None) -> Scalar:
        """Adds a scalar: a constant, or an input if `value` is None (Double by default)."""
        if value is None:
            chosen = dtype_of(DataType.Double if dtype is None else dtype)
            return Scalar(
                self.recording, self.recording.require_builder().scalar_input(chosen, where=source.user_line())
            )
        chosen = dtype_of(_SCALAR_DEFAULTS[python_kind(value)] if dtype is None else dtype)
        check_fits(value, chosen, "define_scalar")
        extent = int(value) if chosen.is_integer else None
        scalars = self.recording.record_node(REGISTRY["set"], [Literal(value)], {}, chosen, (chosen,), extents=[extent])
        return scalars[0]  # type: ignore[return-value]

    @records
    def define_vector(self, values: int | Sequence[Any], dtype: Any = DataType.Int) -> Vector:
        """Adds a vector of the given integers and scalars, or of `values` new integer inputs."""
        if isinstance(values, int):
            if not dtype_of(dtype).is_integer:
                raise DtypeError(f"define_vector: dtype cannot be {dtype!r}", hint="name an integer type: DataType.Int")
            inputs = [self.define_scalar(dtype=dtype).index for _ in range(values)]
            extents = [self.recording.builder.values[number].extent for number in inputs]
            return self.recording.new_vector([extent for extent in extents if extent is not None])
        return self.recording.new_vector(values)

    @records
    def from_array(self, array: Any, static_sizes: bool = False) -> Tensor:
        """Adds an input with the rank, dtype, broadcast axes and contiguity of `array`; static_sizes fixes sizes."""
        sizes, strides, dtype = description(array)
        return self.define_tensor(sizes=sizes, strides=strides, dtype=dtype, static_sizes=static_sizes)

    @records
    def from_pytorch(self, array: Any, static_sizes: bool = False) -> Tensor:
        """Same as `from_array`; nvFuser's name."""
        return self.from_array(array, static_sizes)

    @records
    def add_output(self, output: Tensor | Scalar, alias_input: Any = None, stride_order: Any = None) -> None:
        """Marks a value as an output.

        alias_input: an input tensor to update in place with the value. `execute` does not return such an output, and
        every other op reads the input's old value. Raises FusionError if alias_input is not an input or is already
        updated, ShapeError or DtypeError if the shape or dtype differs.
        """
        if isinstance(alias_input, tuple):  # nvFuser's add_output(output, stride_order)
            alias_input, stride_order = None, alias_input
        if stride_order is not None and list(stride_order) != list(reversed(range(len(stride_order)))):
            raise UnsupportedError(
                f"add_output: stride_order {list(stride_order)}, but results are C-contiguous",
                hint="permute the output instead", where=source.user_line(),
            )  # fmt: skip
        number, builder = output.index, self.recording.require_builder()
        shared = builder.aliases if alias_input is None else (*builder.inputs, *builder.outputs)
        if number in shared:  # an updated buffer cannot also hold another input or output
            number = self.ops.set(output).index
        owner = None if alias_input is None else aliased_input(builder, number, self.recording.operand_of(alias_input))
        builder.output(number, owner)

    @records
    def extent(self, id: int) -> Extent:
        """Returns a symbolic integer: the extent of an input axis, or an integer scalar. It takes no number.

        id: -1, -2, ... for the axes of the input tensors in order; from 0 up, the number of a scalar. The result
        supports arithmetic and can be an entry of a shape. Raises FusionError for an unknown id.
        """
        return self.recording.find_extent(id)

    @records
    def extent_min(self, a: Extent, b: Extent) -> Extent:
        """Returns the smaller of two symbolic integers (see `extent`)."""
        return minimum(a, b)

    @records
    def extent_max(self, a: Extent, b: Extent) -> Extent:
        """Returns the larger of two symbolic integers (see `extent`)."""
        return maximum(a, b)

    # -- running ------------------------------------------------------------------------------------------------------

    @source.hides_own_frames
    def execute(
        self, inputs: Sequence[Any], *, outputs: Sequence[Any] | None = None, device: Any = None,
        save_repro_inputs: bool = False, number_of_streams: int | None = None,
        _enable_options: Sequence[str] = (), _disable_options: Sequence[str] = (),
    ) -> list[Any]:  # fmt: skip
        """Runs the definition on `inputs` and returns its outputs in order.

        Outputs that update an input are not returned. After `segment`, runs exactly those segments.

        outputs: an array to write each output into, or None for a new one; it may overlap the inputs.
        number_of_streams: sets that option for this call. _enable_options, _disable_options:
        "concretize_resize_extents" sets that option for this call; other names are ignored.
        """
        check_list(inputs, "inputs")
        if outputs is not None:
            check_list(outputs, "outputs")
        if device is not None:
            raise UnsupportedError("execute: device= cannot be chosen", hint="the inputs' own device runs the fusion")
        check_names(_enable_options, "_enable_options")
        check_names(_disable_options, "_disable_options")
        if save_repro_inputs is not False:
            check_arguments(self.fusion, inputs)
            self._saved = [input_text(argument) for argument in inputs]
        overrides: dict[str, Any] = {} if number_of_streams is None else {"number_of_streams": number_of_streams}
        for names, mode in ((_enable_options, "on"), (_disable_options, "off")):
            if "concretize_resize_extents" in names:
                overrides.setdefault("concretize_resize_extents", mode)
        if overrides:
            with config.options(**overrides):
                return self._split()(inputs, outputs)
        return self._split()(inputs, outputs)

    @reads
    def execute_steps(self, inputs: Sequence[Any]) -> Generator[dict[int, Any], None, list[Any]]:
        """Runs segment by segment; yields the live values before the first segment and after each one.

        Each state maps numbers to values, with extents (-1, -2, ...) last. The generator returns the outputs.
        """
        return (yield from self._split().steps(inputs))

    def _split(self) -> PlacedFusion:
        if self._placed is None:
            merge = merge_of(config.resolve(), None)
            self._placed = PlacedFusion(segment_fusion(self.fusion, merge=merge))
        return self._placed

    @reads
    def validate(self, inputs: Sequence[Any], reference_outputs: Sequence[Any] | None = None) -> None:
        """Compares `execute` with `reference_outputs`, by default the reference implementation in float64.

        Raises AssertionError for an output that is not close, FusionError for a wrong number of reference outputs.
        """
        check_arguments(self.fusion, inputs)
        check_values(self.fusion, lambda: self.execute(inputs), inputs, reference_outputs)

    # -- segments -----------------------------------------------------------------------------------------------------

    @reads
    def segment(
        self, inputs: Sequence[Any] | None = None, merge: Predicate | None = None
    ) -> Segments[FusionDefinition]:
        """Splits the definition and returns its segments in order; `execute` runs exactly these from then on.

        inputs: arrays or ShapeDtypes; they give the segments kernels and the predicate sizes. merge: a predicate that
        takes two `rules.Group`s and returns a bool or a Verdict; it can only forbid a merge.
        """
        for position in range(self.setup_segmentation(inputs, merge)):
            self.build_segment(position)
        self.finalize_segmentation()
        return self.segments

    @property
    def segments(self) -> Segments[FusionDefinition]:
        """The segments that `segment` returned. Raises FusionError before the first `segment`."""
        if self._segments is None:
            raise FusionError("the definition is not segmented", hint="call fd.segment() first")
        return Segments(self._segments, self.fusion)

    @reads
    def setup_segmentation(self, inputs: Sequence[Any] | None = None, merge: Predicate | None = None) -> int:
        """First phase: splits the definition and returns the number of segments."""
        if inputs is not None:
            check_arguments(self.fusion, inputs)
        merge = merge_of(config.resolve(), merge)
        self._phases = SegmentationPhases(self.fusion, self._placed, inputs, merge)
        return self._phases.count

    @reads
    def build_segment(self, position: int) -> DefinitionSegment[FusionDefinition]:
        """Second phase: builds one segment with its definition and maps. Raises OutOfRangeError."""
        phases = self._require_phases()
        if not 0 <= position < phases.count:
            count = phases.count
            raise OutOfRangeError(f"build_segment: position cannot be {position}", hint=f"there are {count} segments")
        return phases.build(position, lambda fusion: FusionDefinition.from_fusion(fusion, ids=self._ids))

    def finalize_segmentation(self) -> None:
        """Third phase: makes these the segments that `execute` runs, and drops the temporary state."""
        phases = self._require_phases()
        self._segments = [self.build_segment(position) for position in range(phases.count)]
        self._placed, self._phases = phases.placed, None

    def _require_phases(self) -> SegmentationPhases[FusionDefinition]:
        if self._phases is None:
            raise FusionError("no segmentation is in progress", hint="call fd.setup_segmentation() first")
        return self._phases

    @reads
    def concretization(self, inputs: Sequence[Any]) -> Concretization:
        """Returns the definition as concretized for inputs (arrays or ShapeDtypes): static extents, splits, merges.

        Compiles and runs nothing. Raises ShapeError for sizes that the definition cannot have.
        """
        return self._split().concretization(inputs)

    @property
    def indexing(self) -> Indexing:
        """Equivalence classes of (axis, use) that share an index."""
        return index_classes(self.fusion)

    @reads
    def explain(self, inputs: Sequence[Any] | None = None) -> Explanation | Outline:
        """Returns the segments as a table, with the reason for each boundary. Runs nothing.

        inputs: arrays or ShapeDtypes; with them the table shows templates, bytes and guards, which depend on sizes.
        """
        if inputs is not None:
            return Explanation(*self._split().plan_for(inputs))
        return Outline(self._split().segmentation)

    @reads
    def host_program(self, inputs: Sequence[Any], merge: Predicate | None = None) -> HostProgram:
        """Returns the host program for `inputs` (arrays or ShapeDtypes), as text and as data. Runs nothing.

        merge: if given, segments the definition with this predicate first, as `segment` does.
        """
        if merge is not None:
            self.segment(merge=merge)
        return HostProgram.of(self._split().plan_for(inputs)[0])

    # -- repro scripts ------------------------------------------------------------------------------------------------

    @reads
    def repro_script_for(self, inputs: Sequence[Any] | None = None) -> str:
        """Returns a script that records the definition and runs it on arrays like `inputs`."""
        if inputs is not None:
            check_arguments(self.fusion, inputs)
        return self._script([input_text(argument) for argument in inputs or ()])

    def last_repro_script(self) -> str:
        """Returns the script for the inputs of the last `execute(..., save_repro_inputs=True)`.

        Raises FusionError if no call saved its inputs.
        """
        if self._saved is None:
            raise FusionError("no inputs were saved", hint="call fd.execute(inputs, save_repro_inputs=True) first")
        return self._script(self._saved)

    def _script(self, arguments: Sequence[str]) -> str:
        return script_text(repr(self), f"nvfuser_fusion_id{self.id}", arguments, config.resolve())
