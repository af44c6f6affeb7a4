"""Functions that call a compiled loop driver, written as Python text.

Small arrays that only steps read share one allocation: there are dozens in a loop, and each costs as much as a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, TypeAlias

from tracefuse.dtypes import uint8
from tracefuse.generated_code import compile_function
from tracefuse.kernel.loop_driver import NO_CHOICE
from tracefuse.ops.native_draws import state_of
from tracefuse.runtime.devices.cpu_memory import ALIGNMENT
from tracefuse.runtime.driver_parameters import FixedNumber, FromBounds, FromOperand, FromState, NewMemory, Source

SHARED_BYTES = 2**14
"""The size of the largest array that shares its allocation with others."""

DriverCall: TypeAlias = Callable[[Sequence[Any], Sequence[int], Any], "list[Any] | int"]
"""Called with the operands and the bounds of a loop and the function that makes an array; see `BoundDriver.run`."""


def driver_call(
    sources: Sequence[Source], results: Sequence[tuple[NewMemory, NewMemory]], launch: Callable[..., int]
) -> DriverCall:
    """Returns the function that runs a loop. results: for each, its memory after an even and an odd number of steps."""
    scope: dict[str, Any] = {"launch": launch, "state_of": state_of, "NO_CHOICE": NO_CHOICE}
    drawn_from = [source.source for source in sources if isinstance(source, FromState)]
    if drawn_from:
        scope["launch"] = lambda *arguments: _launched(launch, drawn_from, arguments)
    lines, arguments, names = list[str](), list[str](), dict[NewMemory, str]()
    shared, end = _places(sources, {memory for pair in results for memory in pair})
    if shared:
        scope["shape"], scope["bytes"] = (end,), uint8
        lines += ["memory = empty(shape, bytes)", 'base = memory.__array_interface__["data"][0]']
    for position, source in enumerate(sources):
        match source:
            case FixedNumber(value):
                arguments.append(repr(value))
            case FromOperand(place, part):
                arguments.append(f"o[{place}].{part}" if part else f"o[{place}]")
            case FromBounds(place):
                arguments.append(f"b[{place}]")
            case FromState(of_state):
                scope[f"c{position}"] = of_state
                lines += [f"a{position} = state_of(c{position}.generator())", f"if a{position} is None:"]
                lines += ["    return NO_CHOICE"]
                arguments.append(f"a{position}")
            case NewMemory() if source in shared:
                arguments.append(f"base + {shared[source]}")
            case NewMemory(_, shape, dtype):
                names[source] = name = f"a{position}"
                scope[f"s{position}"], scope[f"d{position}"] = shape, dtype
                lines.append(f"{name} = empty(s{position}, d{position})")
                arguments.append(name)
    memory = [(names[even], names[odd]) for even, odd in results]
    chosen = [even if even == odd else f"{odd} if n & 1 else {even}" for even, odd in memory]
    lines += [f"n = launch({', '.join(arguments)})", f"return n if n < 0 else [{', '.join(chosen)}]"]
    text = "def call(o, b, empty):\n" + "".join(f"    {line}\n" for line in lines)
    return compile_function(text, "call", scope, "loop")  # type: ignore[no-any-return]


def _places(sources: Sequence[Source], results: set[NewMemory]) -> tuple[dict[NewMemory, int], int]:
    """The offsets of small arrays in the memory that they share, and its size. results: arrays that a call returns."""
    places, end = dict[NewMemory, int](), 0
    for source in sources:
        if isinstance(source, NewMemory) and source not in results and source not in places:
            size = math.prod(source.shape) * source.dtype.itemsize
            if size <= SHARED_BYTES:
                places[source] = end
                end += max(-(-size // ALIGNMENT), 1) * ALIGNMENT
    return (places, end) if len(places) > 1 else ({}, 0)


def _launched(launch: Callable[..., int], sources: Sequence[Any], arguments: Sequence[Any]) -> int:
    """Calls the compiled function. If the host has to run the loop instead, it draws the same numbers again."""
    drawn_from = [source.generator() for source in sources]
    bits = {id(one.bit_generator): one.bit_generator for one in drawn_from}
    with ExitStack() as locks:
        for one in bits.values():
            locks.enter_context(one.lock)
        states = [one.state for one in bits.values()]
        steps = launch(*arguments)
    if steps < 0:
        for one, state in zip(bits.values(), states, strict=True):
            one.state = state
    return steps


def key_function(tensors: Sequence[bool], free_numbers: int) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    """Returns a function from the operands of a loop to what a driver depends on.

    tensors: whether each operand is one. free_numbers: that drivers take as arguments, the first operands.
    """
    parts = [
        f"o[{k}].shape, o[{k}].strides"
        if is_tensor
        else (f"type(o[{k}])" if k < free_numbers else f"o[{k}] if isinstance(o[{k}], int) else type(o[{k}])")
        for k, is_tensor in enumerate(tensors)
    ]
    text = f"def key(o):\n    return ({''.join(f'{part}, ' for part in parts)})\n"
    return compile_function(text, "key", {}, "key of a loop")  # type: ignore[no-any-return]
