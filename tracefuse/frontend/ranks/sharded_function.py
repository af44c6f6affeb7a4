"""`@fuse(in_shardings=, out_shardings=)`: a function of whole arrays that runs on the parts of each rank.

The function is traced with the shapes of whole arrays. Shardings propagate through the trace, and every rank compiles
the fusion of its parts, with the exchanges that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracefuse import config, pytrees
from tracefuse.compiler.executable import Executable
from tracefuse.config import Options
from tracefuse.diagnostics.explain import Explanation
from tracefuse.errors import FusionError, ShapeError, UnsupportedError, shown
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.trace_entry import Entry, finish_call
from tracefuse.frontend.fuse import FusedFunction
from tracefuse.frontend.ranks.sharded_array import ShardedArray
from tracefuse.frontend.recorded_trace import Trace
from tracefuse.frontend.tracer.result_leaves import OutputLeaf
from tracefuse.ir.extents import evaluate
from tracefuse.ir.shardings import DeviceMesh, Sharding
from tracefuse.partition.over_ranks.local_fusion import LocalFusion, localize
from tracefuse.partition.over_ranks.propagation import Spec
from tracefuse.passes.pipeline import FUSION_PASSES, SEGMENT_PASSES, run_passes
from tracefuse.runtime.communicators.launch import current_world
from tracefuse.runtime.communicators.rank_groups import RankGroup
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.devices.arrays import ShapeDtype

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
        self._local: dict[int, _LocalExecutable] = {}
        self._has_fast_path = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            raise UnsupportedError(
                f"{self.__qualname__} has shardings, and got keyword arguments", hint="pass arguments by position"
            )
        call, parts = self._call_over_mesh(args)
        entry, arguments = self._find_entry(call, config.resolve(self._options))
        executable = self._local[id(entry)]
        outputs = executable.run(self._local_arguments(entry, arguments, parts))
        facts = entry.trace.facts(arguments)
        wrapped = [self._result(output, executable, position, facts) for position, output in enumerate(outputs)]
        leaves = pytrees.flatten((list(args), {}))[0]
        return finish_call(entry, leaves, arguments, wrapped, call.roots)

    def explain(self, *args: Any, **kwargs: Any) -> Explanation:
        """Returns how this rank's call is compiled, and every exchange; takes the arguments of a call."""
        entry, arguments = self._inspect(args, kwargs)
        exchanges = tuple(map(str, self._local[id(entry)].local.exchanges))
        plan = self._place(entry).plan_for(arguments)
        return Explanation(*plan, **entry.facts_to_explain(), exchanges=exchanges)

    def _inspect(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Entry, list[Any]]:
        call, parts = self._call_over_mesh(args)
        entry, arguments = self._find_entry(call, config.resolve(self._options))
        return entry, self._local_arguments(entry, arguments, parts)

    def _local_arguments(self, entry: Entry, arguments: Sequence[Any], parts: Mapping[int, Any]) -> list[Any]:
        """Returns the arguments of this rank's fusion: parts, other arguments, and its place in the mesh."""
        given = [
            parts[origin] if origin >= 0 and origin in parts else argument
            for origin, argument in zip(entry.trace.sources, arguments, strict=True)
        ]
        return [*given, *self.mesh.coordinates(current_world().rank)]

    def exchanges(self, *args: Any) -> tuple[Any, ...]:
        """Returns the exchanges of a call with these arguments: kind, mesh axis, value, bytes, line and reason."""
        return self._local_of(args).local.exchanges

    def _local_of(self, args: Sequence[Any]) -> _LocalExecutable:
        call, _ = self._call_over_mesh(args)
        entry, _ = self._find_entry(call, config.resolve(self._options))
        return self._local[id(entry)]

    def _result(self, output: Any, executable: _LocalExecutable, position: int, facts: Any) -> Any:
        spec = executable.local.outputs[position]
        if executable.is_plain[position]:
            return output
        shape = [evaluate(e, facts) for e in executable.shapes[position]]
        return ShardedArray(output, Sharding(self.mesh, spec), shape)

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
        divides = tuple(leaf.is_array and self._divisible(leaf.value.shape) for leaf in call.leaves)
        call = call._replace(key=(*call.key, kind, device, divides, placed), kind=kind, device=device)
        parts = {k: part for k, ((part, _), leaf) in enumerate(zip(specs, call.leaves, strict=True)) if leaf.is_array}
        return call, parts

    def _divisible(self, shape: Sequence[int]) -> tuple[bool, ...]:
        """Returns which axes have equal parts along which mesh axes, which decides how values are split."""
        return tuple(extent % size == 0 for extent in shape for size in self.mesh.shape)

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
        for axis, extent in enumerate(shape):
            if extent % sharding.parts(axis) != 0:
                raise ShapeError(
                    f"{self.__qualname__}: the {sharding.parts(axis)} parts of axis {axis}, of {extent} elements, "
                    "are not equal",
                    hint="pad the axis to a multiple of its parts",
                )
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
        wanted = self._wanted(trace)
        sizes = _sizes_of(trace, call)
        plain = run_passes(_BEFORE_EXCHANGES, trace.fusion, options)
        local = localize(plain, self.mesh, sizes, inputs, [None if w is None else w[0] for w in wanted], RankGroup)
        shapes = [trace.fusion.values[number].shape for number in trace.fusion.outputs]
        executable = entry.executable = super()._compile(local.fusion, options, call.device)
        assert isinstance(executable, Executable)
        is_plain = [w is not None and w[1] for w in wanted]
        self._local[id(entry)] = _LocalExecutable(local, executable, shapes, is_plain, entry)
        return entry

    def _compile(self, *_: Any, **__: Any) -> Any:
        """Compiles nothing: what runs is the fusion of a rank, which `_trace` derives."""
        return None

    def _tree(self, call: CallArguments, options: Options) -> Any:
        return None

    def _wanted(self, trace: Trace) -> list[tuple[Spec, bool] | None]:
        """Returns the wanted sharding of each output, and whether it is returned as a plain array; None: any."""
        wanted: list[tuple[Spec, bool] | None] = [None] * len(trace.fusion.outputs)
        given = self.out_shardings
        results = [leaf.position if isinstance(leaf, OutputLeaf) else None for leaf in trace.results]
        if given is None:
            return [((), False) if not trace.fusion.values[n].shape else None for n in trace.fusion.outputs]
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
                wanted[position] = tuple(sharding.names(axis) for axis in range(len(shape))), False
        return wanted


class _LocalExecutable:
    """What a rank runs for an entry. shapes: of the whole outputs. is_plain: which outputs are returned as they are."""

    def __init__(
        self, local: LocalFusion, run: Executable, shapes: Sequence[Any], is_plain: Sequence[bool], entry: Entry
    ) -> None:
        self.local, self.run, self.shapes, self.is_plain, self.entry = local, run, shapes, is_plain, entry


def _sizes_of(trace: Trace, call: CallArguments) -> dict[int, Any]:
    """Returns the extents and scalars of the traced call."""
    values = [call.leaves[origin] if origin >= 0 else None for origin in trace.sources]
    by_value = dict(zip(trace.fusion.inputs, values, strict=True))
    captured = {
        number: trace.captured[-origin - 1].array
        for number, origin in zip(trace.fusion.inputs, trace.sources, strict=True)
        if origin < 0
    }
    sizes: dict[int, Any] = {}
    for key, value, axis in trace.fusion.axis_ids():
        leaf = by_value[value]
        sizes[key] = (captured[value] if leaf is None else leaf.value).shape[axis]
    for number in trace.fusion.scalar_inputs:
        leaf = by_value[number]
        sizes[number] = captured[number] if leaf is None else leaf.number
    return sizes


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
