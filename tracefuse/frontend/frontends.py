"""Chooses who traces a function: the tracer of NumPy's functions, or JAX.

A call with JAX arrays is traced by JAX, and so is one without arrays that gives its numbers to functions of JAX. A
function that JAX cannot trace, since it gives its arguments to NumPy, asks for their elements, or assigns to them, is
traced as one of NumPy.

Must not know: ops, compilation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tracefuse import source
from tracefuse.config import Options, overrides
from tracefuse.errors import OptionError, TraceError, TracefuseError, UnsupportedError, shown
from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.discovery import Discovery
from tracefuse.frontend.jax_api.fused_primitive import call_in_jax
from tracefuse.frontend.jax_api.jax_functions import traced_by_jax
from tracefuse.frontend.recorded_trace import Trace
from tracefuse.frontend.tracer.python_code.installed_packages import count_as_users
from tracefuse.frontend.tracer.record.recorder import current
from tracefuse.frontend.tracing import not_a_function, trace

FRONTENDS = ("auto", "numpy", "jax")


class Frontend:
    """How one function is traced. name: one of FRONTENDS. fallback: "jax": JAX computes primitives without a rule."""

    def __init__(self, name: str, function: Callable[..., Any], fallback: str | None = None) -> None:
        if name not in FRONTENDS:
            raise OptionError(f"frontend cannot be {shown(name)}", hint="use 'auto', 'numpy' or 'jax'")
        if fallback not in (None, "jax"):
            raise OptionError(f"fallback cannot be {shown(fallback)}", hint="use 'jax' or None")
        self.name, self.fallback, self._function = name, fallback, function
        count_as_users(inspect.unwrap(function.func if isinstance(function, functools.partial) else function))
        self._by_jax = traced_by_jax(function, fallback == "jax")

    @property
    def is_plain(self) -> bool:
        """Whether the function itself computes on arrays of NumPy and CuPy what its trace does."""
        return self.name != "jax" and self.fallback is None

    def inside(self, bound: Any, qualified_name: str) -> tuple[Any, Any]:
        """Returns the function, and the object that it is bound to, as an enclosing trace calls them."""
        recorder = current.get()
        if recorder is None or recorder.overlays is None:
            return self._function, bound
        clone, owner = recorder.overlays.of_inner(self._function, qualified_name, bound)
        return (self._by_jax if self.name == "jax" and recorder.represent is None else clone), owner

    def in_jax(
        self, name: str, fused: Callable[..., Any], args: Any, kwargs: Mapping[str, Any], writes: bool
    ) -> Any:  # fmt: skip
        """Calls the function on JAX's tracers.

        fused: makes a fused function with the options of this one. writes: whether the call writes arrays that it is
        given. Raises UnsupportedError for what a program of XLA cannot hold.
        """
        refused = {
            "out= or donated arguments": writes, "frontend='numpy'": self.name == "numpy",
            "fallback='jax'": self.fallback is not None,
        }  # fmt: skip
        for option in (option for option, is_given in refused.items() if is_given):
            raise UnsupportedError(
                f"{name} is called inside of jax.jit, jax.grad or jax.vmap, and has {option}",
                hint="leave that out, or call the function outside of JAX's transformations", where=source.user_line(),
            )  # fmt: skip
        options = overrides() or {}
        return call_in_jax(self._function, name, lambda function: fused(function, **options), args, kwargs)

    def trace(
        self, call: CallArguments, same: Mapping[int, int], discovery: Discovery | None, options: Options
    ) -> Trace:  # fmt: skip
        """Traces a call; raises what the function raises, and FunctionRuns for a call that runs the function itself."""

        def traced(function: Callable[..., Any], answers: Discovery | None) -> Trace:
            try:
                return trace(
                    function, call.leaves, call.rebuild, call.roots, dynamic=options.dynamic, device=call.device,
                    same=same, answers=answers, records_loops=options.loops == "auto", changing=call.numbers,
                )  # fmt: skip
            except TracefuseError as error:
                if answers is not None:
                    answers.leave(error)
                raise

        if self.name == "jax":
            return traced(self._by_jax, discovery)
        asks = call.asks_conditions or (discovery is not None and discovery.is_tree)
        if self.name == "auto" and not asks and not any(leaf.is_array for leaf in call.leaves):
            return self._of_numbers(traced, discovery)
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

    def _of_numbers(
        self, traced: Callable[[Callable[..., Any], Discovery | None], Trace], discovery: Discovery | None
    ) -> Trace:  # fmt: skip
        """Traces a call without arrays, by JAX if the function gives its numbers to a function of JAX."""
        try:
            return traced(self._function, discovery)
        except TracefuseError as error:
            if error.given_to != "jax":
                raise
            refused = error
        try:
            result = traced(self._by_jax, None)
        except Exception:
            raise refused from None
        result.by_jax = True
        return result


def check_function(function: Any) -> None:
    """Raises TraceError for an object that `@fuse` cannot trace: a generator, an async function, no callable."""
    plain = inspect.unwrap(function) if not isinstance(function, functools.partial) else function.func
    if inspect.isgeneratorfunction(plain) or inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
        raise not_a_function(plain, plain.__name__)
    if not callable(function):
        raise TraceError(f"fuse takes a function, got {type(function).__name__}", hint="write @fuse above a def")
