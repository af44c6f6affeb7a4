"""`@fuse`: traces a function once per trace key, compiles the trace, and dispatches calls to it.

A call looks up its trace by key (structure of the arguments, static values, and the rank, element type and extents of 1
of each array), checks the guards of the trace, and runs its executable. A repeated call takes the fast path: a Python
function generated for its call signature. The methods for inspection (`definition`, `segments`, `explain` and others)
compile as a call would and run nothing.

Must not know: ops, kernels.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from segments import Predicate
from tracefuse import config, source
from tracefuse.compiler.executable import Executable, compile_fusion
from tracefuse.compiler.placed_fusion import CacheInfo, PlacedFusion
from tracefuse.compiler.reference_executable import EvaluatedExecutable
from tracefuse.config import Options, OptionsOfBlocks, overrides
from tracefuse.diagnostics.progress import say_trace
from tracefuse.dynamic.guards import Guard
from tracefuse.errors import TraceError, UnsupportedError, shown
from tracefuse.frontend.bound_function import BoundFusedFunction, PickledByName, owns
from tracefuse.frontend.calls import untraced_calls
from tracefuse.frontend.calls.call import CallArguments, Signature
from tracefuse.frontend.calls.compiled_stages import Environment, StageCompiler
from tracefuse.frontend.calls.discovery import Discovery
from tracefuse.frontend.calls.fast_path import call_signature
from tracefuse.frontend.calls.input_texts import NOT_APPLICABLE
from tracefuse.frontend.calls.output_buffers import output_buffers, write_into
from tracefuse.frontend.calls.question_tree import QuestionTree
from tracefuse.frontend.calls.retraces import explain_new_key, explain_retrace, keys_of, unstable_state
from tracefuse.frontend.calls.run_entry import run_entry
from tracefuse.frontend.calls.shared_arguments import check_no_overlap, find_shared_leaves
from tracefuse.frontend.calls.trace_entry import Entry, match_arguments, output_buffer_use
from tracefuse.frontend.calls.tree_results import finish
from tracefuse.frontend.frontends import Frontend, check_function
from tracefuse.frontend.inspection import Inspected
from tracefuse.frontend.jax_api.fused_primitive import holds_jax_tracer
from tracefuse.frontend.python_numbers import number_conditions
from tracefuse.frontend.trace_cache import TraceCache
from tracefuse.frontend.tracer.captured.routes import CallRoots
from tracefuse.frontend.tracer.effects.questions import CONDITIONS
from tracefuse.frontend.tracer.record.recorder import current
from tracefuse.frontend.tracer.values.result_leaves import OutputLeaf
from tracefuse.ir.fusion import Fusion
from tracefuse.logs import say
from tracefuse.passes.pipeline import passes_at, run_passes
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.donated_arrays import DONORS, check_not_donated
from tracefuse.runtime.targets.resolution import resolve_target

MOST_ATTEMPTS = 3
"""Traces of one call: another thread may change captured state while the function is traced."""

P = ParamSpec("P")
R = TypeVar("R")


class FusedFunction(Inspected, PickledByName, Generic[P, R]):
    """A function wrapped by `@fuse`: has the same parameters, and is compiled once for each trace key."""

    def __init__(
        self, function: Callable[P, R], *, static_argnums: Sequence[int] = (), static_argnames: Sequence[str] = (),
        donate_argnums: Sequence[int] = (), donate_argnames: Sequence[str] = (), merge: Predicate | None = None,
        kernel_name: str | None = None, frontend: str = "auto", fallback: str | None = None, **options: Any,
    ) -> None:  # fmt: skip
        check_function(function)
        if merge is not None and not callable(merge):
            raise TraceError(
                f"merge cannot be {shown(merge)}",
                hint="give a function of two groups, such as tracefuse.rules.one_op_a_segment",
            )
        if not (kernel_name is None or isinstance(kernel_name, str)):
            raise TraceError(f"kernel_name cannot be {shown(kernel_name)}", hint="give a string")
        functools.update_wrapper(self, function)
        self.__qualname__: str = getattr(function, "__qualname__", type(function).__name__)
        self._function: Callable[..., Any] = function
        self._signature = Signature(function, static_argnums, static_argnames, donate_argnums, donate_argnames)
        self._options = config.checked(options, "@fuse")
        self._merge, self._kernel_name = merge, kernel_name
        self._frontend = Frontend(frontend, function, fallback)
        self._cache = TraceCache()
        self._default_options, self._block_options = config.resolve(self._options), OptionsOfBlocks(self._options)
        self._has_fast_path = not self._default_options.eager

    # -- calling ------------------------------------------------------------------------------------------------------

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        cache = self._cache
        recent = cache.recent
        if recent is not None and not kwargs and overrides() is None and not DONORS and len(args) == recent[0]:
            try:
                outputs = recent[1].first(args)
            except Exception as error:
                source.hide_own_frames(error)
                raise
            if outputs is not None:
                cache.hits += 1
                return outputs[0]  # type: ignore[no-any-return]
        try:
            first = cache.recent_first
            if first is not None and not kwargs and overrides() is None:
                results = first(args, None)
                if results is not None:
                    cache.hits += 1
                    return results[0]  # type: ignore[no-any-return]
            out = kwargs.pop("out", None) if kwargs and self._signature.leaves_out else None
            return cast("R", self._dispatch(args, kwargs, None, False, out))
        except Exception as error:
            source.hide_own_frames(error)
            raise

    def _dispatch(self, args: Sequence[Any], kwargs: dict[str, Any], bound: Any, is_bound: bool, out: Any) -> Any:
        """Runs a call: on a fast path if one applies, else in full. bound: the `self` of a bound method."""
        if self._has_fast_path and current.get() is None:
            cache, values = self._cache, overrides()
            signature = call_signature(args, kwargs, bound, is_bound, out)
            if values is not None:
                signature = self._block_options.of(values), *signature
            if cache.runs_function(signature) and not DONORS:
                return untraced_calls.run_function(self._function, CallRoots(bound, args, kwargs))
            for fast_path in cache.fast_paths.get(signature, ()):
                try:
                    result = fast_path.run(args, kwargs, bound, out)
                except number_conditions.ERRORS_OF_NUMBERS:
                    if fast_path.has_conditions:
                        break  # Python may raise another one
                    raise
                if result is untraced_calls.RUNS_FUNCTION:
                    return untraced_calls.run_function(self._function, CallRoots(bound, args, kwargs))
                if result is not NOT_APPLICABLE:
                    cache.hits += 1
                    if values is None:
                        cache.remember(FusedFunction, len(args), fast_path, is_bound)
                    return result
        return self._call_in_full(args, kwargs, bound, is_bound, out)

    @source.hides_own_frames
    def into(self, out: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Writes the result of a call into `out` and returns `out`; the short form is `f(*args, out=out)`.

        out: an array, or a pytree of arrays with the structure of the result, with None for each array to allocate. It
        may overlap arguments: every argument is read as it was before the call. Raises ShapeError, DtypeError,
        DeviceError or UnsupportedError for an array that the result does not fit or that is read-only, and TraceError
        for another pytree structure, before anything runs.
        """
        return cast("R", self._dispatch(args, kwargs, None, False, out))

    def _call_in_full(self, args: Sequence[Any], kwargs: dict[str, Any], bound: Any, is_bound: bool, out: Any) -> Any:
        """Flattens the call, finds or makes its trace, runs it, and adds a fast path for its call signature."""
        if not is_bound and args and owns(self, args[0]):  # a method called through its class
            args, bound, is_bound = args[1:], args[0], True
        options = config.resolve(self._options)
        if options.eager or current.get() is not None:  # an enclosing trace records the ops
            function, owner = self._frontend.inside(bound, self.__qualname__)
            result = function(*((owner, *args) if is_bound else args), **kwargs)
            return result if out is None else write_into(out, result)
        if holds_jax_tracer(args, kwargs):
            fused = functools.partial(FusedFunction, frontend="jax", merge=self._merge, **self._options)
            writes = out is not None or bool(self._signature.donated)
            return self._frontend.in_jax(self.__qualname__, fused, (bound, *args) if is_bound else args, kwargs, writes)
        call = self._signature.flatten_call(args, kwargs, bound, is_bound)
        if DONORS:
            check_not_donated((leaf.value, leaf.path) for leaf in call.leaves)
        signature = call_signature(args, kwargs, bound, is_bound, out)
        signature = signature if overrides() is None else (options, *signature)
        if out is None and not self._signature.donated and self._frontend.is_plain:
            call = call._replace(may_run_function=untraced_calls.may_run_function(call, options))
        for attempt in self._cache.attempts(options, call):
            try:
                return self._call_with(attempt, options, signature, out)
            except number_conditions.ConditionFailed:
                if attempt.asks_conditions:
                    raise
            except untraced_calls.FunctionRuns:
                self._add_tree_path(signature, None, call, options)
                break
        return untraced_calls.run_function(self._function, call.roots)

    def _call_with(self, call: CallArguments, options: Options, signature: Any, out: Any) -> Any:
        """See `_call_in_full`."""
        answered = self._follow_tree(call, options)
        if answered is not None:
            result = finish(*answered, call, out)
            self._cache.count_call((options, (call.key,)), answered[1])
            if out is None and not call.asks_conditions and not self._signature.donated:
                self._add_tree_path(signature, answered[0], call, options)
            return result
        entry, arguments = self._find_entry(call, options, self._tree(call, options))
        if entry.values is not None:
            return finish(entry, entry.take_values(), call, out)
        if entry.trace.conditions and (out is not None or self._signature.donated):
            raise number_conditions.ConditionFailed  # the call may change what it reads, so it cannot run twice
        buffers = None if out is None else output_buffers(entry.trace.structure, entry.trace.results, out)
        use = output_buffer_use(entry, call, self._signature, buffers)
        try:
            result = run_entry(entry, arguments, call, buffers, use)
        except Exception as error:
            raise number_conditions.of_conditions(entry.trace, error) from None
        if self._keeps_fast_path(options):
            self._cache.add_trace_path(signature, entry, call, use, out is not None)
        return result

    def _keeps_fast_path(self, options: Options) -> bool:
        """Whether calls with the options in force look for fast paths."""
        return self._has_fast_path and (overrides() is not None or options is self._default_options)

    def _add_tree_path(self, signature: Any, entry: Entry | None, call: CallArguments, options: Options) -> None:
        """Adds a fast path along the tree of calls like this one, unless there is one or none is possible."""
        if self._keeps_fast_path(options):
            self._cache.add_tree_path(signature, self._cache.trees.get((options, (call.key,))), entry, call)

    def _tree(self, call: CallArguments, options: Options) -> QuestionTree:
        """An empty tree for calls like this one."""
        place = call.kind, call.device  # the tree outlives the call, and must not keep its arguments
        compiler = StageCompiler(lambda fusion: self._compile(fusion, options, place), options.target, call.device)
        refusal = "and graph=True records one size" if options.graph == "on" else None
        return QuestionTree(compiler, call.kind, refusal, frozenset({CONDITIONS} if call.asks_conditions else ()))

    def _follow_tree(self, call: CallArguments, options: Options) -> tuple[Entry, Environment] | None:
        """Runs a call of a function that asks questions about computed values; returns its last stage and its values.

        None if it is not known to ask any.
        """
        key = (options, (call.key,))
        tree = self._cache.trees.get(key)
        if tree is None:
            return None
        progress = tree.follow(call)
        if progress.entry is not None:
            return progress.entry, progress.environment
        if tree.is_closed and call.may_run_function and progress.environment.rewind():
            raise untraced_calls.FunctionRuns
        with self._cache.lock:
            call = self._cache.with_numbers(key, progress.differing, call)
            entry = self._trace(call, options, {}, Discovery(tree, progress, call))
            return entry, entry.take_values()

    def _find_entry(
        self, call: CallArguments, options: Options, tree: QuestionTree | None = None
    ) -> tuple[Entry, list[Any]]:
        """The entry whose guards hold, traced now if there is none, and the arguments of its fusion.

        tree: what answers questions about computed values. A function that asks one has run; its entry has `values`.
        """
        with self._cache.lock:
            entry, arguments = self._find_or_trace(call, options, {}, tree)
            if entry.values is not None:
                return entry, arguments
            if entry.trace.fusion.aliases:
                same = find_shared_leaves(entry.trace, entry.array_device, arguments)
                if same:
                    entry, arguments = self._find_or_trace(call, options, same)
            check_no_overlap(entry.trace, entry.array_device, arguments, call)
            return entry, arguments

    def _find_or_trace(
        self, call: CallArguments, options: Options, same: Mapping[int, int],
        tree: QuestionTree | None = None,
    ) -> tuple[Entry, list[Any]]:  # fmt: skip
        """See `_find_entry`. same: maps each leaf that shares the memory of an earlier, updated leaf to that leaf."""
        key = (options, (call.key, *same.items()))
        entries = self._cache.entries(key)
        for entry in entries:
            if (arguments := match_arguments(entry, call)) is not None:
                self._cache.hits += 1
                return entry, arguments
        if call.may_run_function and self._cache.is_full(entries):
            untraced_calls.leave_to_function(self.__qualname__, len(entries), self._cache.first_left(key, call))
        cause = explain_retrace(entries, call) if entries else explain_new_key(self._cache.entries_with(options), call)
        if cause is not None:
            say(options, 1, lambda: str(cause))
        call = self._cache.with_numbers(key, entries, call)
        for _ in range(MOST_ATTEMPTS):
            discovery = None if tree is None else Discovery.at_start(tree, call)
            try:
                entry = self._trace(call, options, same, discovery)
            except untraced_calls.FunctionRuns:
                self._cache.trees[key] = tree  # type: ignore[assignment]
                raise
            entry.cause = cause
            if tree is not None and entry.values is not None:
                self._cache.trees[key] = tree
                return entry, []
            if (arguments := match_arguments(entry, call)) is not None:
                break
        else:
            untraced_calls.leave_to_threads(call)
            raise unstable_state(self.__qualname__, entry, call)
        entry.before = entry.trace.facts(arguments)
        self._cache.add(key, entry)
        if cause is not None:
            self._cache.guard_failures.add(cause, warn=options.dynamic)
        return entry, arguments

    def _trace(
        self, call: CallArguments, options: Options, same: Mapping[int, int], discovery: Discovery | None = None,
    ) -> Entry:  # fmt: skip
        start = time.perf_counter()
        traced = self._frontend.trace(call, same, discovery, options)
        if options.debug:
            say_trace(options, self.__qualname__, call.leaves, time.perf_counter() - start)
        named = [(leaf.value, leaf.path) for leaf in call.leaves if leaf.is_array]
        traced.place_constants(*arrays.place_of(named))
        named += [(capture.array, capture.path) for capture in traced.captured if not capture.scalar]
        kind, device = arrays.place_of(named)
        if not named:
            kind, device = traced.place(kind)
        if traced.fusion.aliases:
            arrays.check_can_change(kind, "in-place change of an argument")
        single = traced.structure.num_nodes == 1 and traced.results == (OutputLeaf(0),) and not traced.writes
        if discovery is not None and discovery.stages:
            return discovery.complete(Entry(traced, None, None, single, kind, device, keys_of(call)))
        facts = (*traced.guards, *traced.never_one())
        sizes = None if self._merge is None else traced.sizes
        executable = self._compile(traced.fusion, options, (kind, device), facts, sizes) if traced.runs else None
        return Entry(traced, executable, traced.guard_function(), single, kind, device, keys_of(call))

    def _compile(
        self, fusion: Fusion, options: Options, place: tuple[str, int | None], facts: Sequence[Guard] = (),
        sizes: Mapping[int, Any] | None = None,
    ) -> Executable | EvaluatedExecutable:  # fmt: skip
        if options.target == "reference":
            return EvaluatedExecutable(run_passes(passes_at("after tracing"), fusion, options))
        target, device = resolve_target(options.target, place[1])
        return compile_fusion(
            fusion, target=target, device=device or 0, options=options, facts=facts, merge=self._merge, sizes=sizes,
            name=self._kernel_name or self.__qualname__, orders_results=place[0] == "numpy",
        )  # fmt: skip

    # -- inspection ----------------------------------------------------------------------------------------------------

    def _inspected_call(self, args: Sequence[Any], kwargs: dict[str, Any]) -> CallArguments:
        is_bound = bool(args) and owns(self, args[0])
        bound = args[0] if is_bound else None
        return self._signature.flatten_call(args[1:] if is_bound else args, kwargs, bound, is_bound)

    def _inspect(self, args: Sequence[Any], kwargs: dict[str, Any]) -> QuestionTree | tuple[Entry, list[Any]]:
        call, options = self._inspected_call(args, kwargs), config.resolve(self._options)
        for candidate in (call, call.asking()):
            tree = self._cache.trees.get((options, (candidate.key,)))
            if tree is not None:
                return tree
        try:
            entry, arguments = self._find_entry(call, options, self._tree(call, options))
        except number_conditions.ConditionFailed:
            call = call.asking()
            entry, arguments = self._find_entry(call, options, self._tree(call, options))
        if entry.values is None:
            return entry, arguments
        entry.take_values()
        return self._cache.trees[options, (call.key,)]

    def _latest_entries(self, count: int) -> list[Entry]:
        return self._cache.latest(count)

    def _latest_trees(self, count: int) -> list[QuestionTree]:
        return self._cache.latest_trees(count)

    def _place(self, entry: Entry) -> PlacedFusion:
        executable = entry.executable
        if isinstance(executable, EvaluatedExecutable):
            raise UnsupportedError("target='reference' has no segments", hint="leave target= out to see them")
        if executable is None:
            executable = compile_fusion(entry.trace.fusion, options=config.resolve(self._options))
        return PlacedFusion.from_executable(executable, entry.device, self._options)

    def _place_stage(self, executable: Executable, tree: QuestionTree) -> PlacedFusion:
        return PlacedFusion.from_executable(executable, tree.compiler.gpu, self._options)

    def cache_info(self) -> CacheInfo:
        """Counts of traces, of compiled plans (one for each set of guards), and of calls that hit the cache."""
        return self._cache.info()

    def cache_clear(self) -> None:
        """Drops every trace and resets the counts to 0."""
        self._cache.clear()

    def clear_cache(self) -> None:
        """The name that `cupy.fuse` has for `cache_clear`."""
        self.cache_clear()

    # -- Python's protocols --------------------------------------------------------------------------------------------

    @overload
    def __get__(self, instance: None, owner: type) -> FusedFunction[P, R]: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> BoundFusedFunction: ...

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else BoundFusedFunction(self, instance)
