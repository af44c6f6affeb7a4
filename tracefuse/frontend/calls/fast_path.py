"""The fast path: a Python function generated for a call signature, from arguments to result.

A call signature is the types of the arguments and of `out`, and the names of the keywords. The generated function
unpacks the pytrees (tuples, lists, dicts, NamedTuples and dataclasses), compares static values and the state that the
trace read, tries the plans of the executable, which test the arrays themselves, and builds the result. If anything
differs, it returns NOT_APPLICABLE before anything has run, and the call is flattened and looked up in full.

Must not know: options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tracefuse.compiler.executable import Executable
from tracefuse.compiler.plan_cache import PlanCache
from tracefuse.frontend.calls.call import CallArguments, owner_key
from tracefuse.frontend.calls.input_texts import (
    NOT_APPLICABLE,
    InputWriter,
    are_captured_native,
    is_native,
    is_numpy_number,
    tuple_text,
)
from tracefuse.frontend.calls.leaf_texts import LeafTexts
from tracefuse.frontend.calls.trace_entry import Entry
from tracefuse.frontend.python_numbers import number_conditions
from tracefuse.frontend.tracer.captured.routes import Route
from tracefuse.frontend.tracer.record.recorder import current
from tracefuse.generated_code import compile_function
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.devices.shape_dtype import FOREIGN
from tracefuse.runtime.memory.buffer_facts import OutputBufferUse

Watched: TypeAlias = tuple[tuple[Any, ...], ...]
"""Values of the state that a trace read: each the value, an object, then steps from the object to the value, as the
place of their kind in WATCHED_STEPS and their key."""

WATCHED_STEPS = ("cell", "attribute", "entry", "call")


class FastPath(NamedTuple):
    """The function for calls with one signature.

    run: takes (args, kwargs, the `self` of a bound method, out). use: the output buffers and donated arguments of such
    a call. plans_alone: `first(args)` returns the outputs or None, if the plans of the executable decide alone: the
    positional arguments go to them, their one output is the result, and nothing else has to be compared. first: takes
    (args, bound), compares all that a call signature contains, and returns a sequence that begins with the
    result, or None; for positional arguments. watched: what has to be the same object if the plans are to decide alone
    for a function that is not bound; None if they cannot.
    """

    run: Callable[[Sequence[Any], Mapping[str, Any], Any, Any], Any]
    entry: Entry
    use: OutputBufferUse
    plans_alone: PlanCache[Any] | None
    first: Callable[[Sequence[Any], Any], Sequence[Any] | None] | None
    watched: Watched | None

    @property
    def has_conditions(self) -> bool:
        """Whether Python may raise another exception than the trace does."""
        return bool(self.entry.trace.conditions)


_OUT, _BOUND = object(), object()


def call_signature(
    args: Sequence[Any], kwargs: Mapping[str, Any], bound: Any, is_bound: bool, out: Any
) -> tuple[Any, ...]:
    """The key of fast paths: types of the arguments, names of keywords."""
    types: tuple[Any, ...] = tuple(map(type, args))
    if kwargs:
        types = (*types, *kwargs, *map(type, kwargs.values()))
    if is_bound:
        types = (_BOUND, owner_key(bound), *types)
    return types if out is None else (_OUT, type(out), *types)


def write_fast_path(entry: Entry, call: CallArguments, use: OutputBufferUse, has_out: bool) -> FastPath | None:
    """Generates the fast path for calls like this one; None if they have to be flattened in full.

    use: output buffers and donated arguments of the call. has_out: whether the call has `out`.
    """
    trace = entry.trace
    inputs = [k for k, leaf in enumerate(call.leaves) if not leaf.is_static]
    fits = sorted(origin for origin in trace.sources if origin >= 0) == inputs and not trace.prints
    fits = fits and not trace.updated_numbers
    fits = fits and isinstance(entry.executable, Executable)
    if entry.kind in FOREIGN and not _can_share(entry, has_out):
        return None
    if not fits or not all(is_native(leaf, entry.kind) for leaf in call.leaves):
        return None
    is_first = not (has_out or trace.conditions or _is_alone(entry, call)) and _is_positional(call)
    is_first = is_first and use == OutputBufferUse()
    writer = _Writer(entry, use, is_first)
    text = writer.write(call, has_out)
    run = compile_function(text, "call", writer.names, "fast path")
    if is_first:
        return FastPath(_as_run(run), entry, use, None, run, _watched(entry, call))
    plans = entry.executable.plans if isinstance(entry.executable, Executable) else None
    is_alone = _is_alone(entry, call) and not has_out and use == OutputBufferUse()
    return FastPath(run, entry, use, plans if is_alone else None, None, () if is_alone else None)


def _can_share(entry: Entry, has_out: bool) -> bool:
    """Whether the generated code can convert the arrays of another library, arguments and captured ones."""
    if has_out or not arrays.is_shared_at_once(entry.kind, entry.device):
        return False
    return are_captured_native(entry.trace, entry.kind)


def _as_run(first: Callable[[Sequence[Any], Any], Sequence[Any] | None]) -> Callable[..., Any]:
    """`FastPath.run` for a function with `FastPath.first`."""

    def run(args: Sequence[Any], kwargs: Mapping[str, Any], bound: Any, out: Any) -> Any:
        outputs = first(args, bound)
        return NOT_APPLICABLE if outputs is None else outputs[0]

    return run


def _is_positional(call: CallArguments) -> bool:
    """Whether the arguments that are not static are positional."""
    return not call.structure.children()[1].num_children and all(isinstance(key, int) for key in call.statics)


def _watched(entry: Entry, call: CallArguments) -> Watched | None:
    """See `FastPath.watched`."""
    if not _is_alone(entry, call, reads_state=True) or call.roots.bound is not None:
        return None
    routes = [(place.value, _steps(place.route)) for place in entry.trace.statics]
    return tuple((value, *steps) for value, steps in routes if steps) if all(steps for _, steps in routes) else None


def _steps(route: Route) -> tuple[Any, ...]:
    """Returns the object and the steps of a route, nothing if there are others than WATCHED_STEPS."""
    steps: list[Any] = []
    step = route
    while step.before is not None:
        if step.kind not in WATCHED_STEPS:
            return ()
        steps[:0] = WATCHED_STEPS.index(step.kind), step.key
        step = step.before
    return (step.key, *steps) if step.kind == "object" else ()


def _is_alone(entry: Entry, call: CallArguments, *, reads_state: bool = False) -> bool:
    """See `FastPath.plans_alone`. reads_state: whether it may read state of Python that has to be the same."""
    trace, positional = entry.trace, call.structure.children()[0]
    is_flat = not call.statics and entry.kind not in FOREIGN and not call.structure.children()[1].num_children
    is_flat = is_flat and all(node.is_leaf() for node in positional.children())
    is_flat = is_flat and not any(map(is_numpy_number, call.leaves))
    has_reads = (
        trace.conditions
        or (trace.statics and not reads_state)
        or trace.bypassed
        or trace.captured
        or trace.pairs
        or trace.apart
        or trace.scalar_guards
    )
    return entry.single and is_flat and not has_reads and trace.sources == tuple(range(len(call.leaves)))


class _Writer(InputWriter):
    """Writes one fast path."""

    def write(self, call: CallArguments, has_out: bool) -> str:
        executable = self.entry.executable
        assert isinstance(executable, Executable)
        if self.is_first:
            self._check_context(call)
        leaves = self._arguments(call)
        buffers = self._buffers() if has_out else []
        arguments = [*self._inputs(leaves), *buffers]
        self._guards(call, arguments)
        attempts = self._attempts(executable)
        after = [f"    {line}" for line in self._result(leaves, arguments)]
        trace = self.entry.trace
        failed = f"r is None or not r[{number_conditions.position(trace)}]" if trace.conditions else "r is None"
        release = arrays.release(self.entry.kind)
        if release is not None:
            self.lines.append(f"{self._name('release', release)}()")
        before = (f"        {line}" for line in self.lines or ["pass"])
        lines = [
            f"def call(args, {'bound' if self.is_first else 'kwargs, bound, out'}):", "    try:", *before,
            "    except CHANGED:", f"        return {self.otherwise}",
            f"    arguments = {tuple_text(arguments)}", *attempts,
            f"    if {failed}:", f"        return {self.otherwise}", *after, "",
        ]  # fmt: skip
        return "\n".join(lines)

    def _check_context(self, call: CallArguments) -> None:
        """Code for the part of the call signature that other fast paths read, and for calls inside of a trace."""
        self.names["recorder"] = current.get
        self._unless("recorder() is None")
        self._unless(f"len(args) == {call.structure.children()[0].num_children}")
        bound = call.roots.bound
        owner = "bound" if isinstance(bound, type) else "type(bound)"
        self._unless(f"{owner} is {self._name('t', owner_key(bound))}")

    def _attempts(self, executable: Executable) -> list[str]:
        """The statements that run a plan that fits the arguments; `r` is None if none does."""
        if self.use != OutputBufferUse():
            attempt = self._name("attempt", executable.plans.attempt_into)
            return [f"    r = {attempt}(arguments, {self._name('use', self.use)})"]
        attempt = f"{self._name('attempt', executable.plans.attempt)}(arguments)"
        if not self.is_first:
            return [f"    r = {attempt}"]
        plans = self._name("plans", executable.plans)
        return [f"    r = {plans}.first(arguments)", "    if r is None:", f"        r = {attempt}"]

    def _facts(self, arguments: Sequence[str]) -> dict[int, str]:
        """The texts of the extents and scalars of the call, by id."""
        fusion = self.entry.trace.fusion
        by_value = dict(zip(fusion.inputs, arguments, strict=False))
        facts = {key: f"{by_value[value]}.shape[{axis}]" for key, value, axis in fusion.axis_ids()}
        return facts | {number: by_value[number] for number in fusion.scalar_inputs}

    def _guards(self, call: CallArguments, arguments: Sequence[str]) -> None:
        """Guards on scalars and sizes."""
        trace, fusion = self.entry.trace, self.entry.trace.fusion
        if not trace.scalar_guards:
            return
        by_value = dict(zip(fusion.inputs, arguments, strict=False))
        for number, origin in zip(fusion.inputs, trace.sources, strict=True):
            if number in fusion.scalar_inputs:
                kind = self._kind_of_number(call, origin, number)
                if -origin <= len(trace.captured):  # the prologue checks its own results
                    self._unless(f"type({by_value[number]}) is {self._name('t', kind)}")
        facts = self._facts(arguments)
        self.lines += self._host_sizes(trace.host_sizes, facts.__getitem__)
        self._unless(" and ".join(guard.test_text(facts.__getitem__, self._name) for guard in trace.scalar_guards))

    def _kind_of_number(self, call: CallArguments, origin: int, number: int) -> type:
        """The class of the Python number that the fusion receives for a scalar input."""
        trace = self.entry.trace
        if origin >= 0:
            return type(call.leaves[origin].number)
        if -origin <= len(trace.captured):
            return _item_type(trace.captured[-origin - 1].key)
        return _item_type(trace.fusion.values[number].dtype.numpy.type)

    # -- results -----------------------------------------------------------------------------------------------------

    def _result(self, leaves: Sequence[str], arguments: Sequence[str]) -> list[str]:
        """The statements after the run, which write the state back and return the result; `r` holds the outputs."""
        is_foreign = self.entry.kind in FOREIGN
        if self.entry.single:
            return ["return r" if self.is_first and not is_foreign else self._return(self._output(0))]
        texts = LeafTexts(self.entry.trace, self._name, self._read, leaves, self._facts(arguments), self._output)
        if not texts.are_possible():
            outputs = f"[{', '.join(map(self._output, range(self.entry.trace.output_count)))}]" if is_foreign else "r"
            roots = f"CallRoots(bound, args{'' if self.is_first else ', kwargs'})"
            return [self._return(f"finish_call(entry, {tuple_text(leaves)}, arguments, {outputs}, {roots})")]
        result, writes = texts.result(), texts.writes()
        return [f"result = {result}", *writes, self._return("result")] if writes else [self._return(result)]

    def _output(self, position: int) -> str:
        """The expression of an output as the caller receives it; `r` holds the outputs."""
        kind = self.entry.kind
        if kind not in FOREIGN:
            return f"r[{position}]"
        is_weak = position in self.entry.trace.weak_outputs
        leave = "leave_weakly" if is_weak else "leave"
        self.names[leave] = arrays.leaving(kind, is_weak)
        return f"{leave}(r[{position}])"

    def _return(self, result: str) -> str:
        return f"return ({result}, )" if self.is_first else f"return {result}"


def _item_type(kind: type) -> type:
    """The class of Python numbers that a fusion receives for a number of a class."""
    return type(kind().item()) if issubclass(kind, np.generic) else kind
