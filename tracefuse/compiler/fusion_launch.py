"""A whole fusion as one step of a host program, concretized at each launch.

In a loop, sizes that depend on the index differ between iterations. Each iteration runs the plan for its own sizes,
never the plan of the first iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.compiler.executable import Executable


@dataclass(frozen=True, slots=True)
class FusionLaunch:
    """Runs an executable as a Launch of a host program, on arrays and host scalars in the order of its inputs.

    The launch writes into the outputs that the program has allocated, or allocates all of them.
    """

    executable: Executable
    name: str = "fusion"

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any] | None:
        """Runs the plan for these sizes. Raises as `Executable.__call__`, before anything runs."""
        results = self.executable(inputs, outputs or None)
        return None if outputs else results

    def __str__(self) -> str:
        return self.name
