"""Conditions on computed values that a trace assumes, and that every call checks before it changes anything.

A call for which one does not hold is traced again, and asks. See `python_numbers/number_conditions.py`.
"""

from __future__ import annotations

from tracefuse import source
from tracefuse.frontend.tracer.values.traced import Traced

MOST_ASSUMED = 1024
"""Conditions that one trace assumes. After that it asks: a loop that only an exception leaves would never end."""


def is_assumed(condition: Traced) -> bool:
    """Whether the trace assumes that a condition holds; False where the call cannot check it, and has to ask."""
    recorder = condition.recorder
    is_independent = condition.number in recorder.builder.independent
    is_known = condition.on_host or (is_independent and not recorder.contents.depends_on_sizes(condition.number))
    has_effect = recorder.last_effect is not None or bool(recorder.prints)
    is_full = len(recorder.conditions) >= MOST_ASSUMED
    if is_known or has_effect or is_full or recorder.body is not None or recorder.asks_conditions:
        return False
    if condition.number not in recorder.conditions:
        recorder.conditions[condition.number] = source.user_line()
    return True
