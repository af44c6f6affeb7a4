"""Calls whose results have another order in memory than row-major (`partition/result_orders.py`).

A kernel writes such a result in row-major order with its axes permuted, and the call returns a view with the axes of
the function's result.
"""

from __future__ import annotations

from tracefuse.generated_code import compile_function
from tracefuse.partition.result_orders import inverse
from tracefuse.runtime.call_code import Call
from tracefuse.runtime.memory.buffer_facts import returned
from tracefuse.runtime.plan import Plan


def with_result_orders(call: Call, text: str, plan: Plan) -> tuple[Call, str]:
    """Returns the call and its text, with the axes of permuted results in the function's order."""
    orders = plan.segmentation.result_orders
    if not orders:
        return call, text
    numbers = returned(plan.segmentation.fusion)
    lines = [
        f"        r[{position}] = r[{position}].transpose({inverse(orders[number])})"
        for position, number in enumerate(numbers) if number in orders
    ]  # fmt: skip
    body = "\n".join(["def ordered(a):", "    r = call(a)", "    if r is not None:", *lines, "    return r", ""])
    return compile_function(body, "ordered", {"call": call}, "ordered results"), f"{text}\n{body}"
