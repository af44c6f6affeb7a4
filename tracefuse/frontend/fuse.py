"""`@fuse`: the cache of traces of a function, its calls, and what can be asked of it.

A call finds its trace by key (structure, static values, rank, element type and extents of 1 of each array), checks the
guards, and runs the executable. Calls like one that was made before go through a function that was written for them.

Knows: traces, their keys, kinds of arrays, executables. Must not know: ops, kernels.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

from segments import Predicate
from tracefuse import config, source
from tracefuse.compiler.executable import Executable, compile_fusion
from tracefuse.compiler.placed_fusion import CacheInfo, PlacedFusion
from tracefuse.compiler.reference_executable import EvaluatedExecutable
from tracefuse.config import Options, overrides
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.definition.segment import Segments
from tracefuse.diagnostics.explain import Explanation
from tracefuse.diagnostics.progress import say_trace
from tracefuse.dynamic.concretization import Concretization
from tracefuse.dynamic.index_classes import Indexing, index_classes
from tracefuse.errors import TraceError, UnsupportedError, shown
from tracefuse.frontend.bound_function import BoundFusedFunction, by_name, name_of, owns
from tracefuse.frontend.calls.call import Call, Signature
from tracefuse.frontend.calls.fast_path import MISSED, direct_call, form_of
from tracefuse.frontend.calls.output_buffers import given_leaves, put_into
from tracefuse.frontend.calls.retraces import keys_of, why_keyed, why_traced
from tracefuse.frontend.calls.shared_arguments import check_apart, same_leaves
from tracefuse.frontend.calls.trace_entry import Entry, arguments_of, assembled, printing
from tracefuse.frontend.numpy_api.creation import recording
from tracefuse.frontend.trace_cache import TraceCache
from tracefuse.frontend.tracer.code_names import CodeNames
from tracefuse.frontend.tracer.recorder import current
from tracefuse.frontend.tracer.result_leaves import ArgumentLeaf, OutputLeaf
from tracefuse.frontend.tracing import Trace, not_a_function, trace
from tracefuse.logs import say
from tracefuse.passes.pipeline import passes_at, run_passes
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.donated_arrays import DONORS, check_not_donated
from tracefuse.runtime.host_text import HostProgram
from tracefuse.runtime.memory.buffer_facts import OutputBufferUse
from tracefuse.runtime.targets.resolution import resolve_target

P = ParamSpec("P")
R = TypeVar("R")


class FusedFunction(Generic[P, R]):
    """What `@fuse` makes of a function: called like it, compiled once for each trace key."""

    def __init__(
        self, function: Callable[P, R], *, static_argnums: Sequence[int] = (), static_argnames: Sequence[str] = (),
        donate_argnums: Sequence[int] = (), donate_argnames: Sequence[str] = (), merge: Predicate | None = None,
        **options: Any,
    ) -> None:  # fmt: skip
        plain = inspect.unwrap(function) if not isinstance(function, functools.partial) else function.func
        if (
            inspect.isgeneratorfunction(plain)
            or inspect.iscoroutinefunction(plain)
            or inspect.isasyncgenfunction(plain)
        ):
            raise not_a_function(plain, plain.__name__)
        if not callable(function):
            raise TraceError(f"fuse takes a function, got {type(function).__name__}", hint="write @fuse above a def")
        if merge is not None and not callable(merge):
            raise TraceError(
                f"merge cannot be {shown(merge)}",
                hint="give a function of two groups, such as tracefuse.rules.one_op_a_segment",
            )
        functools.update_wrapper(self, function)
        self.__qualname__: str = getattr(function, "__qualname__", type(function).__name__)
        self._function: Callable[..., Any] = function
        self._signature = Signature(function, static_argnums, static_argnames, donate_argnums, donate_argnames)
        self._options = config.checked(options, "@fuse")
        self._merge = merge
        self._cache = TraceCache()
        self._default = config.resolve(self._options)
        self._has_direct = not self._signature.has_static and not self._default.eager

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
            out = kwargs.pop("out", None) if kwargs and self._signature.leaves_out else None
            return cast("R", self._called(args, kwargs, None, False, out))
        except Exception as error:
            source.hide_own_frames(error)
            raise

    def _called(self, args: Sequence[Any], kwargs: dict[str, Any], bound: Any, is_bound: bool, out: Any) -> Any:
        """A call, of the method of `bound` where it is bound."""
        if self._has_direct and overrides() is None and current.get() is None:
            cache = self._cache
            for direct in cache.fast_paths.get(form_of(args, kwargs, bound, is_bound, out), ()):
                result = direct.run(args, kwargs, bound, out)
                if result is not MISSED:
                    cache.hits += 1
                    if direct.alone is not None and not is_bound:
                        cache.recent = len(args), direct.alone
                    return result
        return self._call(args, kwargs, bound, is_bound, out)

    @source.hides_own_frames
    def into(self, out: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of a call, written into `out`, which is returned; the short form is `f(*args, out=out)`.

        out: an array, or a tree of them like the result, None where a new array is wanted. It may overlap arguments:
        each is read as it was before the call. Raises ShapeError, DtypeError, DeviceError or UnsupportedError, before
        anything runs, for an array that the result does not fit or that cannot be written; TraceError for another tree.
        """
        return cast("R", self._called(args, kwargs, None, False, out))

    def _call(self, args: Sequence[Any], kwargs: dict[str, Any], bound: Any, is_bound: bool, out: Any) -> Any:
        """Takes the call apart, and lets the next one like it go directly."""
        if not is_bound and args and owns(self, args[0]):  # a method that is called through its class
            args, bound, is_bound = args[1:], args[0], True
        options = config.resolve(self._options)
        if options.eager or current.get() is not None:  # within another trace it is part of that one
            function = self._function if current.get() is None else recording(self._function, CodeNames())
            result = function(*((bound, *args) if is_bound else args), **kwargs)
            return result if out is None else put_into(out, result)
        call = self._signature.taken_apart(args, kwargs, bound, is_bound)
        if DONORS:
            check_not_donated((leaf.value, leaf.path) for leaf in call.leaves)
        entry, arguments = self._entry(call, options, bound)
        given = None if out is None else given_leaves(entry.trace.structure, entry.trace.results, out)
        use = self._use(entry, call, given)
        result = self._run(entry, arguments, call, given, use)
        if self._has_direct and overrides() is None and config.resolve(self._options) is self._default:
            self._remember(form_of(args, kwargs, bound, is_bound, out), entry, call, use, out is not None)
        return result

    def _remember(self, form: tuple[Any, ...], entry: Entry, call: Call, use: OutputBufferUse, has_out: bool) -> None:
        """Lets the next call of this form go directly."""
        if not self._cache.has_fast_path(form, entry, use):
            made = direct_call(entry, call, use, has_out)
            if made is not None:
                self._cache.add_fast_path(form, made)

    def _entry(self, call: Call, options: Options, bound: Any) -> tuple[Entry, list[Any]]:
        """The entry whose guards hold, made where there is none, and the arguments of its fusion."""
        with self._cache.lock:
            entry, arguments = self._found(call, options, bound, {})
            if entry.trace.fusion.aliases:
                same = same_leaves(entry.trace, entry.array_device, arguments)
                if same:
                    entry, arguments = self._found(call, options, bound, same)
                check_apart(entry.trace, entry.array_device, arguments)
            return entry, arguments

    def _found(self, call: Call, options: Options, bound: Any, same: Mapping[int, int]) -> tuple[Entry, list[Any]]:
        """See `_entry`. same: leaves that are the memory of an earlier one, where one of them is changed in place."""
        key = (options, (call.key, *same.items()))
        entries = self._cache.entries(key)
        for entry in entries:
            arguments = arguments_of(entry, call, bound)
            if arguments is not None:
                self._cache.hits += 1
                return entry, arguments
        cause = why_traced(entries, call, bound) if entries else why_keyed(self._cache.entries_with(options), call)
        if cause is not None:
            say(options, 1, lambda: str(cause))
        entry = self._made(call, options, bound, same)
        entry.cause = cause
        arguments = arguments_of(entry, call, bound)
        if arguments is None:
            raise self._unstable(entry, call, bound)
        entry.before = entry.trace.facts(arguments)
        self._cache.add(key, entry)
        if cause is not None:
            self._cache.guard_failures.add(cause, warn=options.dynamic)
        return entry, arguments

    def _unstable(self, entry: Entry, call: Call, bound: Any) -> TraceError:
        """The refusal of state that is not the same right after it was read."""
        change = why_traced([entry], call, bound)
        return TraceError(
            f"what {self.__qualname__} reads is not the same when it is read again"
            + ("" if change is None else f": {change}"),
            hint="pass it as an argument",
        )

    def _made(self, call: Call, options: Options, bound: Any, same: Mapping[int, int]) -> Entry:
        start = time.perf_counter()
        traced = trace(
            self._function, call.leaves, call.rebuild, bound, dynamic=options.dynamic, device=call.device, same=same
        )
        if options.debug:
            say_trace(options, self.__qualname__, call.leaves, time.perf_counter() - start)
        named = [(leaf.value, leaf.path) for leaf in call.leaves if leaf.kind == "array"]
        named += [(capture.array, capture.path) for capture in traced.captured]
        kind, device = arrays.place_of(named)
        if not named and traced.device is not None:
            kind, device = "cupy", traced.device
        if traced.fusion.aliases:
            arrays.check_can_change(kind, "in-place change of an argument")
        executable = self._compiled(traced, options, device) if traced.fusion.outputs else None
        single = traced.structure.num_nodes == 1 and traced.results == (OutputLeaf(0),)
        return Entry(traced, executable, traced.guard_function(), single, kind, device, keys_of(call))

    def _compiled(self, traced: Trace, options: Options, device: int | None) -> Executable | EvaluatedExecutable:
        if options.target == "reference":
            return EvaluatedExecutable(run_passes(passes_at("after tracing"), traced.fusion, options))
        target, device = resolve_target(options.target, device)
        facts = (*traced.guards, *traced.never_one())
        return compile_fusion(
            traced.fusion, target=target, device=device or 0, options=options, facts=facts, name=self.__qualname__,
            merge=self._merge, sizes=None if self._merge is None else traced.sizes,
        )  # fmt: skip

    def _run(
        self, entry: Entry, arguments: list[Any], call: Call, given: list[Any] | None, use: OutputBufferUse
    ) -> Any:  # fmt: skip
        entered = None
        if given is not None and entry.executable is not None:
            arrays.check_can_change(entry.kind, "out=")
            enter = arrays.entering(entry.kind)
            entered = [None if array is None else enter(array) for array in given]
        if entry.trace.prints:
            outputs = printing(entry, arguments, entered)
        else:
            executable = entry.executable
            outputs = [] if executable is None else executable(arguments, entered, use.donated, use.kept)
        arrays.hold(entry.kind, arguments)
        if entry.kind != "numpy":
            outputs = list(map(arrays.leaving(entry.kind), outputs))
        if given is not None:
            outputs = [made if array is None else array for made, array in zip(outputs, given, strict=True)]
        if entry.single:
            return outputs[0]
        return assembled(entry, [leaf.value for leaf in call.leaves], arguments, outputs)

    def _use(self, entry: Entry, call: Call, given: list[Any] | None) -> OutputBufferUse:
        """The memory that a call has: for which results, and of which donated arguments."""
        if not self._signature.donated or entry.executable is None:
            return OutputBufferUse.of(given)
        leaves = {
            k for k, leaf in enumerate(call.leaves) if leaf.kind == "array" and self._signature.is_donated(leaf.path)
        }
        if leaves:
            arrays.check_can_donate(entry.kind)
        numbers = {origin: n for n, origin in zip(entry.trace.fusion.inputs, entry.trace.sources, strict=True)}
        returned = {leaf.position for leaf in entry.trace.results if isinstance(leaf, ArgumentLeaf)}
        donated = [leaf for leaf in sorted(leaves) if leaf in numbers]
        kept = (numbers[leaf] for leaf in donated if leaf in returned)
        return OutputBufferUse.of(given, (numbers[leaf] for leaf in donated), kept)

    # -- what can be asked --------------------------------------------------------------------------------------------

    def _asked(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Entry, list[Any]]:
        is_bound = bool(args) and owns(self, args[0])
        bound = args[0] if is_bound else None
        call = self._signature.taken_apart(args[1:] if is_bound else args, kwargs, bound, is_bound)
        return self._entry(call, config.resolve(self._options), bound)

    def _placed(self, entry: Entry) -> PlacedFusion:
        executable = entry.executable
        if isinstance(executable, EvaluatedExecutable):
            raise UnsupportedError("target='reference' has no segments", hint="leave target= out to see them")
        if executable is None:
            executable = compile_fusion(entry.trace.fusion, options=config.resolve(self._options))
        return PlacedFusion.from_executable(executable, entry.device, self._options)

    @source.hides_own_frames
    def definition(self, *args: Any, **kwargs: Any) -> FusionDefinition:
        """The definition of what is run for these arguments (arrays or ShapeDtypes); nothing runs."""
        entry, _ = self._asked(args, kwargs)
        if isinstance(entry.executable, EvaluatedExecutable):
            return FusionDefinition.from_fusion(entry.trace.fusion)
        return FusionDefinition.from_placed(self._placed(entry))

    @source.hides_own_frames
    def segments(self, *args: Any, **kwargs: Any) -> Segments[FusionDefinition]:
        """The segments in order, with their kernels, for these arguments (arrays or ShapeDtypes); nothing runs."""
        entry, arguments = self._asked(args, kwargs)
        placed = self._placed(entry)
        return FusionDefinition.from_placed(placed).segment(arguments, merge=placed.segmentation.merge)

    @source.hides_own_frames
    def host_program(self, *args: Any, **kwargs: Any) -> HostProgram:
        """What runs between the launches for these arguments (arrays or ShapeDtypes), as text and data."""
        entry, arguments = self._asked(args, kwargs)
        return HostProgram.of(self._placed(entry).plan_for(arguments)[0])

    @source.hides_own_frames
    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Why it was split as it was, what was captured and what was guarded; nothing runs."""
        entry, arguments = self._asked(args, kwargs)
        captured = tuple(capture.path for capture in entry.trace.captured)
        traced = tuple(map(str, (*entry.trace.guards, *entry.trace.scalar_guards)))
        return Explanation(*self._placed(entry).plan_for(arguments), captured, traced, str(entry.cause or ""))

    @source.hides_own_frames
    def concretization(self, *args: Any, **kwargs: Any) -> Concretization:
        """What is run for these arguments: static extents, splits and merges; nothing is compiled or runs."""
        entry, arguments = self._asked(args, kwargs)
        return self._placed(entry).concretization(arguments)

    @source.hides_own_frames
    def indexing(self, *args: Any, **kwargs: Any) -> Indexing:
        """Which axes share an index in which use, for these arguments (arrays or ShapeDtypes); nothing runs."""
        entry, arguments = self._asked(args, kwargs)
        return index_classes(self._placed(entry).plan_for(arguments)[0].segmentation.fusion)

    def cache_info(self) -> CacheInfo:
        """Counts of traces, of plans compiled (one for each set of guards), and of calls that found a trace."""
        return self._cache.info()

    def cache_clear(self) -> None:
        """Forgets every trace and sets the counts to 0."""
        self._cache.clear()

    # -- being a function ---------------------------------------------------------------------------------------------

    @overload
    def __get__(self, instance: None, owner: type) -> FusedFunction[P, R]: ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> BoundFusedFunction: ...

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else BoundFusedFunction(self, instance)

    def __reduce__(self) -> Any:
        """By name, as functions are pickled; PicklingError for one that its name does not lead to."""
        return by_name, (self.__module__, name_of(self))

    def __copy__(self) -> FusedFunction[P, R]:
        return self

    def __deepcopy__(self, memo: Any) -> FusedFunction[P, R]:
        """The function itself, as of Python's functions."""
        return self

    def __repr__(self) -> str:
        return f"<fused {self.__qualname__}>"


@overload
def fuse(function: Callable[P, R], /) -> FusedFunction[P, R]: ...


@overload
def fuse(
    function: None = None, /, *, static_argnums: int | Sequence[int] = (), static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (), donate_argnames: str | Sequence[str] = (),
    merge: Predicate | None = None, **options: Any,
) -> Callable[[Callable[P, R]], FusedFunction[P, R]]: ...  # fmt: skip


@source.hides_own_frames
def fuse(function: Any = None, /, **options: Any) -> Any:
    """Compiles a function of arrays: it is recorded once for each trace key, split into kernels, and run.

    Used as `@fuse`, `@fuse(option=value)` or `fuse(function)`. static_argnums, static_argnames: parameters whose
    values are part of the trace. donate_argnums, donate_argnames: arguments whose arrays are not needed after the call:
    results and intermediates may take their memory, and what they hold is unspecified then. merge: a predicate that
    says which groups of ops may not share a segment, see `tracefuse.rules`. Other keywords are options
    (`tracefuse.options`). Raises OptionError for an unknown one, TraceError for generators and async functions.
    """
    if function is None:
        return lambda decorated: fuse(decorated, **options)
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(fuse(function.__func__, **options))
    if isinstance(function, FusedFunction):
        return function
    return FusedFunction(function, **options)
