"""The decorator `@fuse`, which makes a fused function, or one over the ranks of a mesh.

Must not know: ops, kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from segments import Predicate
from tracefuse import source
from tracefuse.frontend.fuse import FusedFunction
from tracefuse.frontend.ranks.sharded_function import ShardedFusedFunction

P = ParamSpec("P")
R = TypeVar("R")


@overload
def fuse(function: Callable[P, R], /) -> FusedFunction[P, R]: ...


@overload
def fuse(
    function: Callable[..., Any], /, *, in_shardings: Any, out_shardings: Any = None, **options: Any
) -> ShardedFusedFunction: ...  # fmt: skip


@overload
def fuse(
    function: None = None, /, *, static_argnums: int | Sequence[int] = (), static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (), donate_argnames: str | Sequence[str] = (),
    merge: Predicate | None = None, kernel_name: str | None = None, frontend: str = "auto",
    fallback: str | None = None, **options: Any,
) -> Callable[[Callable[P, R]], FusedFunction[P, R]]: ...  # fmt: skip


@source.hides_own_frames
def fuse(function: Any = None, /, **options: Any) -> Any:
    """Compiles a function of arrays: traces it once for each trace key, partitions the trace, and runs its kernels.

    Use it as `@fuse`, `@fuse(option=value)` or `fuse(function)`.

    static_argnums, static_argnames: parameters whose values are part of the trace key.

    donate_argnums, donate_argnames: arguments that the caller no longer needs after the call. Results and intermediates
    may reuse their buffers; the contents of a donated array are unspecified afterwards.

    merge: a predicate that keeps groups of ops out of one segment, see `tracefuse.rules`. kernel_name: the name of the
    function in logs and dumps, as `cupy.fuse` takes it; by default its own.

    frontend: who traces the function: "numpy"; "jax" for a function of jax.numpy; "auto", the default: JAX if an
    argument is a JAX array. fallback: "jax" lets JAX compute primitives without a rule, each in a segment of its own.

    in_shardings, out_shardings: a `Sharding` for all arguments or results, or a tuple with one for each, None for one
    that is equal on all ranks (a result: as propagation gives it); the function then runs on the parts of every rank.

    Other keywords are options, see docs/options.md. Raises OptionError for an unknown option, and TraceError for a
    generator, an async function, or an argument that does not exist.
    """
    if function is None:
        return lambda decorated: fuse(decorated, **options)
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(fuse(function.__func__, **options))
    if isinstance(function, FusedFunction):
        return function
    if options.get("in_shardings") is not None or options.get("out_shardings") is not None:
        return ShardedFusedFunction(function, **options)
    options.pop("in_shardings", None), options.pop("out_shardings", None)
    return FusedFunction(function, **options)
