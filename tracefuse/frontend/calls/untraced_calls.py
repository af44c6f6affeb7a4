"""Calls that run the function itself: those whose questions have more answers than a tree or a cache of traces holds.

Tracing each such call would cost a thousand times what NumPy takes. The function runs on the arrays of the call, as
without `@fuse`, after a warning; calls along known answers stay compiled.

Must not know: traces, plans.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

from tracefuse import pytrees
from tracefuse.config import Options
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.tracer.captured.routes import CallRoots
from tracefuse.runtime.targets.cuda.cuda_target import CUDA
from tracefuse.runtime.targets.resolution import resolve_target

RUNS_FUNCTION = object()
"""What a fast path returns for a call that runs the function itself."""


class FunctionRuns(BaseException):
    """Ends a trace, or the search for one, of a call that runs the function itself. (User code must not catch it.)"""


def may_run_function(call: CallArguments, options: Options) -> bool:
    """Whether the function computes on the arrays of a call what a trace computes, on the same device."""
    if options.target == "reference" or options.check or options.graph == "on":
        return False
    name, _ = resolve_target(options.target, call.device)
    return call.kind == ("cupy" if name == CUDA else "numpy")


def run_function(function: Callable[..., Any], roots: CallRoots) -> Any:
    """Calls the function. Arrays of the result share no memory with arguments, except for arguments themselves."""
    arguments = roots.arguments if roots.bound is None else (roots.bound, *roots.arguments)
    result = function(*arguments, **roots.keywords)
    leaves, structure = pytrees.flatten(result)
    if not any(map(_is_view, leaves)):
        return result
    argument_ids = set(map(id, pytrees.flatten((list(arguments), dict(roots.keywords)))[0]))
    copies = [leaf.copy() if _is_view(leaf) and id(leaf) not in argument_ids else leaf for leaf in leaves]
    return pytrees.unflatten(structure, copies)


def _is_view(leaf: Any) -> bool:
    """Whether a leaf is an array in the memory of another one. Dtypes have a `base`, too."""
    return hasattr(leaf, "__array__") and getattr(leaf, "base", None) is not None


def leave_to_function(name: str, count: int, difference: str | None) -> None:
    """Raises FunctionRuns for a call that differs from `count` traces; warns for the first one.

    name: of the function. difference: of the first such call from the nearest trace, "" if that is not known; None for
    later calls.
    """
    if difference is not None:
        now = f" (in this call, {difference})" if difference else ""
        warnings.warn(
            f"{name} was traced {count} times for arguments of these types, since state or numbers that decide what it "
            f"does were others each time{now}: from now on, calls with others run the function itself; pass them as "
            "arrays, or select by np.where",
            UserWarning,
            stacklevel=2,
        )
    raise FunctionRuns


def leave_to_threads(call: CallArguments) -> None:
    """Raises FunctionRuns for a call whose state changes during each trace, if another thread may change it."""
    if call.may_run_function and threading.active_count() > 1:
        raise FunctionRuns
