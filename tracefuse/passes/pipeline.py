"""The passes of the compiler in three lists, and the runner that applies them.

FUSION_PASSES run on a recorded fusion before it is partitioned, SEGMENT_PASSES on each segment, and KERNEL_PASSES on
each kernel that a template emits. A `Pass` is a value: its name, its function, its stage, the option that it needs,
and the reason if it is required. `run_passes` names, times, logs, dumps, verifies and disables each pass; nothing
else calls them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any, Generic, TypeVar

from segments.lazy_dataclasses import dataclass
from tracefuse import config
from tracefuse.config import Options
from tracefuse.errors import InternalError, OptionError
from tracefuse.ir.fusion import Fusion
from tracefuse.kernel.kernel_ir import Kernel
from tracefuse.kernel.kernel_text import kernel_text
from tracefuse.logs import say
from tracefuse.passes.coalesced_exchanges import coalesce_exchanges
from tracefuse.passes.common_subexpressions import merge_common
from tracefuse.passes.constant_folding import fold_constants
from tracefuse.passes.dead_code import drop_dead, drop_dead_tensors
from tracefuse.passes.decompose import decompose
from tracefuse.passes.exact_halves import round_halves, round_scalars
from tracefuse.passes.hidden_exchanges import hide_exchanges
from tracefuse.passes.join_in_runs import join_in_runs
from tracefuse.passes.joined_branches import join_branches
from tracefuse.passes.joined_slices import join_slices
from tracefuse.passes.kernel_names import undefined_names
from tracefuse.passes.narrowed_updates import narrow_updates
from tracefuse.passes.overwritten_slices import skip_overwritten
from tracefuse.passes.separate_outputs import separate_outputs
from tracefuse.passes.single_pass_reductions import reduce_in_one_pass
from tracefuse.passes.slice_updates import update_slices
from tracefuse.passes.sorting_networks import sort_in_networks
from tracefuse.passes.split_complex import split_complex
from tracefuse.passes.tidy_kernel import tidy
from tracefuse.passes.transposed_products import read_transposed

Subject = TypeVar("Subject", Fusion, Kernel)


@dataclass(frozen=True, slots=True)
class Pass(Generic[Subject]):
    """A rewrite of a fusion or of a kernel, as the compiler runs it.

    name: the name in the option `disable`, the log and dumps; `config.PASSES` lists every name. function: the
    rewrite; it returns its argument if it changes nothing. stage: when it runs. option: the option that must be on,
    or "" for none. required: why compilation would fail or the result would be wrong without it, or "" for a pure
    optimization.
    """

    name: str
    function: Callable[[Subject], Subject]
    stage: str
    option: str = ""
    required: str = ""

    def __post_init__(self) -> None:
        if self.name not in config.PASSES:
            raise InternalError(f"config.PASSES does not list the pass {self.name}", hint="add its name there")

    @property
    def doc(self) -> str:
        """Returns the first line of the function's docstring."""
        return (self.function.__doc__ or "").partition("\n")[0]

    def is_needed(self, options: Options) -> bool:
        """Whether the option that the pass needs, if any, is on."""
        return not self.option or bool(getattr(options, self.option))

    def is_disabled(self, options: Options) -> bool:
        """Whether `disable` names the pass, or names all optimizations and the pass is one."""
        return options.disables(self.name) or (not self.required and options.disables("passes"))


_ASKED = "the option exact_half asks for the rounding"

FUSION_PASSES: tuple[Pass[Fusion], ...] = (
    Pass("round_scalars", round_scalars, "after tracing", option="exact_half", required=_ASKED),
    Pass("sort_in_networks", sort_in_networks, "before partitioning"),
    Pass("fold_constants", fold_constants, "before partitioning"),
    Pass("merge_common", merge_common, "before partitioning"),
    Pass("read_transposed", read_transposed, "before partitioning"),
    Pass("narrow_updates", narrow_updates, "before partitioning"),
    Pass("skip_overwritten", skip_overwritten, "before partitioning"),
    Pass("join_slices", join_slices, "before partitioning"),
    Pass("update_slices", update_slices, "before partitioning"),
    Pass("drop_dead", drop_dead, "before partitioning"),
    Pass("coalesce_exchanges", coalesce_exchanges, "before partitioning"),
    Pass("hide_exchanges", hide_exchanges, "before partitioning"),
    Pass(
        "join_in_runs", join_in_runs, "before partitioning", required="a kernel takes a bounded number of operands"
    ),
    Pass(
        "separate_outputs", separate_outputs, "before partitioning",
        required="two outputs of a fusion never share a buffer",
    ),
)  # fmt: skip
"""Passes that run on every fusion before partitioning, in order."""

SEGMENT_PASSES: tuple[Pass[Fusion], ...] = (
    Pass("drop_dead_tensors", drop_dead_tensors, "after concretization"),
    Pass("decompose", decompose, "in partitioning", required="no kernel computes a composite reduction"),
    Pass("round_halves", round_halves, "before lowering", option="exact_half", required=_ASKED),
    Pass("reduce_in_one_pass", reduce_in_one_pass, "for rows that a block cannot hold"),
)  # fmt: skip
"""Passes that run on what becomes one segment, in order. Each stage belongs to the step that runs it."""

KERNEL_PASSES: tuple[Pass[Kernel], ...] = (
    Pass("split_complex", split_complex, "after lowering", required="no target computes with complex numbers"),
    Pass("join_branches", join_branches, "after lowering"),
    Pass("tidy_kernel", tidy, "after lowering"),
)
"""Passes that run on every kernel that a template emits, in order."""


def passes_at(stage: str) -> tuple[Pass[Fusion], ...]:
    """Returns the passes of one stage over fusions and segments. Raises InternalError for a stage without passes."""
    chosen = tuple(entry for entry in (*FUSION_PASSES, *SEGMENT_PASSES) if entry.stage == stage)
    if not chosen:
        raise InternalError(f"no pass over a fusion or a segment runs {stage!r}")
    return chosen


# ---------------------------------------------------------------------------------------------------------------------
# the runner


@dataclass(frozen=True, slots=True)
class PassChange:
    """The change that one pass made: its name, its duration in seconds, and the text of its result."""

    name: str
    seconds: float
    text: str


@dataclass(slots=True)
class _Collector:
    changes: list[PassChange] = field(default_factory=list)


_collector: ContextVar[_Collector | None] = ContextVar("tracefuse_pass_changes", default=None)


@contextmanager
def collect_changes(earlier: Sequence[PassChange] = ()) -> Iterator[list[PassChange]]:
    """Yields a list that grows with each pass's changes in the `with` block, if the option `dump` names `passes`."""
    collector = _Collector(list(earlier))
    token = _collector.set(collector)
    try:
        yield collector.changes
    finally:
        _collector.reset(token)


def run_passes(passes: Sequence[Pass[Subject]], subject: Subject, options: Options) -> Subject:
    """Applies `passes` to `subject` in order, without the passes that the options omit or disable.

    Raises OptionError if `disable` names a pass that this subject requires to compile.
    """
    for entry in passes:
        if not entry.is_needed(options):
            continue
        if not entry.is_disabled(options):
            subject = _run(entry, subject, options)
        elif entry.required and entry.function(subject) is not subject:
            raise OptionError(
                f"option disable names the pass {entry.name}, but {entry.required}",
                hint=f"take {entry.name} out of disable",
            )
    return subject


def _run(entry: Pass[Subject], subject: Subject, options: Options) -> Subject:
    start = time.perf_counter()
    result = entry.function(subject)
    seconds = time.perf_counter() - start
    if result is subject:
        return subject
    _verify(entry.name, subject, result)
    collector = _collector.get() if "passes" in options.dump.split(",") else None
    if collector is None and options.debug < 4:
        return result
    text = _text(result)
    if text != _text(subject):
        say(options, 4, lambda: f"pass {entry.name} took {1e3 * seconds:.2f} ms and gave\n{text}")
        if collector is not None:
            collector.changes.append(PassChange(entry.name, seconds, text))
    return result


def _text(subject: Fusion | Kernel) -> str:
    return str(subject) if isinstance(subject, Fusion) else kernel_text(subject)


def _verify(name: str, before: Any, after: Any) -> None:
    """Raises InternalError if a pass broke an invariant of all passes; building a fusion checks the rest."""
    problem = _kernel_problem(before, after) if isinstance(before, Kernel) else _fusion_problem(before, after)
    if problem:
        raise InternalError(f"pass {name}: {problem}", hint=f"options(disable={name!r}) may avoid it; please report it")


def _fusion_problem(before: Fusion, after: Fusion) -> str:
    if after.inputs != before.inputs:
        return f"the inputs were {before.inputs}, now they are {after.inputs}"
    types, now = (
        [fusion.values[number].type for number in fusion.outputs if number not in fusion.aliases]
        for fusion in (before, after)
    )
    if now != types:
        return f"the types of the outputs were {', '.join(map(str, types))}"
    if {*after.aliases.values()} != {*before.aliases.values()}:
        return f"the updated inputs were {sorted(before.aliases.values())}"
    for number, value in after.values.items():
        if number in before.values and value.type != before.values[number].type:
            return f"value {number} was {before.values[number].type}, now it is {value.type}"
    return ""


def _kernel_problem(before: Kernel, after: Kernel) -> str:
    if (after.name, after.target, len(after.grid)) != (before.name, before.target, len(before.grid)):
        return f"kernel {before.name} is now {after.name}"
    undefined = undefined_names(after)
    return f"kernel {after.name} reads {', '.join(undefined)}, which nothing defines" if undefined else ""
