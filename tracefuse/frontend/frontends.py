"""Chooses who traces a function: the tracer of NumPy's functions, or JAX.

A call with JAX arrays is traced by JAX. A function that JAX cannot trace, since it gives its arguments to NumPy, asks
for their elements, or assigns to them, is traced as one of NumPy.

Must not know: ops, compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tracefuse.errors import OptionError, TracefuseError, shown
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.discovery import Discovery
from tracefuse.frontend.jax_api.jax_functions import traced_by_jax
from tracefuse.frontend.recorded_trace import Trace
from tracefuse.frontend.tracer.recorder import current
from tracefuse.frontend.tracing import trace

FRONTENDS = ("auto", "numpy", "jax")


class Frontend:
    """How one function is traced. name: one of FRONTENDS. fallback: "jax": JAX computes primitives without a rule."""

    def __init__(self, name: str, function: Callable[..., Any], fallback: str | None = None) -> None:
        if name not in FRONTENDS:
            raise OptionError(f"frontend cannot be {shown(name)}", hint="use 'auto', 'numpy' or 'jax'")
        if fallback not in (None, "jax"):
            raise OptionError(f"fallback cannot be {shown(fallback)}", hint="use 'jax' or None")
        self.name, self._function = name, function
        self._by_jax = traced_by_jax(function, fallback == "jax")

    def inside(self, bound: Any, qualified_name: str) -> tuple[Any, Any]:
        """Returns the function, and the object that it is bound to, as an enclosing trace calls them."""
        recorder = current.get()
        if recorder is None or recorder.overlays is None:
            return self._function, bound
        clone, owner = recorder.overlays.of_inner(self._function, qualified_name, bound)
        return (self._by_jax if self.name == "jax" and recorder.represent is None else clone), owner

    def trace(self, call: CallArguments, same: Mapping[int, int], discovery: Discovery | None, dynamic: bool) -> Trace:
        """Traces a call; raises what the function raises."""

        def traced(function: Callable[..., Any], answers: Discovery | None) -> Trace:
            return trace(
                function, call.leaves, call.rebuild, call.roots, dynamic=dynamic, device=call.device, same=same,
                answers=answers,
            )  # fmt: skip

        if self.name == "jax":
            return traced(self._by_jax, discovery)
        asks = call.asks_conditions or (discovery is not None and discovery.is_tree)
        if self.name == "numpy" or call.kind != "jax" or asks:
            return traced(self._function, discovery)
        try:
            return traced(self._by_jax, None)
        except Exception as error:
            refused = error
        try:
            return traced(self._function, discovery)
        except TracefuseError as error:
            if error.given_to == "jax":  # the function does need JAX
                raise refused from None
            raise
