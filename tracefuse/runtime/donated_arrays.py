"""The arrays of a call that are donated: whether their memory can be taken, and which have been.

An array whose memory a result lives in must not be read again. That is found where it is passed to a fused function
once more, as the same object, while the result is alive. A result may be donated in turn: then what was donated before
it lies in the memory of the newest result.

Knows: arrays, where they lie, what takes memory in a plan. Must not know: how plans are chosen and run.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import FusionError, UnsupportedError
from tracefuse.ir.fusion import Fusion
from tracefuse.runtime.devices.arrays import ShapeDtype
from tracefuse.runtime.memory.call_facts import CallFacts
from tracefuse.runtime.memory.donation import Donated
from tracefuse.runtime.memory.spans import APART, relation
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.targets.array_device import ArrayDevice


class Donation:
    """The donated inputs of one call.

    usable: those that can be taken. refused: why others cannot, by number. numbers: all; kept: those that the call
    returns as they are. buffers: the memory that results go into otherwise.
    """

    def __init__(
        self, fusion: Fusion, device: ArrayDevice, facts: CallFacts, numbers: Iterable[int], kept: Collection[int],
        buffers: Sequence[Any],
    ) -> None:  # fmt: skip
        self.fusion, self.device, self.buffers = fusion, device, buffers
        pairs = zip(fusion.inputs, facts.arguments, strict=True)
        self.arrays = {n: a for n, a in pairs if fusion.values[n].is_tensor and not isinstance(a, ShapeDtype)}
        self.refused: dict[int, str] = {}
        usable: list[Donated] = []
        for number in numbers:
            if 0 in self.arrays[number].shape:
                continue
            reason = "it is returned as it is" if number in kept else self._reason(number)
            if reason is None:
                is_wide = not device.uses_alignment or device.is_wide(self.arrays[number])
                usable.append(Donated(number, is_wide))
            else:
                self.refused[number] = reason
        self.usable = tuple(usable)

    def _reason(self, number: int) -> str | None:
        """Why the memory of an input cannot be taken."""
        array = self.arrays[number]
        if number in self.fusion.aliases.values():
            return "it is changed in place"
        if not self.device.is_plain(array):
            return "it is not contiguous"
        if not self.device.is_writable(array):
            return "it is read-only"
        for other, theirs in self.arrays.items():
            if other != number and relation(self.device, array, theirs) != APART:
                return f"{self._name(other)} lies in the same memory"
        if any(relation(self.device, array, buffer) != APART for buffer in self.buffers):
            return "out= lies in the same memory"
        return None

    def _name(self, number: int) -> str:
        return self.fusion.values[number].name or f"input T{number}"

    def report(self, plan: Plan, reports: str) -> None:
        """Says what of the donated memory `plan` does not use. reports: "warn", "raise" or "ignore".

        Raises UnsupportedError under "raise".
        """
        taken = {one.donor for one in plan.taken}
        unused = {one.number: NOTHING_FITS for one in self.usable if one.number not in taken}
        refused = {**self.refused, **unused}
        if refused and reports != "ignore":
            listed = "; ".join(f"{self._name(number)}: {reason}" for number, reason in refused.items())
            _report(f"donated memory is not used ({listed})", reports == "raise")

    def finish(self, plan: Plan, arguments: Sequence[Any], results: Sequence[Any], *, spoils: bool) -> None:
        """Remembers which results live in donated memory. spoils: what is left of it is filled with what shows.

        arguments: as the caller gave them.
        """
        lend(self.device, plan.lent, arguments, results)
        if spoils:
            kept = {self.fusion.inputs[position] for position, _ in plan.lent}
            for one in self.usable:
                if one.number not in kept:
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


class _Donor(weakref.ref[Any]):
    """A donated array. key: its identity; result: that of what lives as long as the result in its memory."""

    __slots__ = ("key", "result")
    key: int
    result: int


class _Result(weakref.ref[Any]):
    """What lives as long as a result in donated memory, of `size` bytes. donors: the arrays whose memory it was, that
    are alive."""

    __slots__ = ("donors", "key", "size")
    key: int
    size: int
    donors: list[_Donor]


TAKEN: dict[int, _Donor] = {}
"""By the identity of the donated array; empty in a program that donates nothing."""
_RESULTS: dict[int, _Result] = {}


def _forget_donor(donor: _Donor) -> None:
    if TAKEN.get(donor.key) is donor:
        del TAKEN[donor.key]
    result = _RESULTS.get(donor.result)
    if result is not None:
        result.donors = [one for one in result.donors if one is not donor]


def _forget_result(result: _Result) -> None:
    if _RESULTS.get(result.key) is result:
        del _RESULTS[result.key]
    for donor in result.donors:
        if TAKEN.get(donor.key) is donor:
            del TAKEN[donor.key]


def lend(
    device: ArrayDevice, lent: Iterable[tuple[int, int]], arguments: Sequence[Any], results: Sequence[Any]
) -> None:
    """Remembers of a call that results live in the memory of its arguments. lent: see `Plan`."""
    for position, made in lent:
        array, owner = arguments[position], device.owner_of(results[made])
        donor = _Donor(array, _forget_donor)
        result = _Result(owner, _forget_result)
        donor.key, result.key, result.size, result.donors = id(array), id(owner), array.nbytes, [donor]
        own = id(device.owner_of(array))
        before = _RESULTS.get(own)
        if before is not None and before.size == result.size:
            del _RESULTS[own]
            result.donors += before.donors
        for one in result.donors:
            one.result = result.key
        TAKEN[donor.key], _RESULTS[result.key] = donor, result


def check_not_taken(named: Iterable[tuple[Any, str]]) -> None:
    """Raises FusionError where a result lives in the memory of one of these arrays, given with their names."""
    for array, name in named:
        donor = TAKEN.get(id(array))
        if donor is not None and donor() is array:
            raise FusionError(
                f"{name} was donated; its buffer now holds a result",
                hint="use that result, or pass a copy when you donate: x.copy()", where=source.user_line(),
            )  # fmt: skip
