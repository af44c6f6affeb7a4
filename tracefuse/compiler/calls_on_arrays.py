"""Steps of loops and slices: options, and calls of a plan whose arrays and floats alone differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.config import Options, ResizeExtents
from tracefuse.ir.fusion import Fusion


def step_options(options: Options, fusion: Fusion) -> Options:
    """Returns the options for steps that run `fusion`: they are checked but not logged, and their sizes may differ."""
    quiet = options.replaced(debug=0, dump="")
    differ = any(fusion.values[number].extent is not None for number in fusion.scalar_inputs)
    return quiet.replaced(concretize_resize_extents=ResizeExtents.STEPS) if differ else quiet


def call_on_arrays(
    fusion: Fusion, values: Sequence[Any], call: Callable[[Sequence[Any]], Any],
    otherwise: Callable[[Sequence[Any], Sequence[Any]], Any],
) -> Callable[..., None]:  # fmt: skip
    """Returns a function of the input tensors, the output buffers and the scalars that are not integers.

    values: the arguments and output buffers of one call, for the integers. call: of the plan; returns None if it does
    not fit. otherwise: called with the arguments and the output buffers then.
    """
    inputs = fusion.inputs
    tensors = [k for k, number in enumerate(inputs) if fusion.values[number].is_tensor]
    floats = [k for k, n in enumerate(inputs) if k not in tensors and not fusion.values[n].dtype.is_integer]
    places = [*tensors, *range(len(inputs), len(values)), *floats]
    # Holds no reference to the arrays.
    fixed = [None if k in places else value for k, value in enumerate(values)]

    def on_arrays(*varying: Any) -> None:
        operands = list(fixed)
        for place, value in zip(places, varying, strict=True):
            operands[place] = value
        if call(operands) is None:
            otherwise(operands[: len(inputs)], operands[len(inputs) :])

    return on_arrays
