"""Traces a function: calls it with tracers and returns the recorded Fusion, with what a later call needs to run it.

Must not know: compilation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any, TypeAlias

from tracefuse import pytrees
from tracefuse.errors import InternalError, TraceError, TracefuseError
from tracefuse.frontend import trace_twins
from tracefuse.frontend.control_flow.recorded_choices import CONTROL_FLOW
from tracefuse.frontend.numpy_api.hints import replacements
from tracefuse.frontend.numpy_api.library_calls.random_calls import RecordingGenerator
from tracefuse.frontend.python_numbers import number_conditions, number_questions
from tracefuse.frontend.python_numbers.traced_number import TracedNumber
from tracefuse.frontend.recorded_trace import FROM_STAGE, Trace
from tracefuse.frontend.trace_inputs import TraceInputs, add_updates, collect_captures, record_inputs
from tracefuse.frontend.traced_array import Tracer
from tracefuse.frontend.tracer.captured import captures, routes
from tracefuse.frontend.tracer.captured.bypassed_arrays import ContentsBefore, warn_of_cost
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.captured.random_watch import RandomWatch
from tracefuse.frontend.tracer.captured.routes import CallRoots
from tracefuse.frontend.tracer.effects import caught_errors, caught_refusals, numpy_errors
from tracefuse.frontend.tracer.effects.printed_values import printed
from tracefuse.frontend.tracer.effects.questions import CONDITIONS, TEXTS, Answers, EffectAfterCondition
from tracefuse.frontend.tracer.python_code.code_names import CodeNames
from tracefuse.frontend.tracer.python_code.text_flow import TextFlow
from tracefuse.frontend.tracer.questions_in_loops import rewrites_around
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.record.recorded_loops import LoopDecisions, RecordedLoops
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.state import leaked_values, state_writes
from tracefuse.frontend.tracer.state.argument_containers import ArgumentContainer, argument_containers
from tracefuse.frontend.tracer.state.container_changes import Change
from tracefuse.frontend.tracer.state.outcome import Outcome
from tracefuse.frontend.tracer.state.overlays import Overlays
from tracefuse.runtime.argument_leaves import Leaf
from tracefuse.young_objects import keeps_objects_young

Rebuild: TypeAlias = Callable[[list[Any]], tuple[tuple[Any, ...], dict[str, Any]]]


@keeps_objects_young
def trace(
    function: Callable[..., Any], leaves: Sequence[Leaf], rebuild: Rebuild, roots: CallRoots, *,
    dynamic: bool = True, device: int | None = None, same: Mapping[int, int] = MappingProxyType({}),
    answers: Answers | None = None, records_loops: bool = True, changing: frozenset[Any] = frozenset(),
) -> Trace:  # fmt: skip
    """Calls a clone of `function` with tracers in place of arrays and records its operations.

    rebuild: unflattens leaves into the arguments of the call. roots: the object that a method is bound to, and the
    arguments. dynamic: whether extents stay symbolic. device: the GPU of the array arguments, or None for the host.
    same: leaves that share the tracer of an earlier leaf. answers: answers questions about computed values, which raise
    without it. records_loops: whether the bodies of long `for` loops are recorded once. changing: the routes to numbers
    of the state that have differed between calls, which are inputs unless something needs their values.
    A function that changes numbers of its state runs a second time, with these numbers as inputs. Raises TraceError for
    a generator or an async function, and any error of `function`.
    """
    numbers: frozenset[Any] = changing if answers is None else answers.numbers
    kept_alive: dict[int, Any] = {}
    refused: frozenset[Any] = frozenset()
    decisions = LoopDecisions.of(numbers, records_loops)
    while True:
        attempt = _Attempt(function, leaves, roots, device, numbers, answers)
        attempt.recorder.kept_alive, attempt.refused = kept_alive, refused
        attempt.recorder.loops = RecordedLoops(decisions)
        try:
            traced = attempt.run(rebuild, dynamic, same)
        except BaseException as error:
            attempt.overlays.objects.give_back()
            if not changing or not isinstance(error, TracefuseError):
                raise
            # Something needs the elements, or the numbers, at the trace: they stay constants that each call compares.
            traced, numbers, refused, changing = None, numbers - changing, refused | changing, frozenset()
        numbers |= attempt.changed_numbers | decisions.decided()
        changing |= attempt.changing
        if traced is None and answers is not None:
            answers.restart(numbers)
        names = attempt.recorder.names
        attempt.forget()
        if traced is not None:
            leaked_values.check(names)
            return traced


class _Attempt:
    """One run of the clone of a function. changed_numbers: routes to numbers that should have been inputs."""

    def __init__(
        self, function: Callable[..., Any], leaves: Sequence[Leaf], roots: CallRoots, device: int | None,
        numbers: frozenset[Any], answers: Answers | None,
    ) -> None:  # fmt: skip
        self.function, self.leaves, self.roots, self.answers = function, leaves, roots, answers
        self.name = getattr(function, "__name__", type(function).__name__)
        self.recorder = Recorder(Tracer, self.name)
        self.recorder.answers = answers
        caught_errors.decide_in_handlers(self.recorder)
        self.recorder.device = device
        self.recorder.control_flow, self.recorder.calling_code = CONTROL_FLOW, _call_function.__code__
        self.recorder.is_placed = any(leaf.is_array for leaf in leaves)
        names = CodeNames()
        self.contents_before = ContentsBefore(places := list(captures.places(function, roots.bound, names)))
        self.watch = RandomWatch(function, places, names)
        twins, modules = trace_twins.replacements(device)
        self.overlays = Overlays(
            self.recorder, twins, modules, trace_twins.twin_of, names, numbers, trace_twins.CALLED,
            trace_twins.LATER,
        )  # fmt: skip
        self.recorder.number_type, self.recorder.asks_conditions = TracedNumber, CONDITIONS in numbers
        if answers is not None:
            answers.running = self.watch.without_draws_of_stages
        self.recorder.overlays = self.overlays
        if TEXTS not in numbers:
            self.recorder.text_flow = TextFlow(_call_function.__code__, trace_twins.shows_texts)
        self.changed_numbers: frozenset[Any] = frozenset()
        # Routes to captured arrays that the function asks about and changes, and those that have to be known.
        self.changing: frozenset[Any] = frozenset()
        self.refused: frozenset[Any] = frozenset()

    def run(self, rebuild: Rebuild, dynamic: bool, same: Mapping[int, int]) -> Trace | None:
        """Returns the trace; None if numbers of the state have to be inputs of it."""
        recorder = self.recorder
        inputs = record_inputs(recorder, self.leaves, self.function, dynamic, same)
        outside = current.get()
        try:
            # Set inside the try and reset first in its finally, so that no interrupt leaves a recorder behind.
            current.set(recorder)
            self._enter_objects(inputs)
            # Not in the `return`: an interrupt right after the call would be outside of the try.
            traced = self._finished(inputs, *self._call(*rebuild(inputs.values)))
            return traced
        except EffectAfterCondition:
            self.changed_numbers = frozenset({CONDITIONS})
            return None
        except AnotherAttempt:
            return None
        except NotInEveryIteration as error:
            if not recorder.loops.decisions.is_enabled:
                raise InternalError(f"a loop that is not recorded: {error}") from error
            if not rewrites_around(recorder, error):
                recorder.loops.unroll(error)
            return None
        except Exception as error:
            if recorder.loops.unroll(error):
                return None
            first = self._first_error(error)
            if first is error:
                raise
            raise first.with_traceback(error.__traceback__) from None
        finally:
            current.set(outside)
            recorder.alive = False
            self.overlays.outside.restore()
            self.overlays.end()

    def _enter_objects(self, inputs: TraceInputs) -> None:
        """Puts overlays in the places of objects among the arguments, and of functions and modules."""
        for position, leaf in enumerate(self.leaves):
            if leaf.is_object or (leaf.is_static and isinstance(leaf.value, (FunctionType, ModuleType))):
                at = Place(leaf.path, leaf.route if leaf.is_object else routes.to(leaf.value), leaf.value)
                inputs.values[position] = self.overlays.read(leaf.value, at)

    def _finished(self, inputs: TraceInputs, containers: list[ArgumentContainer], result: Any) -> Trace | None:
        """Returns the trace of a call that has returned; None if another attempt has to follow."""
        recorder = self.recorder
        self.overlays.buffers.check_unchanged()
        self.overlays.outside.check_unchanged()
        if recorder.loops.unroll(None):
            return None  # an exception that the function caught has left a loop
        caught_refusals.check(recorder)
        recorder.loops.copies.check()
        changes = state_writes.changes_of(self.overlays, containers)
        self.changed_numbers = state_writes.numbers_changed(changes, self.overlays) - self.overlays.numbers
        if self.answers is not None:
            self.changing = state_writes.arrays_changed(changes, recorder) - self.refused
            self.changed_numbers |= self.changing
        flow = recorder.text_flow
        root = self.overlays.original_overlay(self.function)
        if flow is not None and flow.reads_stored(root, self.overlays.functions.clones()):
            self.changed_numbers |= {TEXTS}
        if recorder.conditions and self._has_effects():
            self.changed_numbers |= {CONDITIONS}
        if self.changed_numbers:
            return None
        traced = self._trace(inputs, changes, result)
        self.watch.warn(recorder.makes_generators)
        warn_of_cost(self.name, getattr(self.function, "__code__", None), traced.bypassed)
        return traced

    def _first_error(self, error: Exception) -> BaseException:
        """Returns what the function itself would raise first, where a call of its trace ends with an error."""
        recorder = self.recorder
        if recorder.conditions and not recorder.asks_conditions and self.answers is not None:
            raise number_conditions.ConditionFailed from error  # the trace may be one that no call makes
        number_questions.settle_arguments(error)
        return caught_refusals.first_caught(recorder, error) or numpy_errors.first_raised(error, recorder)

    def _has_effects(self) -> bool:
        """Whether the call cannot run twice."""
        recorder = self.recorder
        writes_at_end = self.answers is not None and self.answers.has_stages
        updates = recorder.updated and not writes_at_end
        return bool(updates or recorder.prints or any(node.op.effect for node in recorder.builder.nodes))

    def forget(self) -> None:
        """Drops every traced value that the run itself holds."""
        self.overlays.forget()
        self.recorder.forget()

    def _call(self, positional: Sequence[Any], keywords: dict[str, Any]) -> tuple[list[ArgumentContainer], Any]:
        """Calls the clone; returns the containers among its arguments, and its result."""
        overlays, bound = self.overlays, self.roots.bound
        first = len(positional) - len(self.roots.arguments)
        names = pytrees.argument_names(self.function, len(positional))
        containers = argument_containers(
            overlays, self.roots.arguments, self.roots.keywords, positional[first:], keywords, names[first:]
        )
        arguments = list(positional)
        if first:
            arguments[0] = overlays.read(bound, Place("self", routes.SELF, bound))
        clone = overlays.read(self.function, Place(self.name, routes.to(self.function), self.function))
        result = _call_function(clone, self.function, arguments, keywords)
        if inspect.isgenerator(result) or inspect.iscoroutine(result) or inspect.isasyncgen(result):
            raise not_a_function(self.function, self.name)
        return containers, result

    def _trace(self, inputs: TraceInputs, changes: Sequence[Change], result: Any) -> Trace:
        """Records the result and the changes of the state, and builds the fusion."""
        recorder, overlays = self.recorder, self.overlays
        outcome = Outcome(recorder, overlays, inputs.values)
        result_leaves, structure = _leaves_of(result, outcome, changes, inputs)
        results = tuple(map(outcome.result_leaf, result_leaves))
        writes = state_writes.writes_of(changes, outcome.state_leaf)
        returned = len(recorder.builder.outputs)
        updated_numbers = add_updates(recorder, inputs)
        conditions = number_conditions.record(recorder)
        has_stages = self.answers is not None and self.answers.has_stages
        prints = () if has_stages else printed(recorder)
        captured, order = collect_captures(recorder, overlays)
        if self.answers is not None:
            self.answers.finish(recorder)
        prologue = recorder.contents.prologue(order)
        bypassed = self.contents_before.compared(overlays.reads.unrecorded)
        updated_captures = [c.place for c in recorder.captures.values() if c.number in recorder.updated]
        updated_leaves = [self.leaves[inputs.numbers[n]] for n in recorder.updated if n in inputs.numbers]
        statics = (*overlays.guards(), *overlays.buffers.guards(updated_captures, updated_leaves, self.roots))
        fusion = recorder.build()
        sources = tuple(
            inputs.numbers[n] if n in inputs.numbers else -(order[n] + 1) if n in order else FROM_STAGE
            for n in fusion.inputs
        )
        return Trace(
            fusion, tuple(recorder.guards), tuple(recorder.scalar_guards), sources, captured, statics, results,
            structure, tuple(leaf.path for leaf in self.leaves), recorder.device, prints, dict(recorder.hints),
            tuple(overlays.reads.pairs), prologue, bypassed, updated_numbers, state_writes.apart(changes, overlays),
            writes, tuple(outcome.new_objects), returned, conditions, recorder.loops.reasons(), recorder.weak_outputs,
            tuple(recorder.host_sizes.items()),
        )  # fmt: skip


@caught_errors.outermost
def _call_function(
    clone: Callable[..., Any], function: Callable[..., Any], positional: Sequence[Any], keywords: dict[str, Any]
) -> Any:
    """Calls the clone of a function; explains errors of wrong arguments and of CuPy functions that do not trace."""
    try:
        return clone(*positional, **keywords)
    except Exception as error:
        if isinstance(error, TypeError) and not _accepts(function, positional, keywords):
            raise TraceError(str(error), hint=f"the signature is {_signature_text(function)}") from None
        recorder = current.get()
        is_of_jax = recorder is not None and recorder.calls_traced_outside  # JAX explains what it raises
        refusal: TracefuseError | None = None if is_of_jax else replacements.of_library(error)
        if refusal is None:
            raise
        raise refusal.with_traceback(error.__traceback__) from None


def _leaves_of(result: Any, outcome: Outcome, changes: Sequence[Change], inputs: TraceInputs) -> tuple[list[Any], Any]:
    """Returns the leaves of a result and its structure; the whole as one leaf where parts of it are shared."""
    is_whole = outcome.is_shared(result, [change.value for change in changes]) or outcome.has_traced_keys(result)
    if is_whole or outcome.holds_twice(result):
        leaves, structure = [result], pytrees.flatten(None)[1]
    else:
        leaves, structure = pytrees.flatten(result, outcome.is_of_caller)
    argument_ids = set(map(id, inputs.values))
    leaves = [
        leaf.original if isinstance(leaf, RecordingGenerator) and id(leaf) not in argument_ids else leaf
        for leaf in leaves
    ]
    return leaves, structure


def _accepts(function: Callable[..., Any], positional: Sequence[Any], keywords: dict[str, Any]) -> bool:
    """Whether the arguments fit the function's parameters; True if it has no signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some functions written in C have none
        return True
    try:
        signature.bind(*positional, **keywords)
    except TypeError:
        return False
    return True


def _signature_text(function: Callable[..., Any]) -> str:
    """The function with its parameters, as Python source."""
    return f"{getattr(function, '__name__', type(function).__name__)}{inspect.signature(function)}"


def not_a_function(function: Any, name: str) -> TraceError:
    """The error for generators and async functions."""
    return TraceError(
        f"{name} is a generator or an async function", hint="return a tuple or a list of arrays instead of yielding"
    )
