"""A call of a fused function in steps, by the names of jax.stages: `f.trace(*args).lower().compile()`.

Each step holds one trace with its executable. The last one runs calls of that trace by plans that are compiled, and
never traces or compiles: calls that need another trace or plan raise.

Must not know: ops, kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from segments.lazy_dataclasses import dataclass
from tracefuse import pytrees, source
from tracefuse.compiler.executable import Executable
from tracefuse.compiler.placed_fusion import PlacedFusion
from tracefuse.config import overrides
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.definition.segment import DefinitionSegment
from tracefuse.diagnostics.cost_analysis import Cost, cost_of
from tracefuse.diagnostics.explain import Explanation
from tracefuse.errors import OptionError, ShapeError, TraceError, shown
from tracefuse.frontend.calls.call import CallArguments, Signature
from tracefuse.frontend.calls.described_results import result_types
from tracefuse.frontend.calls.fast_path import FastPath, write_fast_path
from tracefuse.frontend.calls.input_texts import NOT_APPLICABLE
from tracefuse.frontend.calls.retraces import explain_new_key, explain_retrace
from tracefuse.frontend.calls.run_entry import run_entry
from tracefuse.frontend.calls.trace_entry import Entry, match_arguments, output_buffer_use
from tracefuse.frontend.python_numbers import number_conditions
from tracefuse.frontend.tracer.record.recorder import current
from tracefuse.ir.fusion import Fusion
from tracefuse.runtime.compile_all import wait_for_compilation
from tracefuse.runtime.donated_arrays import DONORS, check_not_donated
from tracefuse.runtime.memory.buffer_facts import OutputBufferUse, returned
from tracefuse.runtime.peak_memory import tensor_bytes
from tracefuse.runtime.plan import Plan

DIALECTS = ("fusion", "segments", "kernel", "source")
"""The texts of a call: its fusion, a definition for each segment, its kernels in readable form, and as compiled."""


@dataclass(frozen=True, slots=True)
class ArgInfo:
    """An argument of a traced call. donated: whether the call may overwrite it."""

    shape: tuple[int, ...]
    dtype: Any
    donated: bool
    pytree_leaf: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """The memory of a call, in bytes; named as by jax.stages.

    alias_size_in_bytes: of the results that are written into arguments, which output_size_in_bytes counts too.
    temp_size_in_bytes: the most that is allocated beside arguments and results. peak_memory_in_bytes: the most that is
    allocated at one time, with the arguments. Workspaces of libraries are not known and not counted.
    """

    argument_size_in_bytes: int
    output_size_in_bytes: int
    alias_size_in_bytes: int
    temp_size_in_bytes: int
    peak_memory_in_bytes: int


class _Stage:
    """What the steps share. function: the fused function. call, entry, arguments: of the traced call."""

    def __init__(
        self, function: Any, signature: Signature, call: CallArguments, entry: Entry, arguments: Sequence[Any],
        placed: PlacedFusion,
    ) -> None:  # fmt: skip
        self._function, self._signature, self._call = function, signature, call
        self._entry, self._arguments, self._placed = entry, arguments, placed

    @property
    def fun_name(self) -> str:
        """The qualified name of the function."""
        return str(self._function.__qualname__)

    @cached_property
    def args_info(self) -> Any:
        """((positional arguments), {keyword arguments}), each array and number as an `ArgInfo`."""
        infos = [
            leaf.value
            if leaf.dtype is None
            else ArgInfo(
                tuple(getattr(leaf.value, "shape", ())), leaf.dtype.numpy, self._signature.is_donated(leaf.path)
            )
            for leaf in self._call.leaves
        ]
        positional, keywords = pytrees.unflatten(self._call.structure, infos)
        return tuple(positional), keywords

    @property
    def in_tree(self) -> Any:
        """The structure of ((positional arguments), {keyword arguments}), without static ones."""
        return _structure_of(self._call)

    @property
    def out_tree(self) -> Any:
        """The structure of the result."""
        return self._entry.trace.structure

    @cached_property
    def out_info(self) -> Any:
        """The result with a `ShapeDtype` for each array, and other objects as they are."""
        leaves = result_types(self._entry, self._arguments, self._call)
        return pytrees.unflatten(self._entry.trace.structure, leaves)

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The positions of the leaves of the arguments that are donated."""
        leaves = enumerate(self._call.leaves)
        return tuple(k for k, leaf in leaves if leaf.is_array and self._signature.is_donated(leaf.path))

    def _at(self, next_class: Callable[..., Any]) -> Any:
        return next_class(self._function, self._signature, self._call, self._entry, self._arguments, self._placed)


def _structure_of(call: CallArguments) -> Any:
    positional, keywords = pytrees.unflatten(call.structure, [None] * len(call.leaves))
    return pytrees.flatten((tuple(positional), keywords))[1]


class TracedCall(_Stage):
    """A traced call: `f.trace(*args)`. Nothing is compiled."""

    @property
    def fusion(self) -> Fusion:
        """The recorded fusion, with symbolic extents."""
        return self._entry.trace.fusion

    @cached_property
    def definition(self) -> FusionDefinition:
        """The recorded fusion as a FusionDefinition."""
        return FusionDefinition.from_placed(self._placed)

    @property
    def guards(self) -> tuple[str, ...]:
        """What the trace assumes about sizes and numbers."""
        return tuple(self._entry.facts_to_explain()["traced"])

    @source.hides_own_frames
    def lower(self) -> LoweredCall:
        """Returns the call as segments for its sizes.

        Raises ShapeError for sizes that violate a requirement of the function, ConcretizationError for reshapes and
        resizes that are impossible.
        """
        self._placed.concretization(self._arguments)
        lowered: LoweredCall = self._at(LoweredCall)
        return lowered

    def __repr__(self) -> str:
        return f"<traced call of {self.fun_name}>\n{self.fusion}"


class _WithPlan(_Stage):
    """A step that has a plan, which is compiled at the first use."""

    @cached_property
    def _use(self) -> OutputBufferUse:
        return output_buffer_use(self._entry, self._call, self._signature, None)

    @cached_property
    def _planned(self) -> tuple[Plan, Mapping[int, int]]:
        executable = self._entry.executable
        if isinstance(executable, Executable):
            return executable.plan_for(self._arguments, self._use)
        return self._placed.plan_for(self._arguments)

    def as_text(self, dialect: str = "kernel") -> str:
        """Returns the program as text. dialect: one of "fusion", "segments", "kernel" and "source" (LLVM IR, CUDA C++).

        "kernel" and "source" show every segment in order, library calls as a line. Raises OptionError for another one.
        """
        if dialect not in DIALECTS:
            raise OptionError(f"as_text: dialect cannot be {shown(dialect)}", hint=f"use one of {', '.join(DIALECTS)}")
        if dialect == "fusion":
            return str(self._entry.trace.fusion)
        segments = self._segments
        if dialect == "segments":
            return "\n\n".join(map(str, segments))
        return "\n\n".join(
            f"# segment {position} ({segment.template})\n{segment.kernel if dialect == 'kernel' else segment.source}"
            for position, segment in enumerate(segments)
        )

    @cached_property
    def _segments(self) -> Sequence[DefinitionSegment[FusionDefinition]]:
        definition = FusionDefinition.from_placed(self._placed)
        return definition.segment(self._arguments, merge=self._placed.segmentation.merge)

    @cached_property
    def _cost(self) -> Cost:
        return cost_of(*self._planned)

    def cost_analysis(self) -> dict[str, float]:
        """Returns "flops", "transcendentals", "bytes accessed" and "launches" of a call of these sizes; see `Cost`."""
        cost = self._cost
        return {
            "flops": float(cost.flops), "transcendentals": float(cost.transcendentals),
            "bytes accessed": float(cost.bytes), "launches": float(cost.launches),
        }  # fmt: skip


class LoweredCall(_WithPlan):
    """A call in segments: `f.lower(*args)`."""

    @source.hides_own_frames
    def compile(self) -> CompiledCall:
        """Compiles the kernels for these sizes and layouts. Raises CompileError."""
        _ = self._planned
        wait_for_compilation()
        compiled: CompiledCall = self._at(CompiledCall)
        return compiled

    def __repr__(self) -> str:
        return f"<lowered call of {self.fun_name}>\n{self.as_text('segments')}"


class CompiledCall(_WithPlan):
    """A compiled call: takes the arguments of the function.

    It runs calls that its trace and its plans serve, also of other sizes, and never traces or compiles. Raises
    TraceError for arguments, state or numbers that need another trace, ShapeError for sizes or layouts that need
    another plan, before anything runs.
    """

    _path: FastPath | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        path = self._path
        try:
            if path is not None and overrides() is None and not DONORS and current.get() is None:
                result = path.run(args, kwargs, self._call.roots.bound, None)
                if result is not NOT_APPLICABLE:
                    return result
            return self._call_in_full(args, kwargs)
        except Exception as error:
            source.hide_own_frames(error)
            raise

    def _call_in_full(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        if current.get() is not None:
            raise TraceError(
                f"the compiled call of {self.fun_name} is called in a trace", hint=f"call {self.fun_name} itself",
                where=source.user_line(),
            )  # fmt: skip
        bound = self._call.roots.bound
        call = self._signature.flatten_call(args, kwargs, bound, bound is not None)
        if self._call.asks_conditions:
            call = call.asking()
        if DONORS:
            check_not_donated((leaf.value, leaf.path) for leaf in call.leaves)
        entry = self._entry
        if call.key != self._call.key:
            raise self._refused(str(explain_new_key([entry], call) or self._difference(call)))
        arguments = match_arguments(entry, call)
        if arguments is None:
            raise self._refused(str(explain_retrace([entry], call)))
        use = output_buffer_use(entry, call, self._signature, None)
        if isinstance(entry.executable, Executable) and not entry.executable.has_plan(arguments, use):
            facts = "; ".join(map(str, self._planned[0].guards))
            raise ShapeError(
                f"{self.fun_name} is not compiled for these sizes and layouts"
                + (f"; it is compiled for {facts}" if facts else ""),
                hint=f"call {self.fun_name} itself, or lower and compile it for these arguments",
                where=source.user_line(),
            )  # fmt: skip
        try:
            result = run_entry(entry, arguments, call, None, use)
        except number_conditions.ConditionFailed:
            raise self._refused("Python computes a number of this call in another manner") from None
        self._path = write_fast_path(entry, call, use, False)
        return result

    def _difference(self, call: CallArguments) -> str:
        """How the structure of a call differs from that of the compiled one."""
        if call.structure != self._call.structure:
            return f"the arguments were {_structure_of(self._call)}, now {_structure_of(call)}"
        return f"the arrays were of {self._call.kind}, now of {call.kind}"

    def _refused(self, why: str) -> TraceError:
        return TraceError(
            f"{self.fun_name} is compiled for another call: {why}",
            hint=f"call {self.fun_name} itself, or trace and compile it for these arguments", where=source.user_line(),
        )  # fmt: skip

    def as_text(self, dialect: str = "source") -> str:
        """As of a lowered call, by default the code that was compiled."""
        return super().as_text(dialect)

    def memory_analysis(self) -> MemoryAnalysis:
        """Returns the bytes of arguments, results and temporary buffers of a call of these sizes."""
        plan, sizes = self._planned
        fusion = plan.segmentation.fusion
        explained = Explanation(plan, sizes).memory
        inputs = sum(tensor_bytes(fusion, number, sizes) for number in fusion.inputs)
        aliased = {*fusion.aliases, *(reuse.buffer.value for reuse in plan.reused)}
        aliases = sum(tensor_bytes(fusion, number, sizes) for number in aliased if number in fusion.outputs)
        outputs = sum(tensor_bytes(fusion, number, sizes) for number in returned(fusion))
        outputs += sum(tensor_bytes(fusion, number, sizes) for number in fusion.aliases)
        temporary = max(explained.peak - explained.outputs, 0)
        return MemoryAnalysis(inputs, outputs, aliases, temporary, inputs + explained.peak)

    def __repr__(self) -> str:
        return f"<compiled call of {self.fun_name}, {len(self._planned[0].segments)} segments>"
