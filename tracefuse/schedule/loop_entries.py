"""Entries of axis maps: composed along producers and consumers, and rewritten where a loop is split.

An axis may run along one loop, along several loops together (`Joined`), or along one factor of a loop (`LoopFactor`):
what a reshape reads. Splitting a loop into the factors turns the second and third kind into loops, so that a reshape
between a reduction and its readers is an identity.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tracefuse.ir.extents import Extent, product
from tracefuse.ir.fusion import Shape
from tracefuse.ir.indexing import PULLED, AxisMap, Entry, Joined, LoopFactor, flat, parts_of

Splits = Mapping[int, Shape]
"""The extents of the loops that take the place of a loop, outermost first."""


def moved(entry: Entry, loops: Mapping[int, Entry]) -> Entry:
    """Returns an entry in terms of other loops: PULLED for a loop that has no entry there."""
    if entry is None or entry == PULLED:
        return entry
    if isinstance(entry, int):
        return loops.get(entry, PULLED)
    if isinstance(entry, Joined):
        return _joined([moved(part, loops) for part in entry.parts], entry.extents)
    replacement = loops.get(entry.loop, PULLED)
    if isinstance(replacement, Joined):
        return replacement.parts[entry.place] if replacement.extents == entry.extents else PULLED
    if isinstance(replacement, LoopFactor):  # a factor of a factor
        extents = (
            *replacement.extents[: replacement.place],
            *entry.extents,
            *replacement.extents[replacement.place + 1 :],
        )
        return LoopFactor(replacement.loop, replacement.place + entry.place, extents)
    return (
        LoopFactor(replacement, entry.place, entry.extents)
        if isinstance(replacement, int) and replacement != PULLED
        else PULLED
    )


def _joined(entries: Sequence[Entry], shape: Shape) -> Entry:
    """Returns the entry of an axis that is the product of axes with these entries and extents."""
    parts: list[int | LoopFactor] = []
    extents: list[Extent] = []
    for entry, extent in zip(entries, shape, strict=True):
        parts += (PULLED,) if entry is None else parts_of(entry)
        extents += entry.extents if isinstance(entry, Joined) else (extent,)
        last = parts[-1]
        if isinstance(last, LoopFactor) and last.place == len(last.extents) - 1:
            count = len(last.extents)
            if parts[-count:] == [LoopFactor(last.loop, place, last.extents) for place in range(count)]:
                parts[-count:], extents[-count:] = [last.loop], [product(extents[-count:])]
    if all(part == PULLED for part in parts):
        return PULLED
    return parts[0] if len(parts) == 1 else Joined(tuple(parts), tuple(extents))


def through(output: AxisMap, use: AxisMap) -> dict[int, Entry]:
    """Maps each loop of a producer to an entry of `use`, by which its output is read."""
    entries: dict[int, Entry] = {}
    for written, read in zip(output, use, strict=True):
        if isinstance(written, int):
            entries[written] = read
        elif isinstance(written, Joined):
            for place, loop in enumerate(flat((written,))):
                entries[loop] = moved(LoopFactor(0, place, written.extents), {0: read})
    return entries


def loop_pairs(first: AxisMap, second: AxisMap) -> Iterator[tuple[int, int | None]]:
    """Yields the loops of one map beside those of another, axis by axis; PULLED where one has no single loop."""
    for entry, entry_of_second in zip(first, second, strict=True):
        if (
            isinstance(entry, Joined)
            and isinstance(entry_of_second, Joined)
            and entry.extents == entry_of_second.extents
        ):
            yield from zip(flat((entry,)), flat((entry_of_second,)), strict=True)
        elif entry is not None:
            other = entry_of_second if entry_of_second is None or isinstance(entry_of_second, int) else PULLED
            yield from ((loop, PULLED if isinstance(entry, Joined) else other) for loop in flat((entry,)))


def splits_between(first: AxisMap, second: AxisMap) -> tuple[dict[int, Shape], dict[int, Shape]]:
    """Returns the loops to split on either side, so that two maps of one value follow the same loops."""
    first_splits: dict[int, Shape] = {}
    second_splits: dict[int, Shape] = {}
    for left, right in zip(first, second, strict=True):
        if left is None or right is None or PULLED in (left, right) or left == right:
            continue
        for entry, splits in ((left, first_splits), (right, second_splits)):
            for part in parts_of(entry):
                if isinstance(part, LoopFactor) and len(part.extents) > len(splits.get(part.loop, ())):
                    splits[part.loop] = part.extents
        if isinstance(left, int) and isinstance(right, Joined):
            first_splits[left] = right.extents
        elif isinstance(left, Joined) and isinstance(right, int):
            second_splits[right] = left.extents
    return first_splits, second_splits


def runs_of(extents: Shape, finer: Shape) -> list[range] | None:
    """Returns for each extent the run of finer ones whose product it is; None if they are not known to be."""
    runs, start = [], 0
    for extent in extents:
        stop = start + 1
        while stop < len(finer) and product(finer[start:stop]) != extent:
            stop += 1
        if product(finer[start:stop]) != extent:
            return None
        runs.append(range(start, stop))
        start = stop
    return runs if start == len(finer) else None


def places_after(count: int, splits: Splits) -> dict[int, tuple[int, ...]]:
    """Returns for each of `count` loops the loops that take its place, in order, where `splits` are split."""
    places, start = {}, 0
    for loop in range(count):
        width = len(splits.get(loop, (0,)))
        places[loop] = tuple(range(start, start + width))
        start += width
    return places


def split_map(axis_map: AxisMap, places: Mapping[int, tuple[int, ...]], splits: Splits) -> AxisMap:
    """Returns an axis map over the loops that take the place of others."""

    def split(entry: Entry) -> Entry:
        if entry is None or entry == PULLED:
            return entry
        if isinstance(entry, Joined):
            return _joined([split(part) for part in entry.parts], entry.extents)
        if isinstance(entry, LoopFactor):
            parts = places[entry.loop]
            if len(parts) == 1:
                return LoopFactor(parts[0], entry.place, entry.extents)
            runs = runs_of(entry.extents, splits[entry.loop])
            if runs is None:
                return PULLED
            run = runs[entry.place]
            if len(run) == 1:
                return parts[run.start]
            return Joined(parts[run.start : run.stop], splits[entry.loop][run.start : run.stop])
        return places[entry][0] if len(places[entry]) == 1 else Joined(places[entry], splits[entry])

    return tuple(map(split, axis_map))
