"""Values of a trace that the function can still reach: those that a later stage may read.

Must not know: overlays of values.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracefuse.frontend.tracer.effects.caught_refusals import settle
from tracefuse.frontend.tracer.record.recorder import Recorder


def live_numbers(recorder: Recorder) -> Iterator[int]:
    """Yields the numbers of values that the function can still reach by a name. Values in bodies of loops are none."""
    settle(recorder)  # their frames hold names
    names = [(reference, name) for reference in recorder.names if (name := reference()) is not None]
    recorder.names = [reference for reference, _ in names]
    for _, name in names:
        number, version = name.state()
        is_current = name.memory is None or version == name.memory.version
        if is_current and number not in recorder.inside_bodies:
            yield number
