"""The template of row_column regions whose column results are read over all loops, where passes over memory are dear.

A matrix that is normalized by rows and then by columns is read twice: once for the sums of both, where one kernel holds
a row while it adds to the columns, and once for the result. The column side of `ROW_COLUMN_SIDES` would read it once
more.

Must not know: targets, sizes.
"""

from __future__ import annotations

from segments import Verdict, yes
from tracefuse.schedule.choose import choose_for
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.refusal_codes import ScheduleRefusal
from tracefuse.schedule.row_column_rule import RowColumnFacts
from tracefuse.schedule.row_column_sides import split_read_back
from tracefuse.schedule.row_column_template import join_parts
from tracefuse.schedule.template import Problem, Template


class ReadBackRefusal(ScheduleRefusal):
    """Refusals of the template."""

    NOT_READ_BACK = "no output has all loops and depends on a reduction over columns"
    ROWS_NOT_CONTIGUOUS = (
        "the rows do not lie in memory one after the other, but the columns do: a kernel can hold them"
    )


def _accepts(problem: Problem) -> Verdict:
    facts = problem.facts
    assert isinstance(facts, RowColumnFacts)
    if not facts.read_back:
        return ReadBackRefusal.NOT_READ_BACK()
    return yes() if problem.region.nest.loops[-1].reduced else ReadBackRefusal.ROWS_NOT_CONTIGUOUS()


def _lower(problem: Problem, decision: None) -> Lowered:
    facts = problem.facts
    assert isinstance(facts, RowColumnFacts)
    parts = split_read_back(problem.fusion, facts, problem.memory)
    first = choose_for(problem.part(parts.first, parts.facts, problem.memory, f"{problem.name}_sums")).emit()
    last = choose_for(
        problem.part(parts.last.fusion, parts.last.facts, parts.last.memory, f"{problem.name}_last")
    ).emit()
    return join_parts(problem.fusion, parts.cut, first, last, problem.finish(()).guards, "read back of")


READ_BACK: Template[Problem] = Template("read back", _accepts, _lower, takes=RowColumnFacts)
