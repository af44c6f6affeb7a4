"""The target "reference": evaluates a fusion by the reference implementations of its ops.

It compiles and partitions nothing. Use it to find out whether a difference comes from tracing or from kernels.

Must not know: kernels, segments.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from tracefuse.ir.fusion import Fusion
from tracefuse.ir.reference import evaluate
from tracefuse.runtime.memory.buffer_facts import read_output_buffers, returned, updated_slice
from tracefuse.runtime.memory.call_facts import read_facts
from tracefuse.runtime.targets.cpu.cpu_target import cpu_target


class EvaluatedExecutable:
    """Calls `evaluate`, which rounds every stored value. compiles: 1, since nothing depends on sizes."""

    compiles = 1

    def __init__(self, fusion: Fusion) -> None:
        self.fusion = fusion

    def __call__(
        self, arguments: Sequence[Any], outputs: Sequence[Any] | None = None, donated: Sequence[int] = (),
        unchanged: Collection[int] = (),
    ) -> list[Any]:  # fmt: skip
        """The outputs, for NumPy arrays and Python numbers in the order of the fusion's inputs; see `Executable`.

        Donated arguments stay as they are.
        """
        if outputs is None and not self.fusion.aliases:
            return evaluate(self.fusion, arguments)
        facts = read_facts(self.fusion, cpu_target().device, arguments)
        buffers = read_output_buffers(self.fusion, cpu_target().device, facts, outputs)
        results = dict(zip(self.fusion.outputs, evaluate(self.fusion, facts.arguments), strict=True))
        by_number = dict(zip(self.fusion.inputs, facts.arguments, strict=True))
        for value, owner in self.fusion.aliases.items():
            target = by_number[owner]
            if value in self.fusion.slice_updates:
                target = updated_slice(self.fusion, value, target, facts.values)
            target[...] = results[value]
        for value, buffer in (buffers.objects or {}).items():
            buffer[...] = results[value]
            results[value] = buffer
        return [results[number] for number in returned(self.fusion)]
