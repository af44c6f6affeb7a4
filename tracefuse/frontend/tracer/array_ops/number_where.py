"""Values that are numbers of Python in some iterations of a recorded loop, and NumPy's in others.

A loop carries such a value in NumPy's type, with the truth value that tells which it is.

Must not know: overlays of values.
"""

from __future__ import annotations

from typing import Any

from tracefuse.dtypes import is_weak, python_kind
from tracefuse.frontend.tracer.array_ops.traced_ops import apply
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import NumberWhere, Traced


def is_mixed(value: Any) -> bool:
    """Whether a value is a number of Python in some iterations only."""
    return isinstance(value, Traced) and value.number_where is not None


def number_where(value: Any, kind: str | None = None) -> NumberWhere | None:
    """Returns where a value is a number of Python of another kind than `kind`; None for nowhere."""
    if isinstance(value, Traced) and value.number_where is not None:
        return value.number_where
    actual = kind_of_number(value)
    return None if actual in (None, kind) else NumberWhere(True, str(actual))


def kind_of_number(value: Any) -> str | None:
    """Returns the kind of a number of Python, traced or not; None for anything else."""
    if isinstance(value, Traced):
        return value.weak
    if isinstance(value, SymbolicSize):
        return "int"
    return python_kind(value) if is_weak(value) else None


def with_numbers(value: Traced, condition: Any, kind: str | None) -> Traced:
    """Returns a name for a value that is a number of Python of a kind where a condition holds."""
    recorder = value.recorder
    is_python, weak = value.is_python, value.weak
    result = (
        recorder.number_type(recorder, value.number, weak)
        if is_python
        else recorder.traced_type(recorder, value.number)
    )
    kind = None if is_python and kind == weak else kind
    result.number_where = None if condition is False or kind is None else NumberWhere(condition, kind)
    return result


def both(first: Any, second: Any) -> Any:
    """Returns whether two conditions hold, each a truth value or a traced one."""
    if isinstance(first, bool):
        return second if first else False
    if isinstance(second, bool):
        return first if second else False
    return first if first.number == second.number else apply("logical_and", first, second)


def choice(condition: Traced, value: Any, other: Any, chosen: Traced) -> Traced:
    """Returns `chosen`: `value` where a condition holds, else `other`; a number of Python where the one it is, is.

    Raises NotInEveryIteration if both may be numbers of two kinds.
    """
    wheres = [number_where(value), number_where(other)]
    kinds = {where.kind for where in wheres if where is not None}
    if len(kinds) > 1:
        raise NotInEveryIteration("the larger or smaller of numbers of two kinds")
    first, second = (False if where is None else where.condition for where in wheres)
    holds = apply("where", condition, first, second)
    return with_numbers(chosen, holds, kinds.pop() if kinds else None)
