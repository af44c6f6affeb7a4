"""Elements at a distance that a vector loop reads and writes, in windows of those near each other.

A loop over complex numbers reads the elements 2 k and 2 k + 1, one over points with 8 coordinates the elements 8 k to
8 k + 7. What an iteration reads of one array near each other is a window. A processor loads windows as vectors, or row
by row, and separates their elements in registers (`kernel/llvm/strided_vectors.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.kernel import kernel_ir as ir

NEAR = 8
"""The elements of the largest window."""

MANY_SHUFFLES = (5, 7)
"""Distances at which separating elements takes as many instructions as there are elements."""

Key: TypeAlias = tuple[object, ...]
"""What elements of one window have in common."""


@dataclass(frozen=True, slots=True)
class StridedPlace:
    """An element at a distance. key: of what it may share a window with. offset: its place among them.

    index: where it is, in terms of the loop's variable. distance: by how much the index grows with an iteration.
    is_apart: whether no store of the loop changes it.
    """

    buffer: ir.Buffer
    key: Key
    offset: int
    index: ir.Expression
    distance: ir.Expression
    is_apart: bool


@dataclass(frozen=True, slots=True, eq=False)
class StridedWindow:
    """Elements of a buffer that an iteration accesses. offsets: of each, from the first one on, which is `first`."""

    first: StridedPlace
    offsets: tuple[int, ...]

    @property
    def span(self) -> int:
        return self.offsets[-1] + 1

    @property
    def step(self) -> int | None:
        """By how many elements an iteration is behind the one before; None if that is not a small constant."""
        distance = self.first.distance
        if not isinstance(distance, ir.Constant):
            return None
        step = int(distance.value.real)
        return step if self.span <= abs(step) <= NEAR else None

    @property
    def has_many_shuffles(self) -> bool:
        return len(self.offsets) > 1 and abs(self.step or 0) in MANY_SHUFFLES

    @property
    def is_loaded_whole(self) -> bool:
        """Whether the elements of several iterations are loaded with those between them."""
        step = self.step
        return step is not None and (abs(step) <= NEAR // 2 or 2 * len(self.offsets) >= abs(step))

    @property
    def is_loaded_by_rows(self) -> bool:
        """Whether the elements of an iteration are loaded with those between them."""
        return self.span in (2, 4, 8) and 4 * len(self.offsets) >= 3 * self.span

    @property
    def is_dense(self) -> bool:
        """Whether elements are loaded with others."""
        return self.is_loaded_whole or self.is_loaded_by_rows

    @property
    def is_whole(self) -> bool:
        """Whether iterations access all elements in their reach."""
        return self.step is not None and len(self.offsets) == self.step


class StridedWindows:
    """The windows of a loop, in which a place has an offset."""

    def __init__(self, places: Iterable[StridedPlace]) -> None:
        by_key: dict[Key, dict[int, StridedPlace]] = {}
        for place in places:
            by_key.setdefault(place.key, {}).setdefault(place.offset, place)
        self._windows: dict[tuple[Key, int], StridedWindow] = {}
        for key, members in by_key.items():
            for offsets in _near(sorted(members), members[next(iter(members))].distance):
                window = StridedWindow(members[offsets[0]], tuple(offset - offsets[0] for offset in offsets))
                self._windows.update({(key, offset): window for offset in offsets})

    def __bool__(self) -> bool:
        return bool(self._windows)

    def of(self, place: StridedPlace) -> StridedWindow:
        return self._windows[place.key, place.offset]


def _near(offsets: Sequence[int], distance: ir.Expression) -> Iterator[list[int]]:
    """Yield runs of sorted offsets near each other."""
    reach = NEAR
    if isinstance(distance, ir.Constant) and abs(int(distance.value.real)) <= NEAR:
        reach = abs(int(distance.value.real))
    run = [offsets[0]]
    for offset in offsets[1:]:
        if offset - run[0] >= reach:
            yield run
            run = []
        run.append(offset)
    yield run


@dataclass(frozen=True, slots=True)
class Access:
    """An access of an element in an iteration, in order. place: None for an element that is not at a distance."""

    buffer: ir.Buffer
    place: StridedPlace | None
    stores: bool


def are_stored_together(
    window: StridedWindow, accesses: Sequence[Access], is_apart: Callable[[ir.Buffer, Sequence[ir.Buffer]], bool]
) -> bool:
    """Return whether the elements of a window may be stored with the last of them.

    Each is stored once, and nothing between the first and the last store may read or write them. is_apart: whether a
    buffer shares no elements with others.
    """
    key, last = window.first.key, window.first.offset + window.span
    own = [
        number for number, access in enumerate(accesses)
        if access.stores and access.place is not None
        and access.place.key == key and window.first.offset <= access.place.offset < last
    ]  # fmt: skip
    between = [a for number, a in enumerate(accesses[own[0] : own[-1]], own[0]) if number not in own]
    is_alone = all(is_apart(window.first.buffer, [access.buffer]) for access in between)
    return window.is_whole and len(own) == len(window.offsets) and is_alone
