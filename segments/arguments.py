"""The live values of one run, by original number.

An `ArgumentManager` holds what is live and nothing else: inputs and extents are bound, the arguments of a segment
are gathered in its own order, its results stored, dead values released. What is live at any moment can be read off,
also after a launch has raised.

This module knows numbers and opaque values. It must not know when to release (that is the program's) or any device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from segments.index_map import Segment
from segments.instructions import ProgramError, name_of, names_of


class ArgumentManager:
    """Live values by original number: tensors and scalars from 0 up, extents negative.

    It belongs to one run at a time; nothing in it is locked.
    """

    __slots__ = ("values",)

    def __init__(self, inputs: Mapping[int, object] | None = None, extents: Mapping[int, object] | None = None) -> None:
        # What execution works on directly, in the order of definition. Others read `live`.
        self.values: dict[int, object] = {}
        self.bind(inputs or {}, extents)

    def bind(self, inputs: Mapping[int, object], extents: Mapping[int, object] | None = None) -> None:
        """Add inputs and extents. Raises ProgramError for a number that is live already, or an extent from 0 up."""
        for value in extents or ():
            if value >= 0:
                raise ProgramError(f"{value} is bound as an extent; extents are negative")
        for values in (inputs, extents or {}):
            twice = sorted(self.values.keys() & values.keys())
            if twice:
                raise ProgramError(f"bound twice: {names_of(twice)}")
            self.values.update(values)

    @property
    def live(self) -> dict[int, object]:
        """What is live now: values in the order of their definition, then extents -1, -2, ... (a new dict)."""
        live = {value: held for value, held in self.values.items() if value >= 0}
        for extent in sorted((value for value in self.values if value < 0), reverse=True):
            live[extent] = self.values[extent]
        return live

    def __getitem__(self, value: int) -> object:
        """Return a live value. Raises ProgramError when it is not live."""
        try:
            return self.values[value]
        except KeyError:
            raise ProgramError(
                f"{name_of(value)} is not live: it was never bound or made, or is released "
                f"(live: {names_of(self.live) or 'nothing'})"
            ) from None

    def gather(self, segment: Segment) -> list[object]:
        """Return the arguments of `segment` in the order of its inputs. Raises ProgramError when one is not live."""
        return [self[value] for value in segment.original_inputs]

    def store(self, segment: Segment, outputs: Sequence[object]) -> None:
        """Keep what `segment` returned, in the order of its outputs.

        Raises ProgramError when the count differs or one of them is live already; nothing is kept then.
        """
        numbers = segment.original_outputs
        if len(outputs) != len(numbers):
            raise ProgramError(f"a segment with outputs {names_of(numbers)} returned {len(outputs)} values")
        twice = [value for value in numbers if value in self.values]
        if twice:
            raise ProgramError(f"made while live: {names_of(twice)}")
        self.values.update(zip(numbers, outputs, strict=True))

    def release(self, values: Iterable[int]) -> list[object]:
        """Let go of values and return what was held, in order. Raises ProgramError for extents and for what is dead."""
        numbers = tuple(values)
        for value in numbers:
            if value < 0:
                raise ProgramError(f"{name_of(value)} is an extent: extents are integers and stay to the end")
        held = [self[value] for value in numbers]
        for value in numbers:
            del self.values[value]
        return held

    def outputs(self, values: Iterable[int]) -> tuple[object, ...]:
        """Return the given values, in order. Raises ProgramError when one is not live."""
        return tuple(self[value] for value in values)
