"""Questions that a function asks in a loop: the trace begins again, with other code for the functions around.

A loop that asks would need an answer in every iteration. See `rewritten_loops.py` for the code.

Must not know: ops, overlays of values.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from tracefuse import source
from tracefuse.frontend.tracer.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.rewritten_loops import rewritten
from tracefuse.frontend.tracer.scope_views import GlobalsView

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.recorder import Recorder


def begin_again_with_loops(recorder: Recorder) -> None:
    """Begins the trace again if the question that is about to be asked is in a loop whose code can be another."""
    twin = recorder.loops.control_flow
    if twin is None or not recorder.loops.decisions.is_enabled:
        return
    frames = list(_frames_of_clones())
    in_loops = [place for place, frame in enumerate(frames) if _is_in_loop(frame.f_code, frame.f_lasti)]
    if not in_loops or recorder.overlays is None:
        return
    decisions, functions = recorder.loops.decisions, recorder.overlays.functions
    is_new = False
    for frame in frames[: in_loops[-1] + 1]:
        code = functions.user_code(frame.f_code)
        if code not in decisions.codes:
            other = rewritten(code, twin)
            decisions.replace(code, other)
            is_new |= other is not None
    if is_new:
        raise AnotherAttempt


def _frames_of_clones() -> Iterator[FrameType]:
    """Yields the frames of clones that run, innermost first."""
    frame = source.user_frame()
    while frame is not None:
        if isinstance(frame.f_globals, GlobalsView):
            yield frame
        frame = frame.f_back


def _is_in_loop(code: CodeType, position: int) -> bool:
    """Whether a loop is around a position of some code."""
    for one in dis.get_instructions(code):
        if one.opcode in (*dis.hasjrel, *dis.hasjabs) and one.argval <= position <= one.offset:
            return True
    return False
