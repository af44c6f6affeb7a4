"""Refusals of templates and merges: members of enums, so that programs compare codes and people read sentences.

Each template and rule has an enum of its own beside its code. This module has their base class, and the refusals that
several of them share.
"""

from __future__ import annotations

from enum import Enum

from segments import Verdict, no


class ScheduleRefusal(Enum):
    """A reason to refuse, in English. Calling a member returns the verdict, whose code is the member."""

    def __call__(self, subject: str = "", /, **details: object) -> Verdict:
        """Returns the verdict. subject: what the sentence is about, where its text is only the predicate."""
        return no(f"{subject} {self.value}" if subject else self.value, self, **details)


class RegionRefusal(ScheduleRefusal):
    """Refusals by the loops of a region, its outputs and its parameters."""

    REDUCES = "the segment reduces"
    NOTHING_REDUCED = "nothing is reduced"
    SCANS = "the segment combines the elements so far"
    NOTHING_SCANNED = "nothing is scanned"
    INNERMOST_REDUCED = "the innermost loop is reduced"
    INNERMOST_NOT_REDUCED = "the innermost loop is not reduced"
    ROWS_AND_COLUMNS = "the segment reduces over its rows and over its columns"
    NOT_ROWS_AND_COLUMNS = "the segment does not reduce over its rows and over its columns"
    ATTENTION = "the segment is an attention"
    NO_ATTENTION = "the segment is no attention"
    ROW_UPDATE = "the segment updates rows at positions that are data"
    NO_ROW_UPDATE = "the segment updates no rows at positions that are data"
    PRODUCT = "the segment is a product of matrices"
    NO_PRODUCT = "the segment is no product of matrices"
    NO_GRADIENT = "the segment is no gradient of an attention"
    COMPLETE = "a row_column region does not grow"
    TOO_MANY_PARAMETERS = "too many kernel parameters"
    OUTPUTS_NOT_JOINED = "outputs run over different loops and no reduction joins them"
