"""Primitives that JAX computes by itself, as a library does: linear algebra, special functions, rare cases of others.

Must not know: recording.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse.caches import memoized
from tracefuse.errors import UnsupportedError
from tracefuse.ir.derivatives import Application, Tangent
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ops.families import register


def is_literal(value: Any) -> bool:
    """Whether a definition shows a parameter of a primitive as it is."""
    return value is None or isinstance(value, (bool, int, float, str))


@memoized("the primitives of JAX that have a public name", key="none", most=1)
def _public_primitives() -> Mapping[str, Any]:
    import jax.extend.core.primitives

    modules = (jax.lax.linalg, jax.lax, jax.extend.core.primitives)
    named = [getattr(module, name) for module in modules for name in dir(module) if name.endswith("_p")]
    return {primitive.name: primitive for primitive in named}


def has_public_name(primitive: str) -> bool:
    """Whether a primitive can be found by its name."""
    return primitive in _public_primitives()


def bound(primitive: str, parameters: Any) -> Callable[..., list[Any]]:
    """Returns the function of arrays of JAX that computes a primitive. parameters: pairs of a name and a value."""
    found, given = _public_primitives()[primitive], dict(parameters)

    def bind(*arrays: Any) -> list[Any]:
        result = found.bind(*arrays, **given)
        return list(result) if found.multiple_results else [result]

    return bind


class PrimitiveCall:
    """A function of JAX on arrays, compiled by jax.jit when it runs first.

    name: of the primitive. parameters: those of its equation. types: of its operands, None where JAX has no fixed
    sizes. bind(*arrays): returns a list of its results. Its text holds the program, so that a definition that shows it
    can be built again.
    """

    def __init__(
        self, name: str, parameters: Mapping[str, Any], bind: Callable[..., Any], types: Sequence[Any] = ()
    ) -> None:
        self.name, self.parameters, self.bind, self._types = name, dict(parameters), bind, types
        self._jitted: Callable[..., Any] | None = None
        self._text: str | None = None

    def __call__(self, *arrays: Any) -> tuple[Any, ...]:
        """Computes the results on the device of the arrays, of NumPy or CuPy."""
        import jax

        if self._jitted is None:
            self._jitted = jax.jit(self.bind)
        if all(isinstance(array, (np.ndarray, np.generic)) for array in arrays):
            with jax.default_device(jax.local_devices(backend="cpu")[0]):
                return tuple(np.array(result) for result in self._jitted(*arrays))
        import cupy

        results = self._jitted(*(jax.dlpack.from_dlpack(cupy.ascontiguousarray(array)) for array in arrays))
        return tuple(cupy.from_dlpack(result) for result in results)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrimitiveCall) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items() if value is not None)
        return f"{self.name}[{shown}]"

    def __repr__(self) -> str:
        if self._text is None:
            self._text = self._exported()
        return repr(self._text)

    def _exported(self) -> str:
        """The program as text; the text of the call where JAX cannot export it."""
        import jax
        import jax.export

        try:
            program = jax.export.export(jax.jit(self.bind))(*self._types).serialize()
        except (ImportError, NotImplementedError, TypeError, ValueError):
            return str(self)
        return _PROGRAM + base64.b85encode(bytes(program)).decode()


_PROGRAM = "program of JAX: "


@memoized("programs of JAX in definitions", key="text of the program", most=256)
def _imported(text: str) -> PrimitiveCall:
    """Returns the function whose text a definition shows."""
    import jax.export

    if not text.startswith(_PROGRAM):
        raise UnsupportedError(
            f"the definition does not hold the program of {text.partition('[')[0]}",
            hint="record it again from the function; where flatbuffers is installed, JAX exports most programs",
        )
    exported = jax.export.deserialize(bytearray(base64.b85decode(text.removeprefix(_PROGRAM))))
    return PrimitiveCall("a program", {}, lambda *arrays: list(exported.call(*arrays)))


@memoized("primitives of JAX in definitions", key="primitive and parameters", most=256)
def _called(primitive: str, parameters: Any) -> PrimitiveCall:
    return PrimitiveCall(primitive, dict(parameters), bound(primitive, parameters))


def called_primitive(attributes: Mapping[str, Any]) -> str:
    """Returns the name of the primitive that a node computes. attributes: of the node."""
    return str(attributes.get("primitive") or getattr(attributes["call"], "name", "a program"))


def _function_of(primitive: str, parameters: Any, call: Any) -> PrimitiveCall:
    if primitive:
        return _called(primitive, tuple(map(tuple, parameters)))
    return _imported(call) if isinstance(call, str) else call


def _call(*arrays: Any, primitive: str, parameters: Any, call: Any, types: Any, shapes: Any) -> Any:
    return _function_of(primitive, parameters, call)(*arrays)


def _function_at(node: Application) -> PrimitiveCall:
    return _function_of(node.attributes["primitive"], node.attributes["parameters"], node.attributes["call"])


def _tangent(node: Application, given: Sequence[Any]) -> Sequence[Any]:
    function = _function_at(node)
    return node.pushed_by_jax(function.name, function.bind, given)


def _transpose(node: Application, given: Sequence[Any]) -> Sequence[Any]:
    function = _function_at(node)
    return node.pulled_by_jax(function.name, function.bind, given)


JAX_PRIMITIVE = register(WholeArrayOp(
    name="jax_primitive", doc="A primitive of JAX, which JAX computes: by name and parameters, or a function.",
    arity=None, raises=False, numpy=_call, derivative=Tangent(_tangent, _transpose),
    dtypes=lambda operands, given: given["types"], shape=lambda shapes, given, require: given["shapes"],
    attributes=(("primitive", ""), ("parameters", ()), ("call", None), ("types", ()), ("shapes", ())),
))  # fmt: skip
