"""Primitives that JAX computes by itself, as a library does: linear algebra, special functions, rare cases of others.

Must not know: recording.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tracefuse.ir.library_kinds import WholeArrayOp


class PrimitiveCall:
    """A call of one primitive of JAX, compiled by jax.jit when it runs first.

    name: of the primitive. parameters: those of its equation. bind(*arrays): returns a list of its results.
    """

    def __init__(self, name: str, parameters: Mapping[str, Any], bind: Callable[..., Any]) -> None:
        self.name, self.parameters, self._bind = name, dict(parameters), bind
        self._jitted: Callable[..., Any] | None = None

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """Computes the results on the device of the arrays, of NumPy or CuPy."""
        import jax

        if self._jitted is None:
            self._jitted = jax.jit(self._bind)
        if all(isinstance(array, (np.ndarray, np.generic)) for array in arrays):
            with jax.default_device(jax.local_devices(backend="cpu")[0]):
                return tuple(np.array(result) for result in self._jitted(*arrays))
        import cupy

        results = self._jitted(*(jax.dlpack.from_dlpack(cupy.ascontiguousarray(array)) for array in arrays))
        return tuple(cupy.from_dlpack(result) for result in results)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrimitiveCall) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items() if value is not None)
        return f"{self.name}[{shown}]"


JAX_PRIMITIVE = WholeArrayOp(
    name="jax_primitive", doc="A primitive of JAX, which JAX computes.", arity=None, raises=False,
    numpy=lambda *arrays, call, types, shapes: call(*arrays),
    dtypes=lambda operands, given: given["types"], shape=lambda shapes, given, require: given["shapes"],
    attributes=(("call", None), ("types", ()), ("shapes", ())),
)  # fmt: skip
