"""Definitions by id and by content, under the names of nvFuser's caches.

Kernels have caches of their own, so these hold definitions only: equal definitions have one id, and a definition can
be made from an id.
"""

from __future__ import annotations

import functools
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import CLEAR_CACHES, Cache, register
from tracefuse.errors import FusionError, OutOfRangeError
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.printing import VectorValue, definition_text

MOST_DEFINITIONS = 8192
"""Definitions that are kept by id; the one that was used longest ago goes first."""


@dataclass(frozen=True)
class RecordedDefinition:
    """A complete definition. vectors: by number. output_orders: the stride orders of outputs, by number."""

    fusion: Fusion
    vectors: Mapping[int, VectorValue]
    output_orders: Mapping[int, tuple[int, ...]]

    @property
    def text(self) -> str:
        """The definition as Python, without its number."""
        return definition_text(self.fusion, "nvfuser_fusion", self.vectors, self.output_orders)


@dataclass
class DefinitionTable:
    """Definitions by id, and ids by text."""

    most: int = MOST_DEFINITIONS
    next_number: int = 0
    numbers: OrderedDict[str, int] = field(default_factory=OrderedDict)
    definitions: dict[int, RecordedDefinition] = field(default_factory=dict)
    lookups: int = 0
    hits: int = 0

    def number_of(self, recorded: RecordedDefinition) -> int:
        """Returns the id of a definition: that of an equal one, or a new one."""
        text = recorded.text
        self.lookups += 1
        if text in self.numbers:
            self.hits += 1
            self.numbers.move_to_end(text)
            self.definitions.setdefault(self.numbers[text], recorded)
            return self.numbers[text]
        number, self.next_number = self.next_number, self.next_number + 1
        self.numbers[text], self.definitions[number] = number, recorded
        while len(self.numbers) > self.most:
            _, oldest = self.numbers.popitem(last=False)
            self.definitions.pop(oldest, None)
        return number

    def restore(self, number: int, text: str) -> None:
        """Reserves an id for the definition with this text, unless the definition or the id is in use."""
        if text not in self.numbers and number not in self.numbers.values():
            self.numbers[text] = number
            self.next_number = max(self.next_number, number + 1)

    def at(self, number: int) -> RecordedDefinition:
        """Returns the definition with an id. Raises OutOfRangeError for an unknown one."""
        if number not in self.definitions:
            raise OutOfRangeError(f"no definition has the id {number}", hint="record it: ids come from fd.id()")
        return self.definitions[number]

    def clear(self) -> None:
        """Drops all definitions; their ids are not used again."""
        self.numbers.clear()
        self.definitions.clear()
        self.lookups = self.hits = 0


RECORDED = DefinitionTable()
register(Cache(
    "nvfuser.fusion_caches.RECORDED", "definitions of nvFuser scripts", "id, or text of the definition",
    f"{MOST_DEFINITIONS}, the one used longest ago goes", cleared_by=CLEAR_CACHES, clear=RECORDED.clear,
))  # fmt: skip


class FusionCache:
    """The definitions of the process; `FusionCache.get()` returns the one object."""

    @staticmethod
    def get(max_fusions: int = MOST_DEFINITIONS, selected_device: int | None = None, load: bool = True) -> FusionCache:
        """Returns the cache. max_fusions: the most definitions that it keeps. The others have no effect."""
        RECORDED.most = max_fusions
        return FusionCache()

    @staticmethod
    def reset() -> None:
        """Drops all definitions."""
        RECORDED.clear()

    def num_fusions(self) -> int:
        """Returns the number of definitions."""
        return len(RECORDED.numbers)

    def stats(self) -> str:
        """Returns the numbers of definitions, lookups and hits as text."""
        return f"Total Fusions: {self.num_fusions()}\nLookups: {RECORDED.lookups}\nHits: {RECORDED.hits}"

    def print_stats(self) -> None:
        """Prints `stats()`."""
        print(self.stats())

    def serialize(self, filename: str | os.PathLike[str]) -> None:
        """Writes the texts of the definitions to a file, by id, as JSON."""
        texts = {str(number): text for text, number in RECORDED.numbers.items()}
        with open(filename, "w", encoding="utf-8") as file:
            json.dump(texts, file)

    def deserialize(self, filename: str | os.PathLike[str]) -> None:
        """Reads the ids of definitions from a file of `serialize`. Nothing in the file is executed.

        A definition that is recorded again gets its id back; its kernels come from the disk cache. Until then
        `FusionDefinition(id)` raises OutOfRangeError.
        """
        with open(filename, encoding="utf-8") as file:
            texts = json.load(file)
        for number, text in sorted((int(number), str(text)) for number, text in texts.items()):
            RECORDED.restore(number, text)


class LRUCache:
    """Compiled definitions by content; the one that was used longest ago goes first. max_fusions: how many are kept."""

    def __init__(self, max_fusions: int) -> None:
        if not isinstance(max_fusions, int) or max_fusions < 1:
            raise FusionError(f"LRUCache: max_fusions cannot be {max_fusions!r}", hint="give 1 or more")
        self._most = max_fusions
        self._compiled: OrderedDict[str, Any] = OrderedDict()
        self._lookups = self._hits = 0

    def cache_compile(self, definition: Any) -> Any:
        """Returns the definition with the same text that came first, or this one."""
        self._lookups += 1
        text = RecordedDefinition(
            definition.fusion, definition.recording.vectors, definition.recording.output_orders
        ).text
        if text in self._compiled:
            self._hits += 1
            self._compiled.move_to_end(text)
            return self._compiled[text]
        self._compiled[text] = definition
        if len(self._compiled) > self._most:
            self._compiled.popitem(last=False)
        return definition

    def num_fusions(self) -> int:
        """Returns the number of definitions."""
        return len(self._compiled)

    def stats(self) -> str:
        """Returns the numbers of definitions, lookups and hits as text."""
        return f"Total Fusions: {self.num_fusions()}\nLookups: {self._lookups}\nHits: {self._hits}"


class LruFusionCache:
    """Decorates a function that returns a definition: equal definitions are compiled once.

    max_fusions: the most definitions that are kept. The decorated function has `stats()` and `num_fusions()`.
    """

    def __init__(self, max_fusions: int = 16384) -> None:
        self.cache = LRUCache(max_fusions)

    def __call__(self, create: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(create)
        def cached(*arguments: Any, **keywords: Any) -> Any:
            return self.cache.cache_compile(create(*arguments, **keywords))

        cached.stats = self.cache.stats  # type: ignore[attr-defined]
        cached.num_fusions = self.cache.num_fusions  # type: ignore[attr-defined]
        return cached
