"""Attentions traced, split for a GPU and computed: kernels by the interpreter, other segments by the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.schedule.cuda_lowering import H200, Case
from tracefuse import config
from tracefuse.dynamic.layouts import Strided, strided
from tracefuse.frontend.tracer.captured.routes import CallRoots
from tracefuse.frontend.tracing import trace
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.reference import evaluate, evaluate_scalars, extent_values
from tracefuse.partition.segmentation import Part, Segmentation, segment_fusion
from tracefuse.partition.segments_for_sizes import SizedChoices, for_sizes
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes
from tracefuse.runtime.argument_leaves import classify
from tracefuse.schedule.choose import choose
from tracefuse.schedule.nest import contiguous_strides
from tracefuse.schedule.sizes import Sizes


@dataclass(frozen=True)
class Program:
    """A fusion split for the sizes of some arrays."""

    fusion: Fusion
    arguments: tuple[Any, ...]
    segmentation: Segmentation

    @property
    def attentions(self) -> list[Part]:
        return [part for part in self.segmentation.segments if part.template == "attention"]

    def lowered(self, part: Part, arrays: list[Any]) -> Case:
        """The attention of a segment, lowered for its inputs."""
        fusion = part.fusion
        values = dict(extent_values(fusion, arrays))
        strides = {n: contiguous_strides(fusion.shape_of(n)) for n in fusion.tensor_inputs}
        aligned = frozenset(n for n, a in zip(fusion.inputs, arrays, strict=True) if np.ndim(a))
        named: dict[str, int] = {}
        choice = choose(fusion, part.rule, strides, Sizes(values, named), H200, name="k", aligned=aligned)
        assert choice.template.name.startswith("attention")
        return Case(fusion, tuple(arrays), choice.lower(), values, named)

    def run(self) -> list[Any]:
        """The outputs, with the attentions computed by the interpreter."""
        values = self.values()
        return [values[n] for n in self.segmentation.fusion.outputs]

    def values(self) -> dict[int, Any]:
        """All values that segments store, by number, with the attentions computed by the interpreter."""
        fusion = self.segmentation.fusion
        known: dict[int, Any] = dict(zip(fusion.inputs, self.arguments, strict=True))
        sizes = extent_values(fusion, self.arguments)
        host = [n for n in fusion.nodes if not fusion.values[n.outputs[0]].is_tensor]
        scalars = {n: known[n] for n in fusion.scalar_inputs}
        for node, value in zip(host, evaluate_scalars(fusion, host, scalars, sizes), strict=True):
            known[node.outputs[0]] = value
        for part in self.segmentation.segments:
            interface = part.segment
            arrays = [sizes[n] if n < 0 else known[n] for n in interface.original_inputs]
            arrays = [np.ascontiguousarray(a) if np.ndim(a) else a for a in arrays]
            if part.template == "attention":
                results = self.lowered(part, arrays).run()
            else:
                results = evaluate(part.fusion, arrays)
            known.update(zip(interface.original_outputs, results, strict=True))
        return known


def fusion_of(function: Callable[..., Any], *arguments: Any) -> Fusion:
    """The function's fusion after the passes that come before partitioning."""
    leaves = [classify(argument, f"argument {k}") for k, argument in enumerate(arguments)]
    traced = trace(function, leaves, lambda given: (tuple(given), {}), CallRoots(None, arguments))
    return run_passes(FUSION_PASSES, traced.fusion, config.resolve())


def program(fusion: Fusion, *arguments: Any) -> Program:
    """The fusion, split for these arguments."""
    sizes = extent_values(fusion, arguments)
    layouts: list[Strided | None] = []
    for number in fusion.tensor_inputs:
        array = arguments[fusion.inputs.index(number)]
        plain = array.flags.c_contiguous
        layouts.append(None if plain else strided(array.shape, array.strides, array.itemsize, True))
    segmentation, _ = for_sizes(
        segment_fusion(fusion), sizes, choices=SizedChoices(H200.attention, sums=H200.small_products), layouts=layouts,
        aligned=frozenset(fusion.tensor_inputs),
    )  # fmt: skip
    return Program(fusion, arguments, segmentation)
