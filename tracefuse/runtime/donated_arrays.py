"""Checks the donated arrays of a call, and remembers donated arrays whose buffer now holds a result.

Such an array must not be read again. A fused function raises if it is called with the same object while the result is
alive. A result can be donated in turn; earlier donated arrays then share the buffer of the newest result.
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
from tracefuse.runtime.devices.shape_dtype import ShapeDtype
from tracefuse.runtime.memory.call_facts import CallFacts
from tracefuse.runtime.memory.donation import Donated
from tracefuse.runtime.memory.spans import APART, neighbours, relation, span
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.targets.array_device import ArrayDevice


class Donation:
    """The donated inputs of one call.

    usable: the inputs whose buffers can be reused. refused: why others cannot, by number. numbers: all donated inputs.
    returned: those that the call returns unchanged. buffers: the output buffers of the call.
    """

    def __init__(
        self, fusion: Fusion, device: ArrayDevice, facts: CallFacts, numbers: Iterable[int], returned: Collection[int],
        buffers: Sequence[Any],
    ) -> None:  # fmt: skip
        self.fusion, self.device, self.buffers = fusion, device, buffers
        pairs = zip(fusion.inputs, facts.arguments, strict=True)
        self.arrays = {n: a for n, a in pairs if fusion.values[n].is_tensor and not isinstance(a, ShapeDtype)}
        self.refused: dict[int, str] = {}
        numbered = list(self.arrays)
        together = [*self.arrays.values(), *buffers]
        close = neighbours([span(device, array) for array in together])
        self._close = {number: [(k, together[k]) for k in sorted(close[p])] for p, number in enumerate(numbered)}
        usable: list[Donated] = []
        for number in numbers:
            if number not in self.arrays:  # a ShapeDtype, for a contiguous array with memory of its own
                usable.append(Donated(number, True))
                continue
            if 0 in self.arrays[number].shape:
                continue
            reason = "the call returns it unchanged" if number in returned else self._reason(number)
            if reason is None:
                is_wide = not device.uses_alignment or device.is_wide(self.arrays[number])
                usable.append(Donated(number, is_wide))
            else:
                self.refused[number] = reason
        self.usable = tuple(usable)

    def _reason(self, number: int) -> str | None:
        """Returns why the buffer of an input cannot be reused, None if it can."""
        array = self.arrays[number]
        if number in self.fusion.aliases.values():
            return "it is updated in place"
        if not self.device.is_plain(array):
            return "it is not contiguous"
        if not self.device.is_writable(array):
            return "it is read-only"
        numbered = list(self.arrays)
        for position, other in self._close[number]:
            if relation(self.device, array, other) != APART:
                is_argument = position < len(numbered)
                return f"{self._name(numbered[position]) if is_argument else 'out='} shares its memory"
        return None

    def _name(self, number: int) -> str:
        return self.fusion.values[number].name or f"input T{number}"

    def report(self, plan: Plan, reports: str) -> None:
        """Reports the donated buffers that `plan` does not reuse. reports: "warn", "raise" or "ignore".

        Raises UnsupportedError for "raise".
        """
        reused = {reuse.donor for reuse in plan.reused}
        unused = {donor.number: NOTHING_FITS for donor in self.usable if donor.number not in reused}
        refused = {**self.refused, **unused}
        if refused and reports != "ignore":
            listed = "; ".join(f"{self._name(number)}: {reason}" for number, reason in refused.items())
            _report(f"donated buffers are not reused ({listed})", reports == "raise")

    def finish(self, plan: Plan, arguments: Sequence[Any], results: Sequence[Any], *, spoils: bool) -> None:
        """Remembers which results live in donated buffers.

        arguments: the caller's own objects. spoils: fill the donated arrays that hold no result, as `_spoil` does.
        """
        record_donated_results(self.device, plan.donated_results, arguments, results)
        if spoils:
            reused = {self.fusion.inputs[position] for position, _ in plan.donated_results}
            for donor in self.usable:
                if donor.number not in reused:
                    _spoil(self.arrays[donor.number])


NOTHING_FITS = "no value with the same number of bytes is computed after its last reader"


def _report(message: str, is_error: bool) -> None:
    if is_error:
        raise UnsupportedError(message, hint="do not donate it", where=source.user_line())
    frame = source.user_frame()
    if frame is None:
        warnings.warn(message, UserWarning, stacklevel=2)
    else:
        warnings.warn_explicit(message, UserWarning, frame.f_code.co_filename, frame.f_lineno)


def _spoil(array: Any) -> None:
    """Fills an array with NaN, or with the smallest integer, so that a later read is noticed."""
    if array.dtype.kind in "iu":
        array.fill(np.iinfo(array.dtype).min)
    else:
        array.fill(False if array.dtype.kind == "b" else np.nan)


class _Donor(weakref.ref[Any]):
    """A donated array. key: its identity. result: the identity of the owner of the result in its buffer."""

    __slots__ = ("key", "result")
    key: int
    result: int


class _Result(weakref.ref[Any]):
    """The owner of a result in a donated buffer, which lives as long as any view of the result.

    key: its identity. size: the bytes of the buffer. donors: the donated arrays of this buffer that are alive.
    """

    __slots__ = ("donors", "key", "size")
    key: int
    size: int
    donors: list[_Donor]


DONORS: dict[int, _Donor] = {}
"""The donated arrays whose buffers hold a result, by identity. Empty in a program that donates nothing."""
_RESULTS: dict[int, _Result] = {}


def _forget_donor(donor: _Donor) -> None:
    if DONORS.get(donor.key) is donor:
        del DONORS[donor.key]
    result = _RESULTS.get(donor.result)
    if result is not None:
        result.donors = [other_donor for other_donor in result.donors if other_donor is not donor]


def _forget_result(result: _Result) -> None:
    if _RESULTS.get(result.key) is result:
        del _RESULTS[result.key]
    for donor in result.donors:
        if DONORS.get(donor.key) is donor:
            del DONORS[donor.key]


def record_donated_results(
    device: ArrayDevice, donated_results: Iterable[tuple[int, int]], arguments: Sequence[Any], results: Sequence[Any]
) -> None:
    """Remembers the results of a call that live in its donated arguments. donated_results: see `Plan`."""
    for argument, output in donated_results:
        array, owner = arguments[argument], device.owner_of(results[output])
        donor = _Donor(array, _forget_donor)
        result = _Result(owner, _forget_result)
        donor.key, result.key, result.size, result.donors = id(array), id(owner), array.nbytes, [donor]
        key = id(device.owner_of(array))
        earlier = _RESULTS.get(key)
        if earlier is not None and earlier.size == result.size:
            del _RESULTS[key]
            result.donors += earlier.donors
        for each in result.donors:
            each.result = result.key
        DONORS[donor.key], _RESULTS[result.key] = donor, result


def check_not_donated(named: Iterable[tuple[Any, str]]) -> None:
    """Raises FusionError if the buffer of one of these arrays, each with its name, now holds a result."""
    for array, name in named:
        donor = DONORS.get(id(array))
        if donor is not None and donor() is array:
            raise FusionError(
                f"{name} was donated; its buffer now holds a result",
                hint="use that result, or pass a copy when you donate: x.copy()", where=source.user_line(),
            )  # fmt: skip
