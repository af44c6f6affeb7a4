"""Rules of primitives that call Python: `jax.debug.print` prints at every call, in program order; others are refused.

Printing calls nothing of JAX's runtime, so that it may happen inside of a program of XLA.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.jax_api.jaxpr_recording import Equation, primitive
from tracefuse.frontend.tracer.effects.printed_values import record_effect


@primitive("debug_print")
def _debug_print(e: Equation) -> list[Any]:
    """Prints a format whose fields are operands or, by their position among all of them, static values."""
    import jax

    parameters = e.parameters
    text, static, options = parameters["fmt"], dict(parameters["static_args"]), dict(parameters["np_printoptions"])

    def show(*values: Any) -> None:
        given = iter(values)
        leaves = [static[k] if k in static else next(given) for k in range(len(static) + len(values))]
        positional, keywords = jax.tree_util.tree_unflatten(parameters["in_tree"], leaves)
        with np.printoptions(**options):
            print(text.format(*positional, **keywords) if parameters["has_placeholders"] else text)

    record_effect(show, e.inputs)
    return []


@primitive("debug_callback", "io_callback", "pure_callback")
def _callback(e: Equation) -> list[Any]:
    raise UnsupportedError(
        f"the JAX primitive {e.primitive.name} calls a Python function, which cannot be recorded",
        hint="call it outside of the fused function; jax.debug.print prints values of a call",
        where=source.user_line(), runs_function=False,
    )  # fmt: skip
