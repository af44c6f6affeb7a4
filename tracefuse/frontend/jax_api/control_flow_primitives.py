"""Rules of primitives that contain jaxprs: calls, loops and branches."""

from __future__ import annotations

from typing import Any

from tracefuse.frontend.control_flow.control_flow_functions import cond, scan, while_loop
from tracefuse.frontend.jax_api.jaxpr_recording import Equation, primitive
from tracefuse.frontend.jax_api.movement_primitives import as_tensor

_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")


@primitive(
    "jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr", "custom_jvp_call_jaxpr", "composite", of_keys=True,
)  # fmt: skip
def _call(e: Equation) -> Any:
    body = next(e.parameters[name] for name in _BODIES if name in e.parameters)
    return e.record(body, e.inputs)


@primitive("fused_call", of_keys=True)
def _fused_call(e: Equation) -> Any:
    """A fused function that another one calls inside of JAX's transformations."""
    return e.record(e.parameters["call"].closed, e.inputs)


@primitive("call_hi_primitive")
def _expand(e: Equation) -> Any:
    """A call that JAX 0.12 expands into other primitives when it lowers a jaxpr."""
    return e.record_function(lambda *inputs: e.primitive.to_lojax(*inputs, **e.parameters), *e.operands)


@primitive("scan", of_keys=True)
def _scan(e: Equation) -> Any:
    constants, carried = _scan_groups(e)
    inputs = [as_tensor(value) for value in e.inputs]
    fixed, init, arrays = inputs[:constants], inputs[constants : constants + carried], inputs[constants + carried :]

    def step(carry: list[Any], slices: list[Any]) -> tuple[list[Any], list[Any]]:
        results = e.record(e.parameters["jaxpr"], [*fixed, *carry, *slices])
        return results[:carried], results[carried:]

    (length,) = e.recorder.sizes([e.extent(e.parameters["length"])])
    final, stacked = scan(step, init, arrays, length, bool(e.parameters["reverse"]))
    return [*final, *stacked]


def _scan_groups(e: Equation) -> tuple[int, int]:
    """Returns how many operands of a scan are constants and carried values. JAX 0.11 keeps them as a tree of each."""
    if "num_consts" in e.parameters:
        return e.parameters["num_consts"], e.parameters["num_carry"]
    tree = e.parameters["ft_in"]
    constants, carried, _ = tree.unpack() if hasattr(tree, "unpack") else tree
    return len(constants), len(carried)


@primitive("while", of_keys=True)
def _while(e: Equation) -> Any:
    of_condition, of_body = e.parameters["cond_nconsts"], e.parameters["body_nconsts"]
    inputs = [as_tensor(value) for value in e.inputs]
    tested, fixed, init = (
        inputs[:of_condition],
        inputs[of_condition : of_condition + of_body],
        inputs[of_condition + of_body :],
    )
    batch = len(e.parameters["cond_jaxpr"].out_avals[0].shape)

    def goes_on(carry: list[Any]) -> Any:
        return e.record(e.parameters["cond_jaxpr"], [*tested, *carry])[0]

    def step(carry: list[Any]) -> list[Any]:
        return e.record(e.parameters["body_jaxpr"], [*fixed, *carry])

    if not batch:
        return while_loop(goes_on, step, init)
    axes = tuple(range(batch))

    def batched_step(carry: list[Any]) -> list[Any]:
        """Changes the elements of the batch that go on."""
        flags, results = goes_on(carry), []
        for before, after in zip(carry, step(carry), strict=True):
            added = [k >= batch for k in range(len(after.extents))]
            chosen = e.emit("broadcast", flags, is_broadcast_dim=tuple(added)) if any(added) else flags
            results.append(e.emit("where", chosen, after, before))
        return results

    return while_loop(lambda carry: e.emit("any", goes_on(carry), dims=axes, keepdim=False), batched_step, init)


@primitive("cond", of_keys=True)
def _cond(e: Equation) -> Any:
    """The branches by index, of which one outside is moved inside, as nested choices of two."""
    index, *operands = e.inputs
    branches = e.parameters["branches"]

    def choose(first: int) -> Any:
        if first == len(branches) - 1:
            return e.record(branches[first], operands)
        is_first = e.emit("le", as_tensor(index), first)
        return cond(is_first, lambda: e.record(branches[first], operands), lambda: choose(first + 1))

    return choose(0)
