"""Lower bounds of extents that follow from inequalities: of `6 <= n // 2`, that `n // 2 - 5` is positive.

Must not know: fusions.
"""

from __future__ import annotations

from collections.abc import Iterable

from tracefuse.ir.extents.polynomial import Extent, terms_of
from tracefuse.ir.extents.proofs import is_nonnegative


class LowerBounds:
    """The least value that inequalities leave for each difference of their sides, apart from its constant.

    One inequality at a time is used, and only for an extent that differs from it by a constant: the test takes the same
    time for any number of inequalities.
    """

    def __init__(self, inequalities: Iterable[tuple[Extent, Extent]]) -> None:
        """inequalities: pairs of extents, of which the first is at most the second."""
        self._least: dict[Extent, int] = {}
        for left, right in inequalities:
            rest, constant = _apart(right - left)
            self._least[rest] = max(-constant, self._least.get(rest, -constant))

    def is_nonnegative(self, extent: Extent) -> bool:
        """Whether it is proved that an extent is not negative."""
        rest, constant = _apart(extent)
        least = self._least.get(rest)
        return (least is not None and least + constant >= 0) or is_nonnegative(extent)


def _apart(extent: Extent) -> tuple[Extent, int]:
    """Returns an extent without its constant, and the constant."""
    constant = next((coefficient for monomial, coefficient in terms_of(extent) if not monomial), 0)
    return extent - constant, constant
