"""What a definition reports: how it is split and compiled, the code of its kernels, and scripts that reproduce a call.

Reports run no user data. `FusionDefinition` inherits them.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from tracefuse import config, source
from tracefuse.compiler.placed_fusion import CacheInfo, PlacedFusion
from tracefuse.definition.declarations import Declarations
from tracefuse.definition.profile import check_can_measure, measure_for_view
from tracefuse.definition.signatures import reads
from tracefuse.diagnostics.explain import Explanation, Outline
from tracefuse.diagnostics.repro import script_text
from tracefuse.diagnostics.view.fusion_view import FusionView
from tracefuse.dynamic.concretization import Concretization
from tracefuse.dynamic.index_classes import Indexing, index_classes
from tracefuse.errors import FusionError, UnsupportedError
from tracefuse.ir.fusion import Fusion
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.devices.array_descriptions import input_texts
from tracefuse.runtime.devices.shape_dtype import ShapeDtype
from tracefuse.runtime.memory.call_facts import check_arguments
from tracefuse.runtime.segment_texts import sources_of, texts_of
from tracefuse.runtime.targets.cuda.cuda_target import CUDA


@source.methods_hide_own_frames
class DefinitionReports(Declarations):
    """The calls of a definition that describe it and run nothing."""

    _placed: PlacedFusion | None
    _saved: list[str] | None

    @property
    @abstractmethod
    def fusion(self) -> Fusion:
        """The fusion."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the function that the printed definition defines."""

    @property
    @abstractmethod
    def text(self) -> str:
        """The definition as Python."""

    @abstractmethod
    def _split(self) -> PlacedFusion:
        """Returns the fusion with its segments."""

    def _arguments(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Returns the arguments of a call as kernels take them: one for each input."""
        return _one_by_one(self.fusion, inputs)

    def cache_info(self) -> CacheInfo:
        """Counts traces (always 1), compilations, and calls that reused a compilation."""
        return CacheInfo(1, *((0, 0) if self._placed is None else (self._placed.compiles, self._placed.hits)))

    @reads
    def concretization(self, inputs: Sequence[Any]) -> Concretization:
        """Returns the definition as concretized for inputs (arrays or ShapeDtypes): static extents, splits, merges.

        Compiles and runs nothing. Raises ShapeError for sizes that the definition cannot have.
        """
        return self._split().concretization(self._arguments(inputs))

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
            return Explanation(*self._split().plan_for(self._arguments(inputs)))
        return Outline(self._split().segmentation)

    @reads
    def view(
        self, inputs: Sequence[Any] | None = None, path: str | os.PathLike[str] | None = None, timed: bool = False
    ) -> FusionView:
        """Returns the graph of ops, segments and values; `path`: also writes it there as an HTML page.

        inputs: arrays or ShapeDtypes; with them the page shows kernels, the host program, live memory and guards.
        timed: also measures each segment on `inputs`, which must be arrays, and shows its distance from the limits of
        the device; inputs that the definition updates are copied. Nothing else runs. Raises OptionError if the file
        cannot be written, and for `timed` without arrays.
        """
        explained = self.explain(inputs)
        if timed:
            check_can_measure(inputs, "view: timed=True")
            assert inputs is not None
            assert isinstance(explained, Explanation)
            view = explained.view(self.name, measure_for_view(self._split(), self._arguments(inputs)))
        else:
            view = explained.view(self.name)
        if path is not None:
            view.save(path)
        return view

    # -- code ---------------------------------------------------------------------------------------------------------

    def fusion_ir(self) -> str:
        """Returns the fusion as typed text, with the user's lines."""
        return str(self.fusion)

    @reads
    def cuda_code_for(self, inputs: Sequence[Any], intrinsic_code: bool = False) -> str:
        """Returns the CUDA C++ of the kernels for `inputs` (arrays or ShapeDtypes). Needs no GPU and runs nothing.

        A library call is a line that names it. intrinsic_code: ignored, since kernels include no headers.
        """
        inputs = self._arguments(inputs)
        check_arguments(self.fusion, inputs)
        on_gpu = any(arrays.kind_of(a) is not None and arrays.device_of(a) is not None for a in inputs)
        described = inputs if on_gpu else [_described(argument) for argument in inputs]
        with config.options(target=CUDA):
            plan, _ = self._split().plan_for(described)
        return "\n\n".join(text for segment in plan.segments for text in sources_of(segment))

    @reads
    def kernel_text_for(self, inputs: Sequence[Any]) -> str:
        """Returns the kernels for `inputs` (arrays or ShapeDtypes) as readable text, for their device. Runs nothing."""
        plan, _ = self._split().plan_for(self._arguments(inputs))
        return "\n\n".join(text for segment in plan.segments for text in texts_of(segment))

    def last_cuda_code(self, intrinsic_code: bool = False) -> str:
        """Returns the CUDA C++ of the kernels that the last call on a GPU ran; see `cuda_code_for`.

        Raises FusionError before the first call, UnsupportedError if all calls ran on the CPU.
        """
        used = () if self._placed is None else self._placed.executables
        plans = [ready.plan for executable in reversed(used) for ready in executable.plans.plans()]
        if not plans:
            raise FusionError("Invalid fusion definition! No call has run", hint="call fd.execute(inputs) first")
        plan = next((plan for plan in plans if plan.target.name == CUDA), None)
        if plan is None:
            raise UnsupportedError("last_cuda_code: the calls ran on the CPU", hint="fd.cuda_code_for(inputs)")
        return "\n\n".join(text for segment in plan.segments for text in sources_of(segment))

    # -- repro scripts ------------------------------------------------------------------------------------------------

    @reads
    def repro_script_for(self, inputs: Sequence[Any] | None = None) -> str:
        """Returns a script that records the definition and runs it on arrays like `inputs`."""
        if inputs is not None:
            inputs = self._arguments(inputs)
            check_arguments(self.fusion, inputs)
        return self._script(input_texts(inputs or ()))

    def last_repro_script(self) -> str:
        """Returns the script for the inputs of the last `execute(..., save_repro_inputs=True)`.

        Raises FusionError if no call saved its inputs.
        """
        if self._saved is None:
            raise FusionError("no inputs were saved", hint="call fd.execute(inputs, save_repro_inputs=True) first")
        return self._script(self._saved)

    def _script(self, arguments: Sequence[str]) -> str:
        return script_text(self.text, self.name, arguments, config.resolve())


def _described(argument: Any) -> Any:
    """Returns a stand-in for an array, so that a plan for a GPU takes its shape; other arguments as they are."""
    if arrays.kind_of(argument) is None:
        return argument
    return ShapeDtype(tuple(map(int, argument.shape)), arrays.dtype_of_array(argument).numpy)


def _one_by_one(fusion: Fusion, inputs: Sequence[Any]) -> Sequence[Any]:
    """Returns the arguments with the entries of every list that stands for scalar inputs, as those of a vector are."""
    if not any(isinstance(argument, list | tuple) for argument in inputs):
        return inputs
    arguments: list[Any] = []
    for argument in inputs:
        number = fusion.inputs[len(arguments)] if len(arguments) < len(fusion.inputs) else None
        is_vector = isinstance(argument, list | tuple) and number is not None and not fusion.values[number].is_tensor
        arguments.extend(argument if is_vector else [argument])
    return arguments
