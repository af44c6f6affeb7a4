"""Variables of a recorded loop that are `None` before it, or after some iterations.

The loop carries a number for such a variable, which means nothing where the variable is `None`, and the truth value
that rewritten code keeps beside it; see `tracer/python_code/optional_variables.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tracefuse.frontend.control_flow.carried_types import LeafType, as_leaf, converted
from tracefuse.frontend.tracer.python_code.generated_syntax import none_flag
from tracefuse.frontend.tracer.values.traced import Traced

if TYPE_CHECKING:
    from tracefuse.frontend.control_flow.recorded_carries import CarriedVariable
    from tracefuse.frontend.tracer.record.recorder import Recorder


def is_optional(name: str, variables: Mapping[str, Any]) -> bool:
    """Whether a variable is `None`, and rewritten code keeps a truth value that says so."""
    return name in variables and variables[name] is None and none_flag(name) in variables


def number_for_none(recorder: Recorder, leaf: LeafType | None = None) -> Traced:
    """Returns what a loop carries for `None`: zeros of the type that iterations give the variable, if it is known."""
    if leaf is None:
        return as_leaf(recorder, 0)
    return converted(as_leaf(recorder, recorder.movement("full", [0], shape=leaf.shape)), leaf)


def keep_numbers(after: dict[str, Any], carried: Iterable[CarriedVariable]) -> set[str]:
    """Keeps the numbers of variables that an iteration has bound to `None`; returns all that it has bound to it.

    after: the variables after the iteration, changed.
    """
    are_none = {name for name in after if is_optional(name, after)}
    for one in carried:
        if one.name in are_none:
            after[one.name] = one.inside
    return are_none
