"""The arrays of a call that are donated: whether their memory can be taken, and which have been.

An array whose memory a result lives in must not be read again. That is found where it is passed to a fused function
once more, as the same object, while the result is alive.

Knows: arrays, where they lie, what takes memory in a plan. Must not know: how plans are chosen and run.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.arrays import ShapeDtype
from tracefuse.backend import Backend
from tracefuse.call_facts import CallFacts
from tracefuse.donation import Donated
from tracefuse.errors import FusionError, UnsupportedError
from tracefuse.extents import evaluate
from tracefuse.ir import Fusion
from tracefuse.plan import Plan
from tracefuse.spans import span


class Donation:
    """The donated inputs of one call.

    usable: those that can be taken. refused: why others cannot, by number. numbers: all; kept: those that the call
    returns as they are.
    """

    def __init__(
        self, fusion: Fusion, backend: Backend, facts: CallFacts, numbers: Iterable[int], kept: Collection[int]
    ) -> None:
        self.fusion, self.backend, self.facts = fusion, backend, facts
        pairs = zip(fusion.inputs, facts.arguments, strict=True)
        self.arrays = {n: a for n, a in pairs if fusion.values[n].is_tensor and not isinstance(a, ShapeDtype)}
        self.refused: dict[int, str] = {}
        usable: list[Donated] = []
        for number in numbers:
            if 0 in self.arrays[number].shape:
                continue
            reason = "it is returned as it is" if number in kept else self._reason(number)
            if reason is None:
                is_wide = not backend.uses_alignment or backend.is_wide(self.arrays[number])
                usable.append(Donated(number, is_wide))
            else:
                self.refused[number] = reason
        self.usable = tuple(usable)
        # What takes the memory of a donated input, by its number.
        self.takers: dict[int, Any] = {}

    def _reason(self, number: int) -> str | None:
        """Why the memory of an input cannot be taken."""
        array = self.arrays[number]
        if number in self.fusion.aliases.values():
            return "it is changed in place"
        if not self.backend.is_plain(array):
            return "it is not contiguous"
        if not self.backend.is_writable(array):
            return "it is read-only"
        own = span(self.backend, array)
        for other, theirs in self.arrays.items():
            if other != number and own.shares_bytes_with(span(self.backend, theirs)):
                return f"{self._name(other)} lies in the same memory"
        return None

    def _name(self, number: int) -> str:
        return self.fusion.values[number].name or f"input T{number}"

    def taken(self, plan: Plan, reports: str) -> list[Any]:
        """For each value of `plan` that takes donated memory, an array of it. reports: "warn", "raise" or "ignore".

        Raises UnsupportedError under "raise" where donated memory is not used.
        """
        fusion = plan.segmentation.fusion
        for one in plan.taken:
            shape = tuple(evaluate(extent, self.facts.values) for extent in fusion.shape_of(one.given.value))
            dtype = fusion.values[one.given.value].dtype
            self.takers[one.donor] = self.backend.over(self.arrays[one.donor], shape, dtype)
        unused = {one.number: NOTHING_FITS for one in self.usable if one.number not in self.takers}
        refused = {**self.refused, **unused}
        if refused and reports != "ignore":
            listed = "; ".join(f"{self._name(number)}: {reason}" for number, reason in refused.items())
            _report(f"donated memory is not used ({listed})", reports == "raise")
        return [self.takers[one.donor] for one in plan.taken]

    def finish(self, arguments: Sequence[Any], results: Sequence[Any], *, spoils: bool) -> None:
        """Remembers which results live in donated memory. spoils: what is left of it is filled with what shows.

        arguments: as the caller gave them.
        """
        given = dict(zip(self.fusion.inputs, arguments, strict=True))
        for one in self.usable:
            taker = self.takers.get(one.number)
            if taker is not None and any(taker is result for result in results):
                _Taken(given[one.number], self.backend.owner_of(taker))
            elif spoils:
                _spoil(self.arrays[one.number])


NOTHING_FITS = "nothing of as many bytes is made after its last reader"


def _report(message: str, is_error: bool) -> None:
    if is_error:
        raise UnsupportedError(message, hint="do not donate it", where=source.user_line())
    frame = source.user_frame()
    if frame is None:
        warnings.warn(message, UserWarning, stacklevel=2)
    else:
        warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def _spoil(array: Any) -> None:
    """Fills an array with NaN, of integers with the smallest value, so that reading it again is seen."""
    if array.dtype.kind in "iu":
        array.fill(np.iinfo(array.dtype).min)
    else:
        array.fill(False if array.dtype.kind == "b" else np.nan)


class _Taken:
    """One donated array, and what lives as long as the result in its memory; both are held weakly, and the entry goes
    with the first of them."""

    __slots__ = ("array", "result")

    def __init__(self, array: Any, result: Any) -> None:
        key = id(array)

        def forget(_: Any) -> None:
            if TAKEN.get(key) is self:
                del TAKEN[key]

        self.array, self.result = weakref.ref(array, forget), weakref.ref(result, forget)
        TAKEN[key] = self


TAKEN: dict[int, _Taken] = {}
"""By the identity of the donated array; empty in a program that donates nothing."""


def check_not_taken(named: Iterable[tuple[Any, str]]) -> None:
    """Raises FusionError where a result lives in the memory of one of these arrays, given with their names."""
    for array, name in named:
        entry = TAKEN.get(id(array))
        if entry is not None and entry.array() is array and entry.result() is not None:
            raise FusionError(
                f"{name} was donated, and a result lives in its memory",
                hint="use that result, or pass a copy when you donate: x.copy()", where=source.user_line(),
            )  # fmt: skip


def check_positional(arguments: Sequence[Any]) -> None:
    """As `check_not_taken`, for arguments that are called by their positions."""
    check_not_taken((argument, f"argument {position}") for position, argument in enumerate(arguments))
