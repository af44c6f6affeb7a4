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
    """Calls `evaluate`, with everything stored rounded."""

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        return evaluate(self.fusion, arguments)

    def definition(self, arguments: Sequence[Any]) -> Any:
        return self.fusion

    def segments(self, arguments: Sequence[Any]) -> list[Any]:
        return [self.fusion]

    def explain(self, arguments: Sequence[Any]) -> Any:
        return str(self.fusion)
