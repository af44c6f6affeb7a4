"""Lists and dicts that the function got as entries of a list of rows: changes of them would not reach the list."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.ir.extents import Symbol


class EntryCopies:
    """The copies of one attempt, with what each held when it was made."""

    def __init__(self) -> None:
        self._held: list[tuple[Any, Any, Symbol | None]] = []
        self._by_position: dict[Hashable, tuple[Any, int]] = {}

    def note(self, entry: Any, symbol: Symbol | None) -> None:
        """Notes the containers in an entry. symbol: the counter of the loop that made the list."""
        waiting = [entry]
        while waiting:
            one = waiting.pop()
            if type(one) in (list, dict):
                self._held.append((one, one.copy(), symbol))
            if isinstance(one, (list, dict, tuple)):
                waiting += one.values() if isinstance(one, dict) else one

    def at(self, position: Hashable, make: Callable[[], Any]) -> Any:
        """Returns the entry at a position, which is one object at every read. Raises what `check` raises for it."""
        if position not in self._by_position:
            first = len(self._held)
            self._by_position[position] = make(), first
        entry, first = self._by_position[position]
        self._check(self._held[first : first + 1])
        return entry

    def check_none_of(self, list_id: int) -> None:
        """Raises NotInEveryIteration if an entry of a list was read, which now gets entries of its own: other ones."""
        for position, (_, first) in self._by_position.items():
            if isinstance(position, tuple) and position[0] == list_id:
                symbol = self._held[first][2]
                raise NotInEveryIteration("an entry of a list that a loop appends to is read, and the list", symbol)

    def check(self) -> None:
        """Raises NotInEveryIteration if a copy has been changed, and forgets all.

        The next attempt has the list with its entries.
        """
        self._check(self._held)
        self._held.clear()
        self._by_position.clear()

    def _check(self, held: list[tuple[Any, Any, Symbol | None]]) -> None:
        for one, before, symbol in held:
            if not _are_same(one, before):
                raise NotInEveryIteration("an entry of a list that a loop appends to is changed", symbol)


def _are_same(one: Any, before: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(before) and _are_same([*one.values()], [*before.values()])
    return len(one) == len(before) and all(new is old for new, old in zip(one, before, strict=True))
