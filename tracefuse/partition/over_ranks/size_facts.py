"""Facts about the sizes of whole arrays that decide which exchanges a fusion over ranks has.

Propagation asks them for the sizes of one call. The exchanges serve every call whose sizes give the same answers, so
that other sizes need neither a trace nor a compilation.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeAlias

from tracefuse.ir.extents import Extent, Symbol, evaluate, substitute, symbols
from tracefuse.ir.fusion import Fusion

Question: TypeAlias = Callable[..., Hashable]
"""A function of integers."""


class SizeFacts:
    """Questions about extents of a fusion, with their answers. sizes: extents and scalars of the call, by id."""

    def __init__(self, fusion: Fusion, sizes: Mapping[int, int]) -> None:
        self.fusion, self.sizes = fusion, sizes
        self._answers: dict[tuple[Question, tuple[Extent, ...]], Any] = {}

    def ask(self, question: Question, *extents: Extent) -> Any:
        """Returns question(*extents) for the sizes of the call."""
        key = question, tuple(map(self.fusion.canonical, extents))
        if key not in self._answers:
            self._answers[key] = question(*(evaluate(extent, self.sizes) for extent in key[1]))
        return self._answers[key]

    @property
    def ids(self) -> tuple[int, ...]:
        """The extents and scalars that the answers depend on, by id."""
        numbers = (s.id for _, extents in self._answers for extent in extents for s in symbols(extent))
        return tuple(dict.fromkeys(identifier for identifier in numbers if identifier is not None))

    def hold(self, sizes: Mapping[int, int]) -> bool:
        """Whether other sizes give the same answers."""
        return all(
            question(*(evaluate(extent, sizes) for extent in extents)) == answer
            for (question, extents), answer in self._answers.items()
        )


class BodyFacts(SizeFacts):
    """Questions about extents of a body, which the sizes of the enclosing fusion answer.

    extents: the extents of the body's inputs as those of the enclosing fusion, by symbol.
    """

    def __init__(self, outer: SizeFacts, body: Fusion, extents: Mapping[Symbol, Extent]) -> None:
        sizes = {symbol.id: evaluate(e, outer.sizes) for symbol, e in extents.items() if symbol.id is not None}
        super().__init__(body, sizes)
        self.outer, self.extents = outer, dict(extents)

    def ask(self, question: Question, *extents: Extent) -> Any:
        return self.outer.ask(question, *map(self.enclosing, extents))

    def enclosing(self, extent: Extent) -> Extent:
        """Returns an extent of the body as one of the enclosing fusion."""
        return substitute(self.fusion.canonical(extent), self.extents)


def divides(extent: int, parts: int) -> bool:
    """Whether an axis has equal parts, and elements."""
    return extent > 0 and extent % parts == 0
