"""`@fuse(in_shardings=, out_shardings=)`: a function of whole arrays that runs on the parts of each rank.

The function is traced with the shapes of whole arrays. Shardings propagate through the trace, and every rank compiles
the fusion of its parts, with the exchanges that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tracefuse import config, pytrees
from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.compiler.executable import Executable
from tracefuse.compiler.placed_fusion import PlacedFusion
from tracefuse.config import Options, overrides
from tracefuse.diagnostics.explain import Explanation
from tracefuse.errors import FusionError, ShapeError, UnsupportedError, shown
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.compiled_stages import Environment
from tracefuse.frontend.calls.question_tree import QuestionTree
from tracefuse.frontend.calls.trace_entry import Entry, finish_call
from tracefuse.frontend.fuse import FusedFunction
from tracefuse.frontend.python_numbers import number_conditions
from tracefuse.frontend.ranks.prepared_calls import PreparedCall, call_key, can_prepare
from tracefuse.frontend.ranks.rank_stages import RankStage, RankStageCompiler, WholeArgument, is_sharded, spec_of
from tracefuse.frontend.ranks.rank_variants import RankVariant, RankVariants, prepared
from tracefuse.frontend.ranks.sharded_array import ShardedArray, reshard
from tracefuse.frontend.recorded_trace import Trace
from tracefuse.frontend.trace_cache import TraceCache
from tracefuse.frontend.tracer.effects.questions import CONDITIONS
from tracefuse.frontend.tracer.values.result_leaves import OutputLeaf
from tracefuse.ir.extents import evaluate
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.shardings import DeviceMesh, Sharding
from tracefuse.partition.over_ranks.exchange_recorder import PlannedExchange
from tracefuse.partition.over_ranks.placements import Spec
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.donated_arrays import DONORS
from tracefuse.runtime.memory.buffer_facts import returned

MOST_PREPARED = 256
register(Cache(
    "frontend.ranks.sharded_function.ShardedFusedFunction._prepared", "what known calls run",
    "rank; sharding, shape and type of each argument", f"{MOST_PREPARED}, the oldest go", "a function over a mesh",
    "`f.cache_clear()`",
))  # fmt: skip


class ShardedFusedFunction(FusedFunction[..., Any]):
    """A function over a mesh. in_shardings: one for all arguments or one for each; out_shardings: of the results."""

    def __init__(
        self, function: Callable[..., Any], *, in_shardings: Any = None, out_shardings: Any = None, **more: Any
    ) -> None:
        self._caches: dict[int, TraceCache] = {}
        super().__init__(function, **more)
        self.in_shardings, self.out_shardings = in_shardings, out_shardings
        self.mesh = _mesh_of(in_shardings, out_shardings)
        self._has_fast_path = False
        self._prepared: BoundedTable[Any, PreparedCall] = BoundedTable(MOST_PREPARED)

    @property
    def _cache(self) -> TraceCache:
        """The traces of this rank: a trace may run exchanges, and ranks that are threads do not wait for its lock."""
        rank = current_world().rank
        return self._caches.get(rank) or self._caches.setdefault(rank, TraceCache())

    @_cache.setter
    def _cache(self, cache: TraceCache) -> None:
        """Each rank makes its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise UnsupportedError(
                f"{self.__qualname__} has shardings, and got keyword arguments", hint="pass arguments by position"
            )
        key = None if overrides() is not None or DONORS else call_key(args, current_world().rank)
        prepared = self._prepared.get(key)
        if prepared is not None:
            self._cache.hits += 1
            return prepared(args)
        call = self._call_over_mesh(args)
        try:
            return self._run(call, args, key)
        except number_conditions.ConditionFailed:
            return self._run(call.asking(), args, None)

    def _run(self, call: CallArguments, args: Sequence[Any], key: Any) -> Any:
        """Runs a call. key: of what it prepares for calls like it, None for nothing."""
        options = config.resolve(self._options)
        answered = self._follow_tree(call, options)
        if answered is not None:
            return self._finished(*answered, call, args)
        entry, arguments = self._find_entry(call, options, self._tree(call, options))
        if entry.values is not None:
            return self._finished(entry, entry.take_values(), call, args)
        facts = entry.trace.facts(arguments)
        variant = entry.over_ranks.variant(facts)
        outputs = variant.executable(self._local_arguments(variant, arguments, facts))
        outputs = number_conditions.check(entry.trace, outputs)
        wrapped = [self._result(output, variant, position, facts) for position, output in enumerate(outputs)]
        if key is not None and can_prepare(entry, len(args)):
            more = self._further_arguments(variant, facts)
            self._prepared[key] = PreparedCall(entry, variant, args, more, wrapped)
        leaves = pytrees.flatten((list(args), {}))[0]
        return finish_call(entry, leaves, arguments, wrapped, call.roots)

    def _finished(self, entry: Entry, environment: Environment, call: CallArguments, args: Sequence[Any]) -> Any:
        """Returns the result of a call that ran along a tree of questions."""
        trace, values = entry.trace, environment.values
        _check_is_pure(trace, self.__qualname__)
        numbers = returned(trace.fusion)
        number_conditions.check(trace, [values[number] for number in numbers])
        numbers = numbers[: number_conditions.position(trace)]
        results = [
            self._with_sharding(values[number], spec)
            for number, spec in zip(numbers, self._wanted(trace), strict=False)
        ]
        arguments = [values[number] for number in trace.fusion.inputs]
        leaves = pytrees.flatten((list(args), {}))[0]
        return finish_call(entry, leaves, arguments, results, call.roots)

    def _with_sharding(self, value: Any, spec: Spec | None) -> ShardedArray:
        """Returns a value of a stage as a sharded array, in the wanted sharding."""
        if is_sharded(value):
            array = ShardedArray.known(value.local, value.sharding, value.shape)
        else:
            array = ShardedArray.known(value, Sharding(self.mesh, ((),) * value.ndim), value.shape)
        return array if spec is None else reshard(array, Sharding(self.mesh, spec))

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Returns how this rank's call is compiled, and every exchange; takes the arguments of a call."""
        entry, variant, arguments = self._variant_of(args)
        exchanges = tuple(map(str, variant.local.exchanges))
        plan = PlacedFusion.from_executable(variant.executable, entry.device, self._options).plan_for(arguments)
        return Explanation(*plan, **entry.facts_to_explain(), exchanges=exchanges)

    def exchanges(self, *args: Any) -> tuple[Any, ...]:
        """Returns the exchanges of a call with these arguments: kind, mesh axis, value, bytes, line and reason."""
        tree = self._known_tree(self._call_over_mesh(args))
        return self._variant_of(args)[1].local.exchanges if tree is None else _exchanges_of(tree)

    def _known_tree(self, call: CallArguments) -> QuestionTree | None:
        """Returns the tree of a call of a function that asks questions, None if no call has met one."""
        options = config.resolve(self._options)
        known = (self._cache.trees.get((options, (candidate.key,))) for candidate in (call, call.asking()))
        return next((tree for tree in known if tree is not None), None)

    def _variant_of(self, args: Sequence[Any]) -> tuple[Entry, RankVariant, list[Any]]:
        """Returns the entry of a call, what this rank runs, and the arguments of that."""
        call, options = self._call_over_mesh(args), config.resolve(self._options)
        known = self._known_tree(call)
        entry, arguments = (None, []) if known else self._find_entry(call, options, self._tree(call, options))
        if entry is None or entry.values is not None:
            raise UnsupportedError(
                f"{self.__qualname__} asks about computed values, so that each call runs several fusions",
                hint="call it, and print f.exchanges(*args), which lists the exchanges of its stages so far",
            )
        facts = entry.trace.facts(arguments)
        variant = entry.over_ranks.variant(facts)
        return entry, variant, self._local_arguments(variant, arguments, facts)

    def _inspect(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Entry, list[Any]]:
        entry, variant, arguments = self._variant_of(args)
        entry.executable = variant.executable
        return entry, arguments

    def _local_arguments(
        self, variant: RankVariant, arguments: Sequence[Any], facts: Mapping[int, Any]
    ) -> list[Any]:  # fmt: skip
        """Returns the arguments of this rank's fusion: parts, other arguments, its place in the mesh, and extents."""
        local_arguments = [argument.local if is_sharded(argument) else argument for argument in arguments]
        return [*local_arguments, *self._further_arguments(variant, facts)]

    def _further_arguments(self, variant: RankVariant, facts: Mapping[int, Any]) -> list[Any]:
        """Returns the place of the rank in the mesh, and the extents of whole axes that its fusion takes."""
        return [*self.mesh.coordinates(current_world().rank), *(facts[key] for key in variant.whole_ids)]

    def cache_clear(self) -> None:
        """Drops every trace and resets the counts to 0."""
        self._prepared.clear()
        super().cache_clear()

    def _result(self, output: Any, variant: RankVariant, position: int, facts: Any) -> Any:
        shape = [evaluate(e, facts) for e in variant.shapes[position]]
        return ShardedArray(output, Sharding(self.mesh, variant.local.outputs[position]), shape)

    # -- arguments ----------------------------------------------------------------------------------------------------

    def _call_over_mesh(self, args: Sequence[Any]) -> CallArguments:
        """Returns the call with whole arrays, each with the part of this rank."""
        whole_arguments = []
        for argument, sharding in zip(args, self._shardings_of(args), strict=True):
            leaves, structure = pytrees.flatten(argument)
            whole_arguments.append(pytrees.unflatten(structure, [self._whole(leaf, sharding) for leaf in leaves]))
        call = self._signature.flatten_call(whole_arguments, {}, None, False)
        values = [leaf.value for leaf in call.leaves]
        named = [
            (value.local if is_sharded(value) else value, leaf.path)
            for value, leaf in zip(values, call.leaves, strict=True)
            if leaf.is_array
        ]
        kind, device = arrays.place_of(named)
        placed = tuple(spec_of(value) if is_sharded(value) else None for value in values)
        return call._replace(key=(*call.key, kind, device, placed), kind=kind, device=device)

    def _shardings_of(self, args: Sequence[Any]) -> Sequence[Sharding | None]:
        if isinstance(self.in_shardings, (Sharding, type(None))):
            return [self.in_shardings] * len(args)
        if len(self.in_shardings) != len(args):
            raise FusionError(
                f"{self.__qualname__} has {len(self.in_shardings)} in_shardings and takes {len(args)} arguments",
                hint="give one for each argument, None for one that all ranks have in full",
            )
        return self.in_shardings  # type: ignore[no-any-return]

    def _whole(self, leaf: Any, sharding: Sharding | None) -> Any:
        """Returns a whole array with this rank's part; what is no array as it is."""
        if isinstance(leaf, ShardedArray):
            if sharding is not None and leaf.sharding != sharding:
                raise FusionError(
                    f"{self.__qualname__} takes an array {sharding}, got one {leaf.sharding}",
                    hint="call tracefuse.reshard(x, sharding) first",
                )
            part, shape, sharding = leaf.local, leaf.shape, leaf.sharding
        elif arrays.kind_of(leaf) is None or not getattr(leaf, "ndim", 0):
            return leaf
        else:
            sharding = sharding or Sharding(self.mesh)
            sharding.check_axes(leaf.shape)
            part, shape = leaf, tuple(e * sharding.parts(axis) for axis, e in enumerate(leaf.shape))
        return WholeArgument(shape, part.dtype, part, sharding)

    # -- compilation --------------------------------------------------------------------------------------------------

    def _trace(self, call: CallArguments, options: Options, same: Any, discovery: Any = None) -> Entry:
        # Propagation of shardings has no rule for extents that depend on the counter of a loop.
        entry = super()._trace(call, options.replaced(loops="unroll"), same, discovery)
        if entry.values is not None:
            return entry
        trace = entry.trace
        _check_is_pure(trace, self.__qualname__)
        leaves = [leaf.value for leaf in call.leaves]
        inputs = {
            number: spec_of(leaves[origin])
            for number, origin in zip(trace.fusion.inputs, trace.sources, strict=True)
            if origin >= 0 and is_sharded(leaves[origin])
        }
        device = call.device  # the entry outlives the call, and must not keep its arguments
        fusion = prepared(trace.fusion, options)
        entry.over_ranks = RankVariants(
            fusion, self.mesh, inputs, self._wanted(trace), lambda local: self._compile_local(local, options, device),
            options.pipelined_exchanges,
        )  # fmt: skip
        return entry

    def _compile(self, *_: Any, **__: Any) -> Any:
        """Compiles nothing: what runs is the fusion of a rank, which `_trace` derives."""
        return None

    def _compile_local(self, local: Fusion, options: Options, device: int | None) -> Executable:
        return cast("Executable", FusedFunction._compile(self, local, options, ("ranks", device)))

    def _tree(self, call: CallArguments, options: Options) -> QuestionTree:
        """An empty tree for calls like this one, whose stages are placed over the mesh."""
        device = call.device

        def compile_stage(fusion: Fusion) -> Any:
            return RankStage(
                prepared(fusion, options), self.mesh,
                lambda local: self._compile_local(local, options, device), options.pipelined_exchanges,
            )  # fmt: skip

        compiler = RankStageCompiler(compile_stage, options.target, device, self.mesh)
        return QuestionTree(compiler, call.kind, None, frozenset({CONDITIONS} if call.asks_conditions else ()))

    def _wanted(self, trace: Trace) -> list[Spec | None]:
        """Returns the wanted sharding of each output, None for what propagation gives."""
        wanted: list[Spec | None] = [None] * len(trace.fusion.outputs)
        shardings = self.out_shardings
        results = [leaf.position if isinstance(leaf, OutputLeaf) else None for leaf in trace.results]
        if shardings is None:
            return [() if not trace.fusion.values[n].shape else None for n in trace.fusion.outputs]
        each = [shardings] * len(results) if isinstance(shardings, Sharding) else list(shardings)
        if len(each) != len(results):
            raise FusionError(
                f"{self.__qualname__} has {len(each)} out_shardings and returns {len(results)} values",
                hint="give one for each result",
            )
        for position, sharding in zip(results, each, strict=True):
            if position is not None and sharding is not None:
                shape = trace.fusion.values[trace.fusion.outputs[position]].shape
                if len(sharding.spec) > len(shape):
                    raise ShapeError(f"{sharding} of a result with {len(shape)} axes", hint="name fewer axes")
                wanted[position] = tuple(sharding.names(axis) for axis in range(len(shape)))
        return wanted


def _exchanges_of(tree: QuestionTree) -> tuple[PlannedExchange, ...]:
    """Returns the exchanges of the stages of a tree, in the order of the stages."""
    exchanges: list[PlannedExchange] = []
    waiting = list(tree.roots)
    while waiting:
        node = waiting.pop(0)
        stage = None if node.compiled is None else node.compiled.executable
        exchanges += stage.exchanges if isinstance(stage, RankStage) else ()
        if isinstance(tree.compiler, RankStageCompiler) and node.stage.question is not None:
            exchanges += tree.compiler.exchanges_of(node.stage)
        waiting = [*(child for level in node.children.values() for child in level), *waiting]
    return tuple(exchanges)


def _check_is_pure(trace: Trace, name: str) -> None:
    """Raises UnsupportedError for what a function over ranks does not do."""
    reasons = {
        "changes an argument in place": bool(trace.fusion.aliases or trace.updated_numbers),
        "changes state outside of it": bool(trace.writes),
        "prints traced values": bool(trace.prints),
        "computes from captured state alone": trace.prologue is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedError(
                f"{name} has shardings and {reason}", hint="pass arrays as arguments, and return what changes"
            )


def _mesh_of(*shardings: Any) -> DeviceMesh:
    """Returns the mesh of all shardings. Raises FusionError if there is none, or several."""
    flat = []
    for entry in shardings:
        flat += [entry] if isinstance(entry, (Sharding, type(None))) else list(entry)
    wrong = [sharding for sharding in flat if not isinstance(sharding, (Sharding, type(None)))]
    if wrong:
        raise FusionError(
            f"a sharding cannot be {shown(wrong[0])}", hint='give Sharding(mesh, ("data", None)), or None'
        )
    meshes = {sharding.mesh for sharding in flat if sharding is not None}
    if len(meshes) != 1:
        raise FusionError(f"the shardings name {len(meshes)} meshes", hint="use shardings over one mesh")
    return meshes.pop()
