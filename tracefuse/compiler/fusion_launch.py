"""A whole fusion as one step of a host program, concretized at each launch.

In a loop the sizes that depend on the index are other ones in each iteration: each iteration gets the plan for its own
sizes, found by its guards or made, and never that of the first.

Knows: executables, what a host program asks of a launch. Must not know: programs, loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracefuse.compiler.executable import Executable


@dataclass(frozen=True, slots=True)
class FusionLaunch:
    """What a Launch of a host program runs: `executable`, on arrays and host scalars in the order of its inputs.

    Outputs that the program has allocated are written in place; else the launch makes all of them.
    """

    executable: Executable
    name: str = "fusion"

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any] | None:
        """Runs the plan for these sizes. Raises as the executable does, before anything has run."""
        made = self.executable(inputs, outputs or None)
        return None if outputs else made

    def __str__(self) -> str:
        return self.name
