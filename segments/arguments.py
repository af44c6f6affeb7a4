"""The live values of one run, by original number.

An `ArgumentManager` holds exactly the live values: bind the inputs and extents, gather the arguments of a segment in
its own order, store its results, release dead values. The live values can be inspected at any point, including after a
launch has raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from segments.index_map import Segment
from segments.instructions import ProgramError, name_of, names_of


class ArgumentManager:
    """Live values by original number: tensors and scalars from 0 up, extents negative.

    It serves one run at a time and is not thread-safe.
    """

    __slots__ = ("values",)

    def __init__(self, inputs: Mapping[int, object] | None = None, extents: Mapping[int, object] | None = None) -> None:
        # Execution updates this dict directly, in order of definition. Read `live` instead.
        self.values: dict[int, object] = {}
        self.bind(inputs or {}, extents)

    def bind(self, inputs: Mapping[int, object], extents: Mapping[int, object] | None = None) -> None:
        """Add inputs and extents. Raises ProgramError for a number that is already live or a non-negative extent."""
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
        """A new dict of the live values, in order of definition, followed by the extents -1, -2, ..."""
        live = {value: content for value, content in self.values.items() if value >= 0}
        for extent in sorted((value for value in self.values if value < 0), reverse=True):
            live[extent] = self.values[extent]
        return live

    def __getitem__(self, value: int) -> object:
        """Return a live value. Raises ProgramError when it is not live."""
        try:
            return self.values[value]
        except KeyError:
            raise ProgramError(
                f"{name_of(value)} is not live: it was never bound or produced, or has been released "
                f"(live: {names_of(self.live) or 'none'})"
            ) from None

    def gather(self, segment: Segment) -> list[object]:
        """Return the arguments of `segment` in the order of its inputs. Raises ProgramError if one is not live."""
        return [self[value] for value in segment.original_inputs]

    def store(self, segment: Segment, outputs: Sequence[object]) -> None:
        """Store the results of `segment`, in the order of its outputs.

        Raises ProgramError, and stores nothing, if the count differs or an output is already live.
        """
        numbers = segment.original_outputs
        if len(outputs) != len(numbers):
            raise ProgramError(f"a segment with outputs {names_of(numbers)} returned {len(outputs)} values")
        twice = [value for value in numbers if value in self.values]
        if twice:
            raise ProgramError(f"already live: {names_of(twice)}")
        self.values.update(zip(numbers, outputs, strict=True))

    def release(self, values: Iterable[int]) -> list[object]:
        """Remove values and return their contents, in order. Raises ProgramError for extents and dead values."""
        numbers = tuple(values)
        for value in numbers:
            if value < 0:
                raise ProgramError(f"{name_of(value)} is an extent: extents are integers and are never released")
        contents = [self[value] for value in numbers]
        for value in numbers:
            del self.values[value]
        return contents

    def outputs(self, values: Iterable[int]) -> tuple[object, ...]:
        """Return the contents of `values`, in order. Raises ProgramError if one is not live."""
        return tuple(self[value] for value in values)
