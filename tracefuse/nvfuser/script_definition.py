"""FusionDefinition as nvFuser scripts use it.

Beside the calls that it shares with `tracefuse.FusionDefinition`: ids by content (`FusionDefinition(id)`), results that
are PyTorch tensors where the script uses PyTorch, inputs that require grad, reshapes of inputs that are views, and
segments that are definitions.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from tracefuse import source
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.definition.handles import Scalar
from tracefuse.definition.segment import Segments
from tracefuse.errors import FusionError, UnsupportedError
from tracefuse.ir.fusion import Fusion
from tracefuse.nvfuser.fusion_caches import RECORDED, RecordedDefinition
from tracefuse.nvfuser.script_operations import ScriptOperations
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.devices.shape_dtype import ShapeDtype


@source.methods_hide_own_frames
class ScriptDefinition(FusionDefinition):
    """A definition of an nvFuser script; `tracefuse.nvfuser.FusionDefinition`.

    Tensors that require grad are taken without their graph. Results are PyTorch tensors if the inputs are, and without
    input arrays if the program has imported torch. A result that only reshapes an input shares its memory.

    id: of an earlier definition, which this one repeats. The other parameters are nvFuser's and have no effect.
    """

    operations = ScriptOperations
    result_views = True

    def __init__(
        self, id: int | None = None, max_length: int = 1024, use_multidevice_executor: bool = False,
        backend_type: Any = None, *, ids: Iterator[int] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(ids=itertools.count() if ids is None else ids)
        self._number: int | None = None
        self._described: list[Any] | None = None
        if id is not None:
            self._adopt(RECORDED.at(id), id)

    @classmethod
    def plain(cls, *, ids: Iterator[int] | None = None) -> ScriptDefinition:
        return ScriptDefinition(ids=ids)

    @classmethod
    def from_fusion(cls, fusion: Fusion, *, ids: Iterator[int] | None = None) -> ScriptDefinition:
        fd = ScriptDefinition(ids=ids)
        fd.recording.fusion = fusion
        fd._register()
        return fd

    def _adopt(self, recorded: RecordedDefinition, number: int) -> None:
        """Makes this the definition `recorded`."""
        recording = self.recording
        recording.fusion, self._number = recorded.fusion, number
        recording.vectors, recording.output_orders = dict(recorded.vectors), dict(recorded.output_orders)

    def _register(self) -> None:
        """Takes the id of the definitions with the same text, or a new one."""
        recording = self.recording
        assert recording.fusion is not None
        recorded = RecordedDefinition(recording.fusion, recording.vectors, recording.output_orders)
        self._number = RECORDED.number_of(recorded)

    def __enter__(self) -> ScriptDefinition:
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
        if kind is None:
            self._register()

    def id(self) -> int | None:
        """Returns the id of the definition; None before it is complete. Definitions with the same text have one id."""
        return self._number

    def __repr__(self) -> str:
        return f"\n{self.text}\n"  # as nvFuser prints it

    def define_constant(self, value: Any, dtype: Any = None) -> Scalar:
        """Same as `define_scalar` of a value; an older name of nvFuser."""
        return self.define_scalar(value, dtype)

    # -- running ------------------------------------------------------------------------------------------------------

    def _arguments(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return [_without_graph(argument) for argument in super()._arguments(inputs)]

    def _run(
        self, inputs: Sequence[Any], outputs: Sequence[Any] | None, place: tuple[str, int | None] | None = None
    ) -> list[Any]:
        if not any(arrays.kind_of(argument) is not None for argument in inputs):
            place = _place_of_results(place)
        results = super()._run(inputs, outputs, place)
        self._direct = None  # every call describes its inputs, and may have to convert its results
        self._described = [_described(argument) for argument in inputs]
        return results

    def last_cuda_code(self, intrinsic_code: bool = False) -> str:
        """Returns the CUDA C++ of the kernels for the inputs of the last call, also if it ran on the CPU.

        Raises FusionError before the first call.
        """
        if self._described is None:
            raise FusionError("Invalid fusion definition! No call has run", hint="call fd.execute(inputs) first")
        return self.cuda_code_for(self._described, intrinsic_code)

    def last_scheduled_fusion_ir(self, tensor_transforms: bool = False, **options: Any) -> str:
        """Returns the readable text of the kernels for the inputs of the last call."""
        if self._described is None:
            raise FusionError("Invalid fusion definition! No call has run", hint="call fd.execute(inputs) first")
        return self.scheduled_fusion_ir_for(self._described)

    def scheduled_fusion_ir_for(self, inputs: Sequence[Any], tensor_transforms: bool = False, **options: Any) -> str:
        """Returns the readable text of the kernels for `inputs`."""
        return self.kernel_text_for(inputs)

    @property
    def sched(self) -> Any:
        """nvFuser's schedules of users; raises UnsupportedError."""
        raise UnsupportedError(
            "fd.sched: there are no schedules of users",
            hint="leave out `schedule`; fd.explain(inputs) shows the tiling",
        )

    # -- segments -----------------------------------------------------------------------------------------------------

    @property
    def details(self) -> Segments[FusionDefinition]:
        """The segments with their templates, kernels and releases, as `tracefuse.FusionDefinition.segments`."""
        return super().segments

    def segment(self, inputs: Sequence[Any] | None = None, merge: Any = None) -> list[FusionDefinition]:  # type: ignore[override]
        """Splits the definition; returns a definition for each segment, also if there is one.

        `segment_index_space_maps` holds their index maps, `details` their kernels.
        """
        super().segment(inputs, merge)
        return self.segments

    @property
    def segments(self) -> list[FusionDefinition]:  # type: ignore[override]
        """The definitions that `segment` returned. Raises FusionError before the first `segment`."""
        return [segment.definition for segment in self.details]

    @property
    def segment_index_space_maps(self) -> dict[FusionDefinition, dict[int, int]]:  # type: ignore[override]
        """For each segment's definition, its numbers and those of this definition that cross its border."""
        return {segment.definition: dict(segment.index_map) for segment in self.details}


def clone(fd: FusionDefinition, into: FusionDefinition) -> None:
    """Makes the empty definition `into` a copy of `fd`. Raises FusionError if it is not empty."""
    if into.recording.fusion is not None or into.recording.builder.next_number:
        raise FusionError("clone: the second definition is not empty", hint="give FusionDefinition()")
    recording, copied = fd.recording, into.recording
    copied.fusion = fd.fusion
    copied.vectors, copied.output_orders = dict(recording.vectors), dict(recording.output_orders)
    if isinstance(into, ScriptDefinition):
        into._register()


def _without_graph(argument: Any) -> Any:
    return argument.detach() if arrays.kind_of(argument) == "torch" and argument.requires_grad else argument


def _described(argument: Any) -> Any:
    if arrays.kind_of(argument) is None:
        return argument
    return ShapeDtype(tuple(map(int, argument.shape)), arrays.dtype_of_array(argument).numpy)


def _place_of_results(place: tuple[str, int | None] | None) -> tuple[str, int | None] | None:
    """Returns where a definition without input arrays runs, and the kind of its results."""
    torch = sys.modules.get("torch")
    if torch is None:
        return place
    if place is not None:
        return "torch", place[1]
    return "torch", torch.cuda.current_device() if torch.cuda.is_available() else None
