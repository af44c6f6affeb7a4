"""Math functions that kernels are linked with, for calls that run once in a loop.

The elements that a loop of whole registers leaves are computed by a second copy of its body. Where the body evaluates
functions, most of the copy is their code, which takes LLVM as long as the loop. So the copy calls functions that are
compiled once. They have the text of the inlined ones, and give the same bits.

A row of 7 to 15 elements would take up to 1.3 times as long, so the loops are those over parts of an array, of which
all but the last have many elements.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracefuse.caches import memoized
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.float32_math import FUNCTIONS, functions
from tracefuse.kernel.llvm.loop_metadata import IN_VECTORS
from tracefuse.kernel.llvm.text_builder import LINKED, Processor, function_and_lanes, vector_type

if TYPE_CHECKING:
    from tracefuse.kernel.llvm.statements import Emitter

SHORT_TEXT = 24
"""The lines of a function up to which a call saves nothing."""

LEAST_PART = 1024
"""The elements of a part beside which a call for each function is nothing."""


def is_part(emitter: Emitter, loop: ir.For) -> bool:
    """Return whether a loop runs once in an iteration of the kernel's grid, over a part of many elements."""
    match loop.start:
        case ir.Call("mul", (ir.Variable(name), ir.Constant(elements))) if emitter.enclosing == 1:
            grid = emitter.kernel.grid
            position, value = (emitter.variables.get(n) for n in (grid[0].variable.name if grid else "", name))
            return position is not None and value == position and elements.real >= LEAST_PART
    return False


@memoized(
    "whether kernels are linked with a math function", key="symbol, processor", most=None,
    bound="math functions and widths", clears=False,
)  # fmt: skip
def is_linked(symbol: str, processor: Processor) -> bool:
    """Return whether rare calls of a math function on vectors call a linked one, which takes LLVM less time."""
    if not function_and_lanes(symbol)[1]:
        return False
    return sum(text.count("\n") for text in functions([symbol], {}, processor)) > SHORT_TEXT


def linked_function(symbol: str, declarations: dict[str, str], processor: Processor) -> list[str] | None:
    """Return the texts of a linked math function and of all that it calls; None for another symbol.

    Their declarations are added to `declarations`.
    """
    if not symbol.endswith(LINKED):
        return None
    called = symbol.removesuffix(LINKED)
    name, lanes = function_and_lanes(called)
    definition = FUNCTIONS[name]
    result = vector_type(definition.result, lanes)
    arguments = ", ".join(f"{vector_type(type_, lanes)} %a{n}" for n, type_ in enumerate(definition.arguments))
    text = "\n".join([
        f"define {result} @{symbol}({arguments}) #1 {{",
        f"  %result = call {result} @{called}({arguments})",
        f"  ret {result} %result",
        "}",
    ])  # fmt: skip
    return [text, *functions([called], declarations, processor), f"!{IN_VECTORS} = !{{}}"]
