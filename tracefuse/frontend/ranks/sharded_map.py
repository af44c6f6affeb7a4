"""`shard_map`: runs a function on the parts of sharded arrays, one rank at a time, as jax.shard_map.

The function is fused and sees this rank's parts. It exchanges data by the functions of `tracefuse.collectives` alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tracefuse import pytrees
from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.errors import FusionError, ShapeError, TraceError, shown
from tracefuse.frontend.fuse import FusedFunction
from tracefuse.frontend.ranks.current_mesh import on_mesh
from tracefuse.frontend.ranks.sharded_array import ShardedArray
from tracefuse.ir.shardings import DeviceMesh, Sharding
from tracefuse.runtime.communicators.launch import current_world

MOST_KNOWN = 256
register(Cache(
    "frontend.ranks.sharded_map.ShardMapped._known", "shardings that were checked",
    "sharding and shape of each argument", f"{MOST_KNOWN}, the oldest go", "a function on parts", "with the function",
))  # fmt: skip


class ShardMapped:
    """A function that `shard_map` wraps. Each rank has a fused function of its own, also where ranks are threads."""

    def __init__(
        self, function: Callable[..., Any], mesh: DeviceMesh, in_specs: Any, out_specs: Any, options: dict[str, Any]
    ) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.mesh, self.in_specs, self.out_specs, self._options = mesh, in_specs, out_specs, options
        self._function = function
        self._of_rank: dict[int, tuple[FusedFunction[..., Any], tuple[int, ...]]] = {}
        self._known: BoundedTable[Any, list[Sharding]] = BoundedTable(MOST_KNOWN)

    def __call__(self, *args: Any) -> Any:
        fused, place = self._fused(current_world().rank)
        result = fused(*self._local(args), *place)
        if isinstance(self.out_specs, Sharding) and hasattr(result, "shape"):
            return _sharded(result, self.out_specs)
        return _with_specs(result, self.out_specs, self.mesh, self.__name__)

    def _local(self, args: Sequence[Any]) -> list[Any]:
        """Returns the arguments of this rank. Sharded arrays like those of an earlier call are not checked again."""
        sharded = [x for x in args if type(x) is ShardedArray]
        key = None
        if len(sharded) == len(args):
            key = tuple([(id(x.sharding), x.shape) for x in sharded])
            if self._known.get(key) is not None:
                return [x.local for x in sharded]
        local = [self._parts(x, spec) for x, spec in zip(args, self._specs_of(args), strict=True)]
        if key is not None:
            self._known[key] = [x.sharding for x in sharded]  # keeps those alive whose identities are in the key
        return local

    def explain(self, *args: Any) -> Any:
        """Returns what `explain` of the fused function returns, for this rank's parts."""
        return self._inspected("explain", args)

    def host_program(self, *args: Any) -> Any:
        """Returns the host program of this rank."""
        return self._inspected("host_program", args)

    def segments(self, *args: Any) -> Any:
        """Returns the segments that this rank runs."""
        return self._inspected("segments", args)

    def _inspected(self, method: str, args: Sequence[Any]) -> Any:
        fused, place = self._fused(current_world().rank)
        return getattr(fused, method)(*self._local(args), *place)

    def _fused(self, rank: int) -> tuple[FusedFunction[..., Any], tuple[int, ...]]:
        """Returns the fused function of a rank, and its place in the mesh, the last arguments."""
        known = self._of_rank.get(rank)
        if known is None:
            if rank not in self.mesh.ranks:
                raise FusionError(f"rank {rank} is not in {self.mesh}", hint="call the function on the mesh's ranks")
            fused = FusedFunction(_on_parts(self._function, self.mesh), **self._options)
            known = self._of_rank[rank] = fused, tuple(self.mesh.coordinates(rank))
        return known

    def _specs_of(self, args: Sequence[Any]) -> Sequence[Any]:
        if isinstance(self.in_specs, (Sharding, type(None))):
            return [self.in_specs] * len(args)
        if len(self.in_specs) != len(args):
            raise TraceError(
                f"{self.__name__} has {len(self.in_specs)} in_specs and takes {len(args)} arguments",
                hint="give one for each argument, None for one that all ranks have in full",
            )
        return self.in_specs  # type: ignore[no-any-return]

    def _parts(self, x: Any, spec: Sharding | None) -> Any:
        """Returns the parts of an argument's arrays. A plain array is this rank's part."""
        leaves, structure = pytrees.flatten(x)
        return pytrees.unflatten(structure, [_part(leaf, spec, self.__name__) for leaf in leaves])


def _on_parts(function: Callable[..., Any], mesh: DeviceMesh) -> Callable[..., Any]:
    """Returns the function with the place of the rank along each mesh axis as further arguments, the last ones."""
    count = len(mesh.names)

    @functools.wraps(function)
    def on_parts(*args: Any) -> Any:
        with on_mesh(mesh, args[-count:]):
            return function(*args[:-count])

    return on_parts


def _part(leaf: Any, spec: Sharding | None, name: str) -> Any:
    if not isinstance(leaf, ShardedArray):
        return leaf
    if spec is None and leaf.sharding.is_replicated:
        return leaf.local
    if leaf.sharding != spec:
        raise FusionError(
            f"{name} takes an array {spec or 'that is not sharded'}, got one {leaf.sharding}",
            hint="call tracefuse.reshard(x, sharding) first",
        )
    for axis, extent in enumerate(leaf.shape):
        if extent % spec.parts(axis) != 0:
            raise ShapeError(
                f"{name}: axis {axis} has {extent} elements in {spec.parts(axis)} parts, which are not equal",
                hint="pad the axis to a multiple of its parts",
            )
    return leaf.local


def _with_specs(result: Any, specs: Any, mesh: DeviceMesh, name: str) -> Any:
    """Returns the results as sharded arrays. None leaves an array, which is equal on all ranks, as it is."""
    if specs is None:
        return result
    if isinstance(specs, Sharding):
        leaves, structure = pytrees.flatten(result)
        return pytrees.unflatten(structure, [_sharded(leaf, specs) for leaf in leaves])
    if not isinstance(result, (tuple, list)) or len(specs) != len(result):
        raise FusionError(
            f"{name} has {len(specs)} out_specs and returns {shown(result)}", hint="give one for each result"
        )
    return type(result)(_with_specs(entry, spec, mesh, name) for entry, spec in zip(result, specs, strict=True))


def _sharded(part: Any, spec: Sharding) -> ShardedArray:
    spec.check_axes(part.shape)
    return ShardedArray.known(
        part, spec, tuple(extent * spec.parts(axis) for axis, extent in enumerate(part.shape))
    )  # fmt: skip


def shard_map(
    f: Callable[..., Any] | None = None, /, *, mesh: DeviceMesh, in_specs: Any = None, out_specs: Any = None,
    **options: Any,
) -> Any:  # fmt: skip
    """Returns `f` as a function of sharded arrays that runs on this rank's parts; also a decorator.

    mesh: the names that collectives in `f` refer to. in_specs: a Sharding for all arguments, or a tuple with one for
    each, None for an argument that all ranks have in full. A plain array is this rank's part. out_specs: likewise for
    the results; a result with None is returned as it is, and must be equal on all ranks. options: those of `@fuse`.
    Raises FusionError for a sharding over another mesh. Calls raise FusionError for an array with another sharding, and
    ShapeError for one whose parts are not equal.
    """
    if f is None:
        return functools.partial(_mapped, mesh=mesh, in_specs=in_specs, out_specs=out_specs, options=options)
    return _mapped(f, mesh, in_specs, out_specs, options)


def _mapped(
    function: Callable[..., Any], mesh: DeviceMesh, in_specs: Any, out_specs: Any, options: dict[str, Any]
) -> ShardMapped:
    for name, specs in (("in_specs", in_specs), ("out_specs", out_specs)):
        flat = [specs] if isinstance(specs, (Sharding, type(None))) else list(specs)
        for spec in flat:
            if isinstance(spec, Sharding) and spec.mesh != mesh:
                raise FusionError(f"{name} has a sharding over {spec.mesh}, not {mesh}", hint="use one mesh")
            if not isinstance(spec, (Sharding, type(None), tuple, list)):
                raise FusionError(
                    f"{name} cannot hold {shown(spec)}", hint='give Sharding(mesh, ("data", None)), or None'
                )
    return ShardMapped(function, mesh, in_specs, out_specs, options)
