"""The ops that run sub-fusions, by name.

They are not in the registry: their operands, attributes and results depend on the sub-fusions, so none of what is
derived from an op definition (NumPy's functions, samples for tests, error bounds) applies to them.
"""

from __future__ import annotations

from typing import Any

from segments.lazy_dataclasses import replace
from tracefuse.dtypes import ALL
from tracefuse.errors import InternalError
from tracefuse.ir.control_flow import Branch, ControlFlow, CountedLoop, RangeLoop, WhileLoop
from tracefuse.ops.printed_calls import print_control_flow


def _needs_sub_fusions(*arguments: Any, **keywords: Any) -> Any:
    raise InternalError("an op that runs sub-fusions has no function of arrays")


_COMMON: dict[str, Any] = {
    "domain": ALL, "shape": _needs_sub_fusions, "numpy": _needs_sub_fusions, "printed": print_control_flow,
}  # fmt: skip

_COMPILED = "on a CPU a compiled function runs the steps if it can (debug=1 logs why not); else"

while_loop = WhileLoop(
    name="while_loop", parts=("condition", "body"), conditions=("condition",), doc="Runs body while condition holds; carries values.",
    on_host=f"{_COMPILED} the host reads the condition before every step; on a GPU it waits for it", **_COMMON,
)  # fmt: skip
counted_loop = CountedLoop(
    name="counted_loop", parts=("body",), stacks=True, doc="Runs body for each integer of a range; carries, slices and stacks.",
    on_host=f"{_COMPILED} the host counts the steps and waits for none", **_COMMON,
)  # fmt: skip
range_loop = RangeLoop(
    name="range_loop", parts=("body",), doc="Runs body for each integer of a range, on which its extents may depend.",
    on_host=f"{_COMPILED} the host counts the steps and waits for none", **_COMMON,
)  # fmt: skip
branch = Branch(
    name="branch", parts=("on_true", "on_false"), doc="Runs on_true if operand 0 is true, else on_false.",
    on_host="the host reads operand 0; on a GPU it waits for it, unless it is a number", **_COMMON,
)  # fmt: skip

WITH_EFFECTS: dict[ControlFlow, ControlFlow] = {
    op: replace(op, effect=True) for op in (while_loop, counted_loop, range_loop, branch)
}  # fmt: skip
"""The same ops for bodies that draw random numbers or exchange data, by the op without effects."""

CONTROL_FLOW: dict[str, ControlFlow] = {op.name: op for op in (while_loop, counted_loop, range_loop, branch)}
