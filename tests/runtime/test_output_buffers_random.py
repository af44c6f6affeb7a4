"""Random fusions that update inputs and write into output buffers, against NumPy that copies everything first.

Whatever the segmentation, every reader sees the arguments as they were before the call. Buffers overlap arguments,
are strided, or start at odd places; whole numbers are compared bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.random_programs.random_fusions import definitions
from tests.random_programs.test_random_fusions import predicates
from tests.session.samples import times
from tests.ways import assert_equal_bits, backend_of, crossing, on_backend, on_host
from tracefuse import config, fuse
from tracefuse.compiler.executable import Executable
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.reference import evaluate
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes
from tracefuse.runtime.memory.buffer_facts import OutputBufferUse, returned

EXAMPLES = {"cpu": 40, "interpreter": 20, "interpreter-cuda": 40, "cuda": 60}


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
    passed = run_passes(FUSION_PASSES, fusion, config.resolve()) if merge is None else fusion
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
    executable, use = Executable(segmentation, backend_of(backend)), OutputBufferUse.of(into)
    touched = [buffer for buffer in into if buffer is not None]
    for is_first in (True, False):
        made: Any
        if is_first:
            made = executable(given, into)
        else:  # once more, as a call that meets what it met before
            refill(backend, given, before)
            own = [*given, *touched]
            made = executable.plans.attempt_into(own, use) if touched else executable.plans.attempt(own)
            assert made is not None
        for number, buffer, result in zip(numbers, into, made, strict=True):
            assert buffer is None or result is buffer
            if isinstance(wanted[number], np.ndarray):
                compare(fusion, result, wanted[number], f"{backend}: output {number}")
        for number, argument, old in zip(fusion.inputs, given, before, strict=True):
            if number in owners:
                compare(fusion, argument, wanted[owners[number]], f"{backend}: updated input {number}")
            elif isinstance(old, np.ndarray) and not any(np.may_share_memory(argument, b) for b in touched):
                assert_equal_bits(on_host(argument), old, f"{backend}: input {number} has changed")


def refill(backend: str, arrays: list[Any], before: list[Any]) -> None:
    """Writes into arrays what they had."""
    for array, old in zip(arrays, before, strict=True):
        if isinstance(old, np.ndarray):
            array[...] = on_backend(backend, old)


def compare(fusion: Fusion, actual: Any, expected: Any, what: str) -> None:
    signed = not any(node.op.name in ("maximum", "minimum", "max", "min") for node in fusion.nodes)
    assert_equal_bits(on_host(actual), expected, what, signed_zeros=signed)


@pytest.mark.parametrize("extents", ["short", "long"])
def test_every_reader_sees_the_arguments_as_they_were(backend: str, extents: str) -> None:
    examples = EXAMPLES[backend] // (1 if extents == "short" else 4)

    @settings(max_examples=times(examples), suppress_health_check=list(HealthCheck))
    @given(st.data(), definitions("exact", extents == "long", updates=True), predicates())
    def holds(data: st.DataObject, drawn: tuple[FusionDefinition, list[Any]], merge: Any) -> None:
        definition, arguments = drawn
        check(definition, arguments, merge, backend, data.draw)

    holds()


# ---------------------------------------------------------------------------------------------------------------------
# fused functions that are called again and again, with arguments and results anywhere in one memory


def adds_and_scales(x: Any, y: Any) -> Any:
    x += y
    return (x * 2,)


FUNCTIONS: list[Any] = [
    lambda x, y: (x * 2 + y,), lambda x, y: (x + y[::-1],), lambda x, y: (x - y, y * x.sum(0)),
    lambda x, y: (x.T + 1,), lambda x, y: (x @ y.T, x + 1), adds_and_scales,
]  # fmt: skip
DONATED: list[dict[str, Any]] = [{}, {"donate_argnums": 0}, {"donate_argnums": (0, 1)}]
FUSED = [[fuse(function, donation="ignore", **given) for given in DONATED] for function in FUNCTIONS]
MEMORY = np.zeros(120, np.float32)


@st.composite
def places(draw: Any, shape: tuple[int, ...]) -> Any:
    """The positions in MEMORY of an array: contiguous, of a wider matrix, with steps, turned or backwards."""
    rows, columns = shape
    positions = np.arange(draw(st.integers(0, 20)), MEMORY.size)
    match draw(st.sampled_from(["plain", "plain", "wider", "steps", "turned", "backwards"])):
        case "wider":
            return positions[: 6 * rows].reshape(rows, 6)[:, 1 : 1 + columns]
        case "steps":
            return positions[: 2 * rows * columns].reshape(rows, 2 * columns)[:, ::2]
        case "turned":
            return positions[: rows * columns].reshape(columns, rows).T
        case "backwards":
            return positions[: rows * columns].reshape(shape)[::-1]
    return positions[: rows * columns].reshape(shape)


def at(positions: Any) -> Any:
    """The part of MEMORY at these positions."""
    if not positions.size:
        return np.empty(positions.shape, np.float32)
    steps = [stride // positions.itemsize * MEMORY.itemsize for stride in positions.strides]
    return np.ndarray(positions.shape, MEMORY.dtype, MEMORY, positions[0, 0] * MEMORY.itemsize, steps)


def one_call(draw: Any) -> None:
    """A call beside NumPy's on copies of its arguments."""
    which, donating = draw(st.integers(0, len(FUNCTIONS) - 1)), draw(st.sampled_from([0, 0, 1, 2]))
    shape = draw(st.sampled_from([(3, 4), (4, 4), (1, 4), (0, 4)]))
    MEMORY[:] = np.arange(MEMORY.size) % 17
    x_at, y_at = draw(places(shape)), draw(places(shape))
    y_at = draw(st.sampled_from([x_at, y_at]))
    x, y = at(x_at), at(y_at)
    own_x, own_y = x.copy(), y.copy()
    changes = FUNCTIONS[which] is adds_and_scales
    if changes and np.shares_memory(x, y):
        return
    expected = FUNCTIONS[which](own_x, own_y)
    written = [x_at, y_at][: max(donating, int(changes))]
    apart, out = [x] if changes else [], []
    for wanted in expected:
        own = draw(places(wanted.shape))
        buffer, where = draw(st.sampled_from([(None, own), (np.empty_like(wanted), None), (at(own), own), (x, x_at)]))
        if buffer is not None and (
            buffer.shape != wanted.shape or any(np.shares_memory(buffer, other) for other in apart)
        ):
            buffer = None
        out.append(buffer)
        if buffer is not None:
            apart.append(buffer)
            written += [] if where is None else [where]
    may_change = np.zeros(MEMORY.size, bool)
    for positions in written:
        may_change[positions] = True
    before = MEMORY.copy()
    result = FUSED[which][donating](x, y, out=tuple(out))
    for made, wanted, buffer in zip(result, expected, out, strict=True):
        assert buffer is None or made is buffer
        np.testing.assert_array_equal(made, wanted)
    np.testing.assert_array_equal(MEMORY[~may_change], before[~may_change])
    if changes:
        np.testing.assert_array_equal(x, own_x)


@settings(max_examples=times(30), suppress_health_check=list(HealthCheck), deadline=None)
@given(st.data())
def test_random_calls_of_fused_functions_equal_numpy_whatever_memory_they_share(data: st.DataObject) -> None:
    for _ in range(8):
        one_call(data.draw)
