"""The methods of a fused function that show how a call is compiled: its definition, segments, program and guards.

They take the arguments of a call, arrays or ShapeDtypes. They compile as the call would, and run nothing. Only a
function that asks about computed values runs, on arrays: the answers decide what follows. It writes no argument and no
state.
"""

from __future__ import annotations

import html
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tracefuse import source
from tracefuse.compiler.executable import Executable
from tracefuse.compiler.placed_fusion import PlacedFusion
from tracefuse.compiler.reference_executable import EvaluatedExecutable
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.definition.profile import check_can_measure, measure_copied, measure_for_view
from tracefuse.definition.segment import Segments
from tracefuse.diagnostics.explain import Explanation, Outline
from tracefuse.diagnostics.segment_profiles import FusionProfile
from tracefuse.diagnostics.view.fusion_view import FusionView
from tracefuse.diagnostics.view.inline_svg import notebook_html
from tracefuse.diagnostics.view.picture import picture_of, picture_of_fusion
from tracefuse.dynamic.concretization import Concretization
from tracefuse.dynamic.index_classes import Indexing, index_classes
from tracefuse.errors import OptionError, UnsupportedError
from tracefuse.frontend.ahead_of_time import LoweredCall, TracedCall
from tracefuse.frontend.calls.call import CallArguments, Signature
from tracefuse.frontend.calls.question_tree import QuestionTree
from tracefuse.frontend.calls.stage_views import StageViews, last_inputs
from tracefuse.frontend.calls.trace_entry import Entry
from tracefuse.frontend.calls.tree_text import TreeExplanation
from tracefuse.runtime.host_text import HostProgram

SHOWN_TRACES = 3
"""Traces that a notebook shows of a fused function."""


def _entry_html(entry: Entry) -> str:
    if isinstance(entry.executable, Executable):
        segmentation = entry.executable.segmentation
        return notebook_html(picture_of(segmentation), str(Outline(segmentation)))
    return notebook_html(picture_of_fusion(entry.trace.fusion), str(entry.trace.fusion))


class Inspected(ABC):
    """The inspection methods, for a function that finds the trace of a call and places it on a device."""

    __qualname__: str
    _signature: Signature

    @abstractmethod
    def _inspected_call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> CallArguments:
        """The flattened arguments of a call."""

    @abstractmethod
    def _inspect(self, args: Sequence[Any], kwargs: dict[str, Any]) -> QuestionTree | tuple[Entry, list[Any]]:
        """The entry of a call and the arguments of its fusion; the tree of a function that asks questions.

        Such a function runs on the arguments unless calls have met the tree, and raises UnsupportedError for
        ShapeDtypes.
        """

    @abstractmethod
    def _place(self, entry: Entry) -> PlacedFusion:
        """The compiled fusion of an entry."""

    @abstractmethod
    def _place_stage(self, executable: Executable, tree: QuestionTree) -> PlacedFusion:
        """The compiled fusion of a stage of a tree."""

    @abstractmethod
    def _latest_entries(self, count: int) -> list[Entry]:
        """The newest traces, at most `count`, newest first."""

    @abstractmethod
    def _latest_trees(self, count: int) -> list[QuestionTree]:
        """The newest trees of questions about computed values, at most `count`, newest first."""

    def _repr_html_(self) -> str:
        """The segments of the newest traces as inline SVG, with symbolic extents; trees of questions as text."""
        shown = [_entry_html(entry) for entry in self._latest_entries(SHOWN_TRACES)]
        shown += [TreeExplanation(tree)._repr_html_() for tree in self._latest_trees(SHOWN_TRACES)]
        title = f"<pre>{html.escape(repr(self))}{'' if shown else ', not called yet'}</pre>"
        return "".join([title, *shown])

    def _entry_for_inspection(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Entry, list[Any]]:
        """The entry of a call of a function that asks no questions, and the arguments of its fusion."""
        inspected = self._inspect(args, kwargs)
        if not isinstance(inspected, QuestionTree):
            return inspected
        raise UnsupportedError(
            f"{self.__qualname__} asks about computed values, so that each call runs several fusions",
            hint="print f.explain(*args), which shows the stages",
        )

    @source.hides_own_frames
    def definition(self, *args: Any, **kwargs: Any) -> Any:
        """The FusionDefinition that a call with these arguments (arrays or ShapeDtypes) runs; nothing runs.

        Of a function that asks about computed values, those of its stages so far (`StageViews`).
        """
        inspected = self._inspect(args, kwargs)
        if isinstance(inspected, QuestionTree):
            return StageViews(
                inspected, lambda stage: FusionDefinition.from_placed(self._place_stage(stage, inspected))
            )
        entry, _ = inspected
        if isinstance(entry.executable, EvaluatedExecutable):
            return FusionDefinition.from_fusion(entry.trace.fusion)
        return FusionDefinition.from_placed(self._place(entry))

    @source.hides_own_frames
    def segments(self, *args: Any, **kwargs: Any) -> Any:
        """The segments in execution order, with their kernels, for arrays or ShapeDtypes; nothing runs.

        Of a function that asks about computed values, those of each of its stages so far (`StageViews`).
        """
        inspected = self._inspect(args, kwargs)
        if isinstance(inspected, QuestionTree):
            return StageViews(inspected, lambda stage: _segments_of(stage, self._place_stage(stage, inspected)))
        entry, arguments = inspected
        placed = self._place(entry)
        return FusionDefinition.from_placed(placed).segment(arguments, merge=placed.segmentation.merge)

    @source.hides_own_frames
    def host_program(self, *args: Any, **kwargs: Any) -> Any:
        """The host program (allocations, launches, releases) for arrays or ShapeDtypes, as text and data.

        Of a function that asks about computed values, those of its stages so far (`StageViews`), for their last sizes.
        """
        inspected = self._inspect(args, kwargs)
        if isinstance(inspected, QuestionTree):
            return StageViews(inspected, lambda stage: HostProgram.of(stage.plan_for(last_inputs(stage))[0]))
        entry, arguments = inspected
        return HostProgram.of(self._place(entry).plan_for(arguments)[0])

    @source.hides_own_frames
    def explain(self, *args: Any, **kwargs: Any) -> Explanation | TreeExplanation:
        """The segments and the reasons for their boundaries, captured arrays, guards and memory; nothing runs."""
        inspected = self._inspect(args, kwargs)
        if isinstance(inspected, QuestionTree):
            return TreeExplanation(inspected)
        entry, arguments = inspected
        return Explanation(*self._place(entry).plan_for(arguments), **entry.facts_to_explain())

    @source.hides_own_frames
    def profile(self, *args: Any, **kwargs: Any) -> FusionProfile:
        """The time of each segment of a call, its bytes, and its fraction of a copy's speed; to print as a table.

        The segments run one by one on the arguments, which must be arrays; those that the function updates are copied.
        Raises UnsupportedError for a function that asks about computed values, OptionError without arrays.
        """
        entry, arguments = self._entry_for_inspection(args, kwargs)
        check_can_measure(arguments, "profile")
        return measure_copied(self._place(entry), arguments)

    @source.hides_own_frames
    def view(
        self, *args: Any, path: str | os.PathLike[str] | None = None, timed: bool = False, **kwargs: Any
    ) -> FusionView | StageViews[FusionView]:
        """The graph of a call's ops, segments and values, for arrays or ShapeDtypes.

        path: also writes it there as one HTML page. timed: also measures each segment on the arguments, which must be
        arrays, and shows its distance from the limits of the device; arguments that the function updates are copied.
        Nothing else runs. Of a function that asks about computed values, the views of its stages so far (`StageViews`),
        written as one page each, with the number of the stage before the suffix of `path`. Raises OptionError if a file
        cannot be written, and for `timed` without arrays or with stages.
        """
        inspected = self._inspect(args, kwargs)
        if isinstance(inspected, QuestionTree):
            if timed:
                raise OptionError(
                    "view: timed=True, but the function asks about computed values, so a call runs several fusions",
                    hint="leave out timed=",
                )
            return self._stages_view(inspected, path)
        entry, arguments = inspected
        placed = self._place(entry)
        if timed:
            check_can_measure(arguments, "view: timed=True")
        explained = Explanation(*placed.plan_for(arguments), **entry.facts_to_explain())
        view = explained.view(self.__qualname__, measure_for_view(placed, arguments) if timed else None)
        if path is not None:
            view.save(path)
        return view

    def _stages_view(self, tree: QuestionTree, path: str | os.PathLike[str] | None) -> StageViews[FusionView]:
        def view(stage: Executable) -> FusionView:
            plan = self._place_stage(stage, tree).plan_for(last_inputs(stage))
            return Explanation(*plan).view(self.__qualname__)

        views = StageViews(tree, view)
        if path is not None:
            start, suffix = os.path.splitext(os.fspath(path))
            for position, stage_view in enumerate(views):
                stage_view.save(f"{start}.{position}{suffix}")
        return views

    @source.hides_own_frames
    def trace(self, *args: Any, **kwargs: Any) -> TracedCall:
        """A call with these arguments (arrays, ShapeDtypes or jax.ShapeDtypeStructs), traced; as jax.jit's `trace`.

        `f.trace(*args).lower().compile()` is a callable for such calls. Raises UnsupportedError for a function that
        asks about computed values.
        """
        call, (entry, arguments) = self._inspected_call(args, kwargs), self._entry_for_inspection(args, kwargs)
        return TracedCall(self, self._signature, call, entry, arguments, self._place(entry))

    @source.hides_own_frames
    def lower(self, *args: Any, **kwargs: Any) -> LoweredCall:
        """`trace(*args).lower()`."""
        return self.trace(*args, **kwargs).lower()

    @source.hides_own_frames
    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The result of a call with a ShapeDtype for each array; nothing compiles or runs."""
        return self.trace(*args, **kwargs).out_info

    @source.hides_own_frames
    def concretization(self, *args: Any, **kwargs: Any) -> Concretization:
        """The concretized fusion for these arguments: static extents, splits and merges; nothing compiles or runs."""
        entry, arguments = self._entry_for_inspection(args, kwargs)
        return self._place(entry).concretization(arguments)

    @source.hides_own_frames
    def indexing(self, *args: Any, **kwargs: Any) -> Indexing:
        """Which axes share an index in which use, for arrays or ShapeDtypes; nothing runs."""
        entry, arguments = self._entry_for_inspection(args, kwargs)
        return index_classes(self._place(entry).plan_for(arguments)[0].segmentation.fusion)


def _segments_of(stage: Executable, placed: PlacedFusion) -> Segments[FusionDefinition]:
    """The segments of a stage, with the kernels for the sizes of its last call."""
    return FusionDefinition.from_placed(placed).segment(last_inputs(stage), merge=placed.segmentation.merge)
