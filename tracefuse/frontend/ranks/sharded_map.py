"""`shard_map`: runs a function on the parts of sharded arrays, one rank at a time, as jax.shard_map.

The function is fused and sees this rank's parts. It exchanges data by the functions of `tracefuse.collectives` alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tracefuse import pytrees
from tracefuse.errors import FusionError, ShapeError, TraceError, shown
from tracefuse.frontend.fuse import FusedFunction
from tracefuse.frontend.ranks.current_mesh import on_mesh
from tracefuse.frontend.ranks.sharded_array import ShardedArray
from tracefuse.ir.shardings import DeviceMesh, Sharding
from tracefuse.runtime.communicators.launch import current_world

_COORDINATES = "coordinates_in_mesh"
"""The keyword by which a rank passes its place in the mesh to the fused function."""


class ShardMapped:
    """A function that `shard_map` wraps. Each rank has a fused function of its own, also where ranks are threads."""

    def __init__(
        self, function: Callable[..., Any], mesh: DeviceMesh, in_specs: Any, out_specs: Any, options: dict[str, Any]
    ) -> None:
        functools.update_wrapper(self, function)
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.mesh, self.in_specs, self.out_specs, self._options = mesh, in_specs, out_specs, options
        self._function = function
        self._of_rank: dict[int, FusedFunction[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        rank = current_world().rank
        local = [self._parts(x, spec) for x, spec in zip(args, self._specs_of(args), strict=True)]
        result = self._fused(rank)(*local, **{_COORDINATES: self.mesh.coordinates(rank)})
        return _with_specs(result, self.out_specs, self.mesh, self.__name__)

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
        rank = current_world().rank
        local = [self._parts(x, spec) for x, spec in zip(args, self._specs_of(args), strict=True)]
        return getattr(self._fused(rank), method)(*local, **{_COORDINATES: self.mesh.coordinates(rank)})

    def _fused(self, rank: int) -> FusedFunction[..., Any]:
        fused = self._of_rank.get(rank)
        if fused is None:
            if rank not in self.mesh.ranks:
                raise FusionError(f"rank {rank} is not in {self.mesh}", hint="call the function on the mesh's ranks")
            fused = self._of_rank[rank] = FusedFunction(_on_parts(self._function, self.mesh), **self._options)
        return fused

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
    """Returns the function with the place of the rank as a further argument."""

    @functools.wraps(function)
    def on_parts(*args: Any, coordinates_in_mesh: tuple[Any, ...], **keywords: Any) -> Any:
        with on_mesh(mesh, coordinates_in_mesh):
            return function(*args, **keywords)

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
    return type(result)(_with_specs(one, spec, mesh, name) for one, spec in zip(result, specs, strict=True))


def _sharded(part: Any, spec: Sharding) -> ShardedArray:
    return ShardedArray(part, spec, tuple(extent * spec.parts(axis) for axis, extent in enumerate(part.shape)))


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
