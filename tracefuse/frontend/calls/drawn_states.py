"""The states of random generators before a call drew from them, for a trace that starts again with other draws.

The trace of a loop that draws may start again as a loop that is recorded once, or that is unrolled: its draws are then
others, in the same order. They begin from the same states, so that they give the same numbers.

Must not know: traces, recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tracefuse.ops.random_draws import RandomSource


class DrawnStates:
    """The states before the first draw of a call, by the id of the generator."""

    def __init__(self) -> None:
        self._restores: dict[int, Callable[[], None] | None] = {}

    def add(self, sources: Iterable[RandomSource]) -> None:
        """Notes the states of generators that are about to be drawn from. One that the call creates needs none."""
        for source in sources:
            if source.exists:
                generator = source.generator()
                if id(generator) not in self._restores:
                    self._restores[id(generator)] = _restore_of(generator)

    def restore(self) -> bool:
        """Returns every generator to its state; False, and changes none, if one has no state that can be set."""
        restores = [restore for restore in self._restores.values() if restore is not None]
        if len(restores) < len(self._restores):
            return False
        for restore in restores:
            restore()
        return True


def _restore_of(generator: Any) -> Callable[[], None] | None:
    """Returns a function that sets the current state of a generator again; None for a library without such states."""
    if hasattr(generator, "bit_generator"):
        bits = generator.bit_generator
        state = bits.state
        return lambda: setattr(bits, "state", state)
    if hasattr(generator, "get_state"):
        legacy = generator.get_state()
        return lambda: generator.set_state(legacy)
    return None
