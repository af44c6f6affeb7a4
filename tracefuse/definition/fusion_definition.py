"""FusionDefinition: a fusion recorded call by call, as in nvFuser's Python frontend.

It is a façade over the recording, the printer, the segmenter and the compiler. A definition prints as a Python function
that records the same definition:

    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], contiguity=True, dtype=DataType.Float)
        fd.add_output(fd.ops.sum(x, dims=[1]))
    (y,) = fd.execute([array])
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from types import TracebackType
from typing import Any

from segments import Predicate
from tracefuse import config, source
from tracefuse.compiler.placed_fusion import PlacedFusion
from tracefuse.definition.definition_reports import DefinitionReports
from tracefuse.definition.operations import Operations
from tracefuse.definition.output_checks import check_count, check_values
from tracefuse.definition.output_forms import OutputForms, forms_of
from tracefuse.definition.part_recorder import part_recorder
from tracefuse.definition.profile import measure
from tracefuse.definition.rank_execution import RankExecution, runs_over_ranks
from tracefuse.definition.recording import Recording
from tracefuse.definition.segment import DefinitionSegment, Segments
from tracefuse.definition.segmentation_phases import SegmentationPhases
from tracefuse.definition.signatures import reads
from tracefuse.diagnostics.segment_profiles import FusionProfile
from tracefuse.diagnostics.view.inline_svg import notebook_html
from tracefuse.diagnostics.view.picture import picture_of_fusion
from tracefuse.errors import DeviceError, FusionError, OutOfRangeError, UnsupportedError
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.printing import definition_text
from tracefuse.logs import captured_logs
from tracefuse.partition.deferred_segmentation import merge_of
from tracefuse.partition.segmentation import Segmentation, segment_fusion
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.devices.array_descriptions import input_texts
from tracefuse.runtime.host_text import HostProgram
from tracefuse.runtime.memory.call_facts import check_arguments, check_list, check_names

_PROCESS_IDS = itertools.count(1)
"""Numbers the names of printed definitions; `FusionDefinition(ids=...)` takes another counter."""


@source.methods_hide_own_frames
class FusionDefinition(DefinitionReports):
    """A definition: record it inside `with`, then execute, segment or print it.

    ops: the operations. recording: the recording interface. ids: the counter for the numbers in the printed names of
    this definition and of its segments; by default one counter for the process.
    """

    def __init__(self, *, ids: Iterator[int] | None = None) -> None:
        self.recording = Recording()
        self.ops = self.recording.ops = self.operations(self.recording)
        self.recording.add_output = self.add_output
        self.recording.record_part = part_recorder(self.plain)
        self._ids = _PROCESS_IDS if ids is None else ids
        self._id = next(self._ids)
        self._phases: SegmentationPhases[FusionDefinition] | None = None
        self._placed: PlacedFusion | None = None
        self._direct: PlacedFusion | None = None  # runs calls whose results need no change
        self._over_ranks: RankExecution | None = None
        self._forms: OutputForms | None = None
        self._segments: list[DefinitionSegment[FusionDefinition]] | None = None
        self._segmentation: Segmentation | None = None
        self._saved: list[str] | None = None
        self._profile: FusionProfile | None = None
        self._debug_output: str | None = None

    operations: type[Operations] = Operations
    """The class of `ops`."""

    result_views = False
    """Whether a result that only views an input shares its memory."""

    @classmethod
    def plain(cls, *, ids: Iterator[int] | None = None) -> FusionDefinition:
        """Returns an empty definition of the kind of which segments and sub-fusions are."""
        return FusionDefinition(ids=ids)

    @classmethod
    def from_fusion(cls, fusion: Fusion, *, ids: Iterator[int] | None = None) -> FusionDefinition:
        """Returns a complete definition of `fusion`."""
        fd = cls.plain(ids=ids)
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

    def id(self) -> int | None:
        """Returns the number in the printed name of the definition."""
        return self._id

    @property
    def fusion(self) -> Fusion:
        """The fusion; inside `with`, what has been recorded so far.

        Raises UnsupportedError (a NotImplementedError) if nothing is recorded and no subclass records in `definition`.
        """
        if self.recording.fusion is None and self.recording.builder.next_number == 0:
            self._record()
        return self.recording.current

    def _record(self) -> None:
        """Records what `definition` of a subclass records."""
        if type(self).definition is FusionDefinition.definition:
            raise UnsupportedError(
                "the definition is empty", hint="record inside `with FusionDefinition() as fd:`, or in a method "
                "`definition(self)` of a subclass",
            )  # fmt: skip
        with self:
            self.definition()

    @property
    def name(self) -> str:
        """The name of the function that the printed definition defines."""
        return f"nvfuser_fusion_id{self.id()}"

    @property
    def text(self) -> str:
        """The definition as Python."""
        return definition_text(self.recording.current, self.name, self.recording.vectors, self.recording.output_orders)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        return notebook_html(picture_of_fusion(self.recording.current), repr(self))

    def definition(self, inputs: Sequence[Any] | None = None) -> FusionDefinition | None:
        """Returns the definition itself, as `definition` of a fused function does; it serves all inputs.

        A subclass may override it with a method that records, which runs when the definition is first needed.
        """
        return self

    # -- running ------------------------------------------------------------------------------------------------------

    @source.hides_own_frames
    def execute(
        self, inputs: Sequence[Any], *, outputs: Sequence[Any] | None = None, device: Any = None,
        override_user_schedule: bool = False, capture_debug_output: bool = False, print_repro: bool = False,
        profile: bool = False, save_repro_inputs: bool = False, auto_schedule: bool = True,
        number_of_streams: int | None = None, _enable_options: Sequence[str] = (), _disable_options: Sequence[str] = (),
    ) -> list[Any]:  # fmt: skip
        """Runs the definition on `inputs` and returns its outputs in order.

        Outputs that update an input are not returned. After `segment`, runs exactly those segments. In a job of several
        ranks, a definition with values on a mesh takes and returns the parts of this rank.

        inputs: an array or number for each; the integers of a `define_vector` may be one list. outputs: an array to
        write each output into, or None for a new one; it may overlap the inputs. device: where a definition without
        input arrays runs ("cpu", "cuda:1", a number of a GPU); the device of the arrays, if there are some.
        profile: runs segment by segment and measures each, see `profile()`. print_repro: prints `repro_script_for`.
        save_repro_inputs: keeps shapes and types for `last_repro_script`. capture_debug_output: keeps the log messages
        of the call for `debug_output()`. number_of_streams: sets that option for this call. _enable_options,
        _disable_options: "concretize_resize_extents" sets that option for this call; other names are ignored, as are
        override_user_schedule and auto_schedule: there are no schedules of users.
        """
        has_options = profile or print_repro or save_repro_inputs or capture_debug_output
        if self._direct is not None and not has_options and outputs is device is number_of_streams is None:
            is_plain = type(inputs) is list and not _enable_options and not _disable_options
            results = self._direct.attempt(inputs) if is_plain else None
            if results is not None:
                return results
        check_list(inputs, "inputs")
        if outputs is not None:
            check_list(outputs, "outputs")
        overrides = _overrides(number_of_streams, _enable_options, _disable_options)
        inputs = self._arguments(inputs)
        if save_repro_inputs is not False or print_repro:
            self._save_repro(inputs, prints=print_repro)
        if runs_over_ranks(self.fusion):
            return self._run_over_ranks(inputs)
        if not overrides and not profile and device is None and not capture_debug_output:
            return self._run(inputs, outputs)
        place = None if device is None else self._place_on(device, inputs)
        run = (lambda: self._run_profiled(inputs, outputs)) if profile else lambda: self._run(inputs, outputs, place)
        return self._run_under(overrides, run, captures=capture_debug_output)

    def _run_under(self, overrides: dict[str, Any], run: Callable[[], list[Any]], *, captures: bool) -> list[Any]:
        """Runs under other options. captures: keeps the log messages for `debug_output()`."""
        with contextlib.ExitStack() as stack:
            if overrides:
                stack.enter_context(config.options(**overrides))
            captured = stack.enter_context(captured_logs()) if captures else None
            results = run()
            self._debug_output = None if captured is None else "\n".join(captured)
        return results

    def _save_repro(self, inputs: Sequence[Any], *, prints: bool) -> None:
        check_arguments(self.fusion, inputs)
        self._saved = input_texts(inputs)
        if prints:
            print(self._script(self._saved))

    def _run_over_ranks(self, inputs: Sequence[Any]) -> list[Any]:
        if self._over_ranks is None:
            self._over_ranks = RankExecution(self._computed_fusion())
        return self._over_ranks(inputs)

    def _run(
        self, inputs: Sequence[Any], outputs: Sequence[Any] | None, place: tuple[str, int | None] | None = None
    ) -> list[Any]:
        placed = self._split()

        def compute(buffers: Sequence[Any] | None) -> list[Any]:
            return placed(inputs, buffers) if place is None else placed.call_at(place, inputs, buffers)

        if self._forms is None:
            self._direct = placed
            return compute(outputs)
        check_arguments(self._forms.fusion, inputs)
        if outputs is not None:
            check_count(self._forms.forms, outputs)
        return self._forms.run(compute, inputs, outputs)

    def _place_on(self, device: Any, inputs: Sequence[Any]) -> tuple[str, int | None] | None:
        """Returns where a definition without input arrays runs, for `device`. Raises DeviceError for another device."""
        number = arrays.device_number(device if isinstance(device, int) else str(device))
        tensors = [a for a in inputs if arrays.kind_of(a) is not None]
        if not tensors:
            return "numpy" if number is None else "cupy", number
        current = arrays.device_of(tensors[0])
        if current != number:
            raise DeviceError(
                f"execute: device= names {device}, and the inputs are {arrays.device_text(current)}",
                hint="leave out device=: the inputs' own device runs the fusion",
            )
        return None

    def _run_profiled(self, inputs: Sequence[Any], outputs: Sequence[Any] | None) -> list[Any]:
        if outputs is not None:
            raise UnsupportedError("execute: profile=True takes no output buffers", hint="leave out outputs=")
        self._run(inputs, None) if not self.fusion.aliases else None  # compiles before anything is measured
        self._profile, results = measure(self._split(), inputs, self.id())
        return results if self._forms is None else self._forms.of(results, inputs)

    def profile(self) -> FusionProfile:
        """Returns the measurements of the last `execute(..., profile=True)`: time, bytes, fraction of a copy's speed.

        Raises FusionError (a ValueError) if no call was profiled.
        """
        if self._profile is None:
            raise FusionError("no call was profiled", hint="call fd.execute(inputs, profile=True) first")
        return self._profile

    def debug_output(self) -> str | None:
        """Returns the log messages of the last call if it was `execute(..., capture_debug_output=True)`, else None."""
        return self._debug_output

    @reads
    def execute_steps(self, inputs: Sequence[Any]) -> Generator[dict[int, Any], None, list[Any]]:
        """Runs segment by segment; yields the live values before the first segment and after each one.

        Each state maps numbers to values, with extents (-1, -2, ...) last. The generator returns the outputs.
        """
        inputs = self._arguments(inputs)
        computed = yield from self._split().steps(inputs)
        return computed if self._forms is None else self._forms.of(computed, inputs)

    def _split(self) -> PlacedFusion:
        if self._placed is None:
            merge = merge_of(config.resolve(), None)
            self._placed = PlacedFusion(segment_fusion(self._computed_fusion(), merge=merge))
        return self._placed

    def _computed_fusion(self) -> Fusion:
        """Returns the fusion that kernels compute, and keeps the forms of its results."""
        fusion = self.fusion
        self._forms = forms_of(fusion, self.recording.output_orders, views=self.result_views)
        return fusion if self._forms is None else self._forms.fusion

    @source.hides_own_frames
    def validate(
        self, inputs: Sequence[Any], reference_outputs: Sequence[Any] | None = None, **options: Any
    ) -> list[Any]:
        """Runs `execute`, compares its outputs with `reference_outputs`, and returns them.

        The default reference is the reference implementation in float64. The tolerance of each element is the error
        bound that propagates from op to op, twice for given references, which round as well. options: of `execute`.
        Raises AssertionError for an output that is not close, FusionError for a wrong number of reference outputs.
        """
        check_list(inputs, "validate: inputs")
        if reference_outputs is not None:
            check_list(reference_outputs, "validate: reference_outputs")
        arguments = self._arguments(inputs)
        check_arguments(self.fusion, arguments)
        return check_values(self.fusion, lambda: self.execute(arguments, **options), arguments, reference_outputs)

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
        if self._segments is None or self._segmentation is None:
            raise FusionError("the definition is not segmented", hint="call fd.segment() first")
        return Segments(self._segments, self.fusion, self._segmentation)

    @reads
    def setup_segmentation(self, inputs: Sequence[Any] | None = None, merge: Predicate | None = None) -> int:
        """First phase: splits the definition and returns the number of segments."""
        if inputs is not None:
            inputs = self._arguments(inputs)
            check_arguments(self.fusion, inputs)
        merge = merge_of(config.resolve(), merge)
        self._phases = SegmentationPhases(self._computed_fusion(), self._placed, inputs, merge)
        return self._phases.count

    @reads
    def build_segment(self, position: int) -> DefinitionSegment[FusionDefinition]:
        """Second phase: builds one segment with its definition and maps. Raises OutOfRangeError."""
        phases = self._require_phases()
        if not 0 <= position < phases.count:
            count = phases.count
            raise OutOfRangeError(f"build_segment: position cannot be {position}", hint=f"there are {count} segments")
        return phases.build(position, lambda fusion: self.from_fusion(fusion, ids=self._ids))

    def finalize_segmentation(self) -> None:
        """Third phase: makes these the segments that `execute` runs, and drops the temporary state."""
        phases = self._require_phases()
        self._segments = [self.build_segment(position) for position in range(phases.count)]
        self._segmentation = phases.segmentation
        self._placed, self._direct, self._phases = phases.placed, None, None

    def _require_phases(self) -> SegmentationPhases[FusionDefinition]:
        if self._phases is None:
            raise FusionError("no segmentation is in progress", hint="call fd.setup_segmentation() first")
        return self._phases

    @reads
    def host_program(self, inputs: Sequence[Any], merge: Predicate | None = None) -> HostProgram:
        """Returns the host program for `inputs` (arrays or ShapeDtypes), as text and as data. Runs nothing.

        merge: if given, segments the definition with this predicate first, as `segment` does.
        """
        if merge is not None:
            self.segment(merge=merge)
        return HostProgram.of(self._split().plan_for(self._arguments(inputs))[0])

    @property
    def segment_index_space_maps(self) -> dict[DefinitionSegment[FusionDefinition], dict[int, int]]:
        """For each segment, its numbers and those of the definition that cross its border; nvFuser's name."""
        return {segment: dict(segment.index_map) for segment in self.segments}


def _overrides(streams: int | None, enabled: Sequence[str], disabled: Sequence[str]) -> dict[str, Any]:
    """Returns the options that the keywords of `execute` set. Raises TraceError for names that are no list."""
    check_names(enabled, "_enable_options")
    check_names(disabled, "_disable_options")
    overrides: dict[str, Any] = {} if streams is None else {"number_of_streams": streams}
    for names, mode in ((enabled, "on"), (disabled, "off")):
        if "concretize_resize_extents" in names:
            overrides.setdefault("concretize_resize_extents", mode)
    return overrides
