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
from tracefuse.frontend.calls.trace_entry import Entry, finish_call
from tracefuse.frontend.fuse import FusedFunction
from tracefuse.frontend.ranks.prepared_calls import PreparedCall, call_key, can_prepare
from tracefuse.frontend.ranks.rank_variants import RankVariant, RankVariants
from tracefuse.frontend.ranks.sharded_array import ShardedArray
from tracefuse.frontend.recorded_trace import Trace
from tracefuse.frontend.tracer.result_leaves import OutputLeaf
from tracefuse.ir.extents import evaluate
from tracefuse.ir.shardings import DeviceMesh, Sharding
from tracefuse.partition.over_ranks.propagation import Spec
from tracefuse.passes.pipeline import FUSION_PASSES, SEGMENT_PASSES, run_passes
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.devices.shape_dtype import ShapeDtype
from tracefuse.runtime.donated_arrays import DONORS

MOST_PREPARED = 256
register(Cache(
    "frontend.ranks.sharded_function.ShardedFusedFunction._prepared", "what known calls run",
    "rank; sharding, shape and type of each argument", f"{MOST_PREPARED}, the oldest go", "a function over a mesh",
    "`f.cache_clear()`",
))  # fmt: skip
_BEFORE_EXCHANGES = tuple(
    one for one in (*SEGMENT_PASSES, *FUSION_PASSES) if one.name in ("decompose", "merge_common", "drop_dead")
)
"""The passes that run before exchanges are placed: a composite reduction is several exchanges."""


class ShardedFusedFunction(FusedFunction[..., Any]):
    """A function over a mesh. in_shardings: one for all arguments or one for each; out_shardings: of the results."""

    def __init__(
        self, function: Callable[..., Any], *, in_shardings: Any = None, out_shardings: Any = None, **more: Any
    ) -> None:
        super().__init__(function, **more)
        self.in_shardings, self.out_shardings = in_shardings, out_shardings
        self.mesh = _mesh_of(in_shardings, out_shardings)
        self._has_fast_path = False
        self._prepared: BoundedTable[Any, PreparedCall] = BoundedTable(MOST_PREPARED)

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
        call, parts = self._call_over_mesh(args)
        entry, arguments = self._find_entry(call, config.resolve(self._options))
        facts = entry.trace.facts(arguments)
        variant = entry.over_ranks.variant(facts)
        outputs = variant.executable(self._local_arguments(entry, variant, arguments, parts, facts))
        wrapped = [self._result(output, variant, position, facts) for position, output in enumerate(outputs)]
        if key is not None and can_prepare(entry, len(args)):
            more = self._further_arguments(variant, facts)
            self._prepared[key] = PreparedCall(entry, variant, args, more, wrapped)
        leaves = pytrees.flatten((list(args), {}))[0]
        return finish_call(entry, leaves, arguments, wrapped, call.roots)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Returns how this rank's call is compiled, and every exchange; takes the arguments of a call."""
        entry, variant, arguments = self._variant_of(args)
        exchanges = tuple(map(str, variant.local.exchanges))
        plan = PlacedFusion.from_executable(variant.executable, entry.device, self._options).plan_for(arguments)
        return Explanation(*plan, **entry.facts_to_explain(), exchanges=exchanges)

    def exchanges(self, *args: Any) -> tuple[Any, ...]:
        """Returns the exchanges of a call with these arguments: kind, mesh axis, value, bytes, line and reason."""
        return self._variant_of(args)[1].local.exchanges

    def _variant_of(self, args: Sequence[Any]) -> tuple[Entry, RankVariant, list[Any]]:
        """Returns the entry of a call, what this rank runs, and the arguments of that."""
        call, parts = self._call_over_mesh(args)
        entry, arguments = self._find_entry(call, config.resolve(self._options))
        facts = entry.trace.facts(arguments)
        variant = entry.over_ranks.variant(facts)
        return entry, variant, self._local_arguments(entry, variant, arguments, parts, facts)

    def _inspect(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Entry, list[Any]]:
        entry, variant, arguments = self._variant_of(args)
        entry.executable = variant.executable
        return entry, arguments

    def _local_arguments(
        self, entry: Entry, variant: RankVariant, arguments: Sequence[Any], parts: Mapping[int, Any],
        facts: Mapping[int, Any],
    ) -> list[Any]:  # fmt: skip
        """Returns the arguments of this rank's fusion: parts, other arguments, its place in the mesh, and extents."""
        given = [
            parts[origin] if origin >= 0 and origin in parts else argument
            for origin, argument in zip(entry.trace.sources, arguments, strict=True)
        ]
        return [*given, *self._further_arguments(variant, facts)]

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

    def _call_over_mesh(self, args: Sequence[Any]) -> tuple[CallArguments, dict[int, Any]]:
        """Returns the call with descriptions of whole arrays, and the parts of this rank by leaf."""
        shardings = self._shardings_of(args)
        stand_ins, specs = [], []
        for argument, sharding in zip(args, shardings, strict=True):
            leaves, structure = pytrees.flatten(argument)
            wholes = [self._whole(leaf, sharding) for leaf in leaves]
            stand_ins.append(pytrees.unflatten(structure, [whole for whole, _, _ in wholes]))
            specs += [(part, spec) for _, part, spec in wholes]
        call = self._signature.flatten_call(stand_ins, {}, None, False)
        named = [(part, leaf.path) for (part, _), leaf in zip(specs, call.leaves, strict=True) if leaf.is_array]
        kind, device = arrays.place_of(named)
        placed = tuple(spec for _, spec in specs)
        call = call._replace(key=(*call.key, kind, device, placed), kind=kind, device=device)
        parts = {k: part for k, ((part, _), leaf) in enumerate(zip(specs, call.leaves, strict=True)) if leaf.is_array}
        return call, parts

    def _shardings_of(self, args: Sequence[Any]) -> Sequence[Sharding | None]:
        if isinstance(self.in_shardings, (Sharding, type(None))):
            return [self.in_shardings] * len(args)
        if len(self.in_shardings) != len(args):
            raise FusionError(
                f"{self.__qualname__} has {len(self.in_shardings)} in_shardings and takes {len(args)} arguments",
                hint="give one for each argument, None for one that all ranks have in full",
            )
        return self.in_shardings  # type: ignore[no-any-return]

    def _whole(self, leaf: Any, sharding: Sharding | None) -> tuple[Any, Any, Spec | None]:
        """Returns the description of a whole array, this rank's part, and the sharding by axis."""
        if isinstance(leaf, ShardedArray):
            if sharding is not None and leaf.sharding != sharding:
                raise FusionError(
                    f"{self.__qualname__} takes an array {sharding}, got one {leaf.sharding}",
                    hint="call tracefuse.reshard(x, sharding) first",
                )
            part, shape, sharding = leaf.local, leaf.shape, leaf.sharding
        elif arrays.kind_of(leaf) is None or not getattr(leaf, "ndim", 0):
            return leaf, leaf, None
        else:
            sharding = sharding or Sharding(self.mesh)
            sharding.check_axes(leaf.shape)
            part, shape = leaf, tuple(e * sharding.parts(axis) for axis, e in enumerate(leaf.shape))
        spec = tuple(sharding.names(axis) for axis in range(len(shape)))
        return ShapeDtype(shape, part.dtype), part, spec

    # -- compilation --------------------------------------------------------------------------------------------------

    def _trace(self, call: CallArguments, options: Options, same: Any, discovery: Any = None) -> Entry:
        entry = super()._trace(call, options, same, None)
        trace = entry.trace
        _check_is_pure(trace, self.__qualname__)
        placed = call.key[-1]
        inputs = {
            number: placed[origin]
            for number, origin in zip(trace.fusion.inputs, trace.sources, strict=True)
            if origin >= 0 and placed[origin] is not None
        }
        fusion = run_passes(_BEFORE_EXCHANGES, trace.fusion, options)
        entry.over_ranks = RankVariants(
            fusion, self.mesh, inputs, self._wanted(trace),
            lambda local: cast("Executable", FusedFunction._compile(self, local, options, call.device)),
            options.pipelined_exchanges,
        )  # fmt: skip
        return entry

    def _compile(self, *_: Any, **__: Any) -> Any:
        """Compiles nothing: what runs is the fusion of a rank, which `_trace` derives."""
        return None

    def _tree(self, call: CallArguments, options: Options) -> Any:
        return None

    def _wanted(self, trace: Trace) -> list[Spec | None]:
        """Returns the wanted sharding of each output, None for what propagation gives."""
        wanted: list[Spec | None] = [None] * len(trace.fusion.outputs)
        given = self.out_shardings
        results = [leaf.position if isinstance(leaf, OutputLeaf) else None for leaf in trace.results]
        if given is None:
            return [() if not trace.fusion.values[n].shape else None for n in trace.fusion.outputs]
        each = [given] * len(results) if isinstance(given, Sharding) else list(given)
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
    for given in shardings:
        flat += [given] if isinstance(given, (Sharding, type(None))) else list(given)
    wrong = [one for one in flat if not isinstance(one, (Sharding, type(None)))]
    if wrong:
        raise FusionError(
            f"a sharding cannot be {shown(wrong[0])}", hint='give Sharding(mesh, ("data", None)), or None'
        )
    meshes = {one.mesh for one in flat if one is not None}
    if len(meshes) != 1:
        raise FusionError(f"the shardings name {len(meshes)} meshes", hint="use shardings over one mesh")
    return meshes.pop()
