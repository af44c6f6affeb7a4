"""Questions that a function asks in a loop: the trace begins again, with other code for the functions around.

A loop that asks would need an answer in every iteration. See `rewritten_loops.py` for the code.

Must not know: ops, overlays of values.
"""

from __future__ import annotations

import dis
import itertools
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, TypeAlias

from tracefuse import source
from tracefuse.caches import memoized
from tracefuse.frontend.tracer.python_code.code_replacements import rewritten_code
from tracefuse.frontend.tracer.python_code.loop_code import COMPREHENSIONS
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.state.scope_views import GlobalsView

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.record.recorder import Recorder


Place: TypeAlias = tuple[CodeType, int]
"""The code of a function that runs, and the position in it."""


def begin_again_with_loops(recorder: Recorder) -> None:
    """Begins the trace again if the question that is about to be asked is in a loop whose code can be another."""
    if recorder.loops.decisions.is_enabled and _rewrites(recorder, list(_running_clones())):
        raise AnotherAttempt


def rewrites_around(recorder: Recorder, error: BaseException) -> bool:
    """Whether the next trace runs other code for functions around the line of an error that a comparison raised."""
    places: list[Place] = []
    entry = error.__traceback__
    while entry is not None:
        if isinstance(entry.tb_frame.f_globals, GlobalsView):
            places.insert(0, (entry.tb_frame.f_code, entry.tb_lasti))
        entry = entry.tb_next
    return _rewrites(recorder, places)


def begin_again_rewritten(recorder: Recorder, frame: FrameType | None) -> None:
    """Begins the trace again if the function that runs in a frame can have other code, for its loops and lists.

    A comprehension is part of the function around it.
    """
    decisions, twin = recorder.loops.decisions, recorder.control_flow
    while frame is not None and frame.f_code.co_name in COMPREHENSIONS:
        frame = frame.f_back
    if frame is None or not isinstance(frame.f_globals, GlobalsView) or twin is None or recorder.overlays is None:
        return
    code = recorder.overlays.functions.user_code(frame.f_code)
    if decisions.is_enabled and code not in decisions.codes and rewritten_code(code, twin) is not None:
        decisions.codes.add(code)
        raise AnotherAttempt


def _rewrites(recorder: Recorder, places: Sequence[Place]) -> bool:
    """Whether functions have other code from now on, because of a question. places: where they run, innermost first."""
    decisions, twin = recorder.loops.decisions, recorder.control_flow
    has_ranges = bool(recorder.loops.open or recorder.loops.around())
    in_loops = [k for k, (code, position) in enumerate(places) if _is_in_loop(code, position, has_ranges)]
    if twin is None or not in_loops or recorder.overlays is None:
        return False
    functions = recorder.overlays.functions
    codes = {functions.user_code(code) for code, _ in places[: in_loops[-1] + 1]} - decisions.codes
    codes = {code for code in codes if rewritten_code(code, twin) is not None}
    decisions.codes |= codes
    return len(codes) > 0


def _running_clones() -> Iterator[Place]:
    """Yields where clones run, innermost first."""
    frame = source.user_frame()
    while frame is not None:
        if isinstance(frame.f_globals, GlobalsView):
            yield frame.f_code, frame.f_lasti
        frame = frame.f_back


def _is_in_loop(code: CodeType, position: int, has_ranges: bool) -> bool:
    """Whether a loop is around a position of some code, by `while`, or by `for` if `has_ranges`."""
    return any(start <= position <= end and (has_ranges or not is_for) for start, end, is_for in _loops_of(code))


@memoized("where the loops of a function are", key="code object", most=1024)
def _loops_of(code: CodeType) -> tuple[tuple[int, int, bool], ...]:
    """Returns the first and the last position of each loop, and whether it is a `for` loop.

    The test before the first iteration of a `while` loop belongs to it, which compilers copy to a place before it.
    """
    instructions = {instruction.offset: instruction for instruction in dis.get_instructions(code)}
    jumps = [instruction for instruction in instructions.values() if instruction.opcode in (*dis.hasjrel, *dis.hasjabs)]
    before = {after.offset: one for one, after in itertools.pairwise(instructions.values())}
    loops = []
    for jump in jumps:
        start, end = jump.argval, jump.offset
        if start <= end:
            first, test = start, before.get(start)
            if test is not None and test in jumps and test.argval > end:
                truth = before[test.offset]
                first = truth.offset if truth.opname in ("TO_BOOL", "COMPARE_OP") else test.offset
            loops.append((first, end, instructions[start].opname == "FOR_ITER"))
    return tuple(loops)
