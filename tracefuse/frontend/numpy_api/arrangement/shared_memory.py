"""Whether traced arrays have elements in the same memory, as a view and its array have, and a new array has not."""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.numpy_api.registration.registry import Functions
from tracefuse.frontend.tracer.values import views
from tracefuse.frontend.tracer.values.traced import Memory, Traced
from tracefuse.ir.extents import product

FUNCTIONS = Functions()
implements = FUNCTIONS.implements


@implements(np.shares_memory)
def shares_memory(a: Any, b: Any, /, max_work: int = -1) -> bool:
    """Whether two arrays have elements in the same memory, of which one is new or the other one or a view of it."""
    return _share(a, b, "np.shares_memory")


@implements(np.may_share_memory)
def may_share_memory(a: Any, b: Any, /, max_work: int = 0) -> bool:
    """As `shares_memory`."""
    return _share(a, b, "np.may_share_memory")


def _share(a: Any, b: Any, name: str) -> bool:
    if not all(_has_memory(x) for x in (a, b)):
        return False  # NumPy makes a new array of a number or a list
    memories = [_memory(x) for x in (a, b)]
    if memories[0] is not memories[1] or memories[0] is None:
        if all(memory is None or memory.input is not None for memory in memories):
            raise _needs_arrays(f"{name} of two arrays that the call passes")
        return False
    if not (a.parent is None or b.parent is None or views.is_same_view(a, b)):
        raise _needs_arrays(f"{name} of two views of one array")
    return not any(x.recorder.decide(product(x.extents), "==", 0, name) for x in (a, b))


def _needs_arrays(what: str) -> UnsupportedError:
    """The refusal of a question that only the arrays of a call answer: the function itself runs where it can."""
    hint = "compare with the array that owns the memory, or ask outside the fused function"
    return UnsupportedError(what, hint=hint, where=source.user_line(), runs_function=True)


def _has_memory(x: Any) -> bool:
    return (isinstance(x, Traced) and not x.is_immutable and x.weak is None) or type(x) is np.ndarray


def _memory(x: Any) -> Memory | None:
    """The memory of a traced array; None for an array that exists outside of the trace."""
    if not isinstance(x, Traced):
        return None
    x.settle()
    return x.own_memory()
