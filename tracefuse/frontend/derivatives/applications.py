"""One recorded node as the derivative rules of its op see it, and what they record."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.caches import memoized
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.jax_api.jax_tangents import record_cotangents, record_tangents
from tracefuse.frontend.tracer.array_ops.recorded_ops import converted, emit, sum_to, zeros
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.generated_code import compile_function
from tracefuse.ir.fusion import Literal, Node, Shape

LETTERS = "abcdefgh"
"""The names of the operands in the text of a partial derivative."""


class RecordedApplication:
    """A recorded node. active: whether each operand has a derivative."""

    def __init__(self, recorder: Recorder, node: Node, active: Sequence[bool]) -> None:
        self.recorder, self.node, self.active = recorder, node, active
        self.operands: list[Any] = [self._value(operand) for operand in node.operands]
        self.results: list[Any] = [self._value(number) for number in node.outputs]
        self.attributes: dict[str, Any] = {**dict(node.op.attributes), **node.attributes}

    def _value(self, operand: Any) -> Any:
        if isinstance(operand, Literal):
            return operand.value
        return self.recorder.traced_type(self.recorder, operand)

    @property
    def shapes(self) -> list[Shape]:
        return [operand.extents if isinstance(operand, Traced) else () for operand in self.operands]

    @property
    def result_shapes(self) -> list[Shape]:
        return [result.extents for result in self.results]

    def emit(self, op: str, *operands: Any, **attributes: Any) -> Any:
        """Records an op by name; returns its result, or a tuple of several."""
        return emit(self.recorder, op, *operands, **attributes)

    def sum_to(self, value: Any, shape: Shape) -> Any:
        return sum_to(self.recorder, value, shape)

    def zeros(self, shape: Shape, like: Any) -> Any:
        return zeros(self.recorder, shape, like.value.dtype)

    def pushed_by_jax(self, name: str, function: Callable[..., Any], given: Sequence[Any]) -> Sequence[Any]:
        """Records the tangents of a function of JAX, as JAX differentiates it."""
        return record_tangents(self.recorder, name, function, self.operands, given)

    def pulled_by_jax(self, name: str, function: Callable[..., Any], given: Sequence[Any]) -> Sequence[Any]:
        """Records the cotangents of the active operands of a function of JAX."""
        return record_cotangents(self.recorder, name, function, self.operands, self.active, given)

    def require(self, holds: bool, case: str, hint: str) -> None:
        """Raises UnsupportedError, with the node's line, unless `holds`. case: the one that the rule does not cover."""
        if not holds:
            raise UnsupportedError(
                f"{self.node.op.name} with {case} has no derivative rule", hint=hint, where=self.node.where,
                runs_function=False,
            )  # fmt: skip

    def partial(self, text: str) -> Any:
        """Records a partial derivative; returns a traced value or a Python number."""
        dtype = self.node.compute
        operands = [converted(self.recorder, operand, dtype) for operand in self.operands]
        function = _partial_function(text, len(operands))
        return function(lambda name, *arguments: self.emit(name, *arguments), self.results[0], *operands)


class _OpsByName(ast.NodeTransformer):
    """Replaces a call of an op by a call of `emit` with its name."""

    def visit_Call(self, node: ast.Call) -> ast.Call:
        assert isinstance(node.func, ast.Name)
        arguments = [self.visit(argument) for argument in node.args]
        return ast.Call(ast.Name("emit"), [ast.Constant(node.func.id), *arguments], [])


@memoized("functions that record partial derivatives", key="text of an op definition", most=512)
def _partial_function(text: str, count: int) -> Callable[..., Any]:
    tree = _OpsByName().visit(ast.parse(text, mode="eval"))
    parameters = ", ".join(("emit", "y", *LETTERS[:count]))
    body = f"def partial({parameters}):\n    return {ast.unparse(tree)}\n"
    return compile_function(body, "partial", {}, "partial derivative")  # type: ignore[no-any-return]
