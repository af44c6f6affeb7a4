"""Conditions on the counter of a compiled loop, tested once before the loop.

A step of a loop ends the driver if its sizes and indices are none of those that its kernels were built for. Most of
these conditions compare integers that are linear in the counter, so that they hold in all steps if they hold in the
first and in the last one. Tested there, they leave steps without branches: LLVM then keeps elements that one step
writes and the next one reads in registers.
"""

from __future__ import annotations

from collections.abc import Iterator

from segments.lazy_dataclasses import replace
from tracefuse import dtypes
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm.hidden_invariants import parts
from tracefuse.kernel.llvm.plain_loops import inlined, slope
from tracefuse.kernel.loop_driver import ChooseStatements, CountedSteps, DefineNumber, DriverStatement, LoadNumber

_COMPARISONS = ("le", "lt", "ge", "gt", "eq")
"""The comparisons that hold between two steps if they hold in both, for integers that are linear in the counter."""


def without_conditions(loop: CountedSteps) -> tuple[tuple[DriverStatement, ...], CountedSteps]:
    """Return what tests conditions of all steps, to run before a loop, and the loop without them.

    A loop that a flag may stop early is returned as it is, since it may not reach its last step.
    """
    if loop.flag is not None:
        return (), loop
    hoisted: dict[ir.Expression, None] = {}
    steps = tuple(_without(step, loop, hoisted) for step in loop.body)
    if not hoisted:
        return (), loop
    none = (ir.call("le", loop.stop, loop.start),)
    return (ChooseStatements(((none, ()), (tuple(hoisted), ()))),), replace(loop, body=steps)


def _without(step: DriverStatement, loop: CountedSteps, hoisted: dict[ir.Expression, None]) -> DriverStatement:
    """Return a statement of a step without the conditions that can be tested before the loop, and add them."""
    if not isinstance(step, ChooseStatements) or len(step.choices) != 1:
        return step
    ((conditions, statements),) = step.choices
    defined = {name for one in loop.body for name in _defined(one)}
    left: list[ir.Expression] = []
    for condition in conditions:
        variables = {part.name for part in parts(condition) if isinstance(part, ir.Variable)}
        if _is_linear(condition, loop.counter.name) and not defined & variables:
            ends = loop.start, ir.call("sub", loop.stop, ir.Constant(1, dtypes.int64))
            hoisted.update(dict.fromkeys(inlined(condition, {loop.counter.name: end}) for end in ends))
        else:
            left.append(condition)
    return ChooseStatements(((tuple(left), statements),))


def _is_linear(condition: ir.Expression, counter: str) -> bool:
    """Return whether a condition compares two integers that are linear in a counter."""
    match condition:
        case ir.Call(name, (left, right)) if name in _COMPARISONS:
            return slope(left, counter) is not None and slope(right, counter) is not None
    return False


def _defined(step: DriverStatement) -> Iterator[str]:
    """Yield the variables that a statement defines for those after it."""
    match step:
        case DefineNumber(variable) | LoadNumber(variable):
            yield variable.name
        case CountedSteps(count=count) if count is not None:
            yield count.name
