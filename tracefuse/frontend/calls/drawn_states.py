"""The states of random generators before a call drew from them, for a call that starts again with other draws.

The trace of a loop that draws may start again as a loop that is recorded once, or that is unrolled: its draws are then
others, in the same order. They begin from the same states, so that they give the same numbers. So do the draws of the
function itself, for a call that leaves its tree of questions.

Must not know: traces, recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tracefuse.ops.random_draws import RandomSource


class DrawnStates:
    """The states before the first draws of a call, by the id of the generator."""

    def __init__(self) -> None:
        self._restores: dict[int, Callable[[], None] | None] = {}

    def add(self, sources: Iterable[RandomSource]) -> None:
        """Notes the states of generators that are about to be drawn from. One that the call creates needs none."""
        for source in sources:
            if source.exists:
                generator = source.generator()
                if id(generator) not in self._restores:
                    self._restores[id(generator)] = _restore_of(generator)

    @property
    def are_known(self) -> bool:
        """Whether every generator has a state that can be set."""
        return None not in self._restores.values()

    def restore(self) -> bool:
        """Returns every generator to its state; False, and changes none, if one has no state that can be set."""
        if not self.are_known:
            return False
        for restore in self._restores.values():
            assert restore is not None
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
