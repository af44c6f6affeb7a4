"""Random fusions that update inputs and write into given buffers, against NumPy that copies everything first.

Whatever the segmentation, every reader sees the arguments as they were before the call. Buffers overlap arguments,
are strided, or start at odd places; whole numbers are compared bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_fusions import definitions
from test_random import predicates
from ways import assert_equal_bits, backend_of, crossing, on_backend, on_host

from tracefuse.compiler import Executable, run_passes
from tracefuse.definition import FusionDefinition
from tracefuse.evaluate import evaluate
from tracefuse.given import returned
from tracefuse.ir import Fusion
from tracefuse.segmentation import segment_fusion

EXAMPLES = {"cpu": 60, "interpreter": 120, "interpreter-cuda": 120, "cuda": 60}


def buffer_like(draw: Any, expected: Any, arguments: list[Any]) -> Any:
    """None, or memory for a result: new, strided, at an odd place, or in that of an argument."""
    if not isinstance(expected, np.ndarray):
        return None
    shape, dtype = expected.shape, expected.dtype
    kind = draw(st.sampled_from(["none", "new", "strided", "reversed", "shifted", "argument"]))
    if kind == "new":
        return np.empty(shape, dtype)
    if kind == "strided" and shape:
        return np.empty((*shape[:-1], 2 * shape[-1]), dtype)[..., ::2]
    if kind == "reversed" and shape:
        return np.empty(shape[::-1], dtype).T[::-1]
    if kind == "shifted":
        return np.empty(expected.size + 1, dtype)[1:].reshape(shape)
    fitting = [a for a in arguments if isinstance(a, np.ndarray) and a.dtype == dtype and a.size >= expected.size]
    if kind == "argument" and fitting:
        memory = draw(st.sampled_from(fitting)).reshape(-1)
        start = draw(st.integers(0, memory.size - expected.size))
        return memory[start : start + expected.size].reshape(shape)
    return None


def check(definition: FusionDefinition, arguments: list[Any], merge: Any, backend: str, draw: Any) -> None:
    fusion = definition.fusion
    passed = run_passes(fusion) if merge is None else fusion
    segmentation = segment_fusion(passed, merge=merge)
    before = [np.array(a) if isinstance(a, np.ndarray) else a for a in arguments]
    wanted = dict(zip(fusion.outputs, evaluate(fusion, before, rounded=crossing(segmentation)), strict=True))
    # Arguments lie in memory of their own, so that what is drawn to overlap them does so on a GPU, too.
    given = [on_backend(backend, np.array(a)) if isinstance(a, np.ndarray) else a for a in arguments]
    numbers = returned(fusion)
    outputs = [buffer_like(draw, wanted[n], given) if backend != "cuda" else None for n in numbers]
    owners = {owner: value for value, owner in fusion.aliases.items()}
    apart = not any(
        np.may_share_memory(a, b)
        for a in outputs
        if a is not None
        for b in [
            *(o for o in outputs if o is not None and o is not a),
            *(given[fusion.inputs.index(o)] for o in owners),
        ]
    )
    into = outputs if apart and len(set(numbers)) == len(numbers) else [None] * len(outputs)
    into = [None if n in fusion.inputs else buffer for n, buffer in zip(numbers, into, strict=True)]
    made = Executable(segmentation, backend_of(backend))(given, into)
    for number, buffer, result in zip(numbers, into, made, strict=True):
        assert buffer is None or result is buffer
        if isinstance(wanted[number], np.ndarray):
            compare(fusion, result, wanted[number], f"{backend}: output {number}")
    touched = [buffer for buffer in into if buffer is not None]
    for number, argument, old in zip(fusion.inputs, given, before, strict=True):
        if number in owners:
            compare(fusion, argument, wanted[owners[number]], f"{backend}: updated input {number}")
        elif isinstance(old, np.ndarray) and not any(np.may_share_memory(argument, b) for b in touched):
            assert_equal_bits(on_host(argument), old, f"{backend}: input {number} has changed")


def compare(fusion: Fusion, actual: Any, expected: Any, what: str) -> None:
    signed = not any(node.op.name in ("maximum", "minimum", "max", "min") for node in fusion.nodes)
    assert_equal_bits(on_host(actual), expected, what, signed_zeros=signed)


@pytest.mark.parametrize("extents", ["short", "long"])
def test_every_reader_sees_the_arguments_as_they_were(backend: str, extents: str) -> None:
    examples = EXAMPLES[backend] // (1 if extents == "short" else 4)

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(st.data(), definitions("exact", extents == "long", updates=True), predicates())
    def holds(data: st.DataObject, drawn: tuple[FusionDefinition, list[Any]], merge: Any) -> None:
        definition, arguments = drawn
        check(definition, arguments, merge, backend, data.draw)

    holds()
