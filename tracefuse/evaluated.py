"""An executable that runs a fusion by its NumPy meaning: the target "reference".

It compiles nothing and splits nothing. For finding out whether a difference comes from tracing or from kernels.

Knows: evaluate. Must not know: kernels, segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.evaluate import evaluate
from tracefuse.ir import Fusion


class EvaluatedExecutable:
    """Calls `evaluate`, with everything stored rounded. compiles: that of all sizes, done at once."""

    compiles = 1

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """The outputs, for NumPy arrays and Python numbers in the order of the fusion's inputs."""
        return evaluate(self.fusion, arguments)

    attempt = __call__
