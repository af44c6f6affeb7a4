"""One recorded node as the derivative rules of its op see it, and what they record."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.caches import memoized
from tracefuse.dtypes import DType, int64
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer import traced_ops
from tracefuse.frontend.tracer.recorder import Recorder
from tracefuse.frontend.tracer.traced import Traced
from tracefuse.frontend.tracer.whole_arrays import record_whole
from tracefuse.generated_code import compile_function
from tracefuse.ir.fusion import Literal, Node, Shape
from tracefuse.ir.library_kinds import WholeArrayOp
from tracefuse.ops import REGISTRY, Library, Movement, Pointwise, Reduction

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
        return [one.extents if isinstance(one, Traced) else () for one in self.operands]

    @property
    def result_shapes(self) -> list[Shape]:
        return [one.extents for one in self.results]

    def emit(self, op: str, *operands: Any, **attributes: Any) -> Any:
        """Records an op by name; returns its result, or a tuple of several."""
        return emit(self.recorder, op, *operands, **attributes)

    def sum_to(self, value: Any, shape: Shape) -> Any:
        return sum_to(self.recorder, value, shape)

    def zeros(self, shape: Shape, like: Any) -> Any:
        return zeros(self.recorder, shape, like.value.dtype)

    def require(self, holds: bool, given: str, hint: str) -> None:
        """Raises UnsupportedError, with the node's line, unless the rule covers what is `given`."""
        if not holds:
            raise UnsupportedError(
                f"{self.node.op.name} with {given} has no derivative rule", hint=hint, where=self.node.where
            )

    def partial(self, text: str) -> Any:
        """Records a partial derivative; returns a traced value or a Python number."""
        dtype = self.node.compute
        operands = [converted(self.recorder, operand, dtype) for operand in self.operands]
        function = _partial_function(text, len(operands))
        return function(lambda name, *given: self.emit(name, *given), self.results[0], *operands)


def emit(recorder: Recorder, name: str, *operands: Any, **attributes: Any) -> Any:
    """Records an op by name; returns its result, or a tuple of several."""
    op = REGISTRY[name]
    if name == "extent":
        return recorder.scalar(attributes["value"])
    if name == "iota":
        start, step = operands
        return traced_ops.iota(recorder, start, step, attributes["length"], int64)
    if name == "where" and isinstance(operands[0], bool):
        return operands[1] if operands[0] else operands[2]
    if isinstance(op, Pointwise):
        return recorder.pointwise(op, operands, **attributes)
    if isinstance(op, Movement):
        return recorder.movement(name, operands, **attributes)
    if isinstance(op, Reduction):
        return recorder.reduction(op, operands[0], attributes.pop("dims"), attributes.pop("keepdim"), **attributes)
    if isinstance(op, WholeArrayOp):
        results = record_whole(recorder, op, operands, **attributes)
        return results if len(results) > 1 else results[0]
    assert isinstance(op, Library)
    return recorder.library(op, operands, **attributes)


def sum_to(recorder: Recorder, value: Any, shape: Shape) -> Any:
    """Sums `value` over the axes along which an array of `shape` was broadcast to it."""
    lead = len(value.extents) - len(shape)
    if lead:
        value = emit(recorder, "sum", value, dims=tuple(range(lead)), keepdim=False)
    axes = tuple(k for k, (e, own) in enumerate(zip(shape, value.extents, strict=True)) if e == 1 and own != 1)
    return emit(recorder, "sum", value, dims=axes, keepdim=True) if axes else value


def zeros(recorder: Recorder, shape: Shape, dtype: DType) -> Any:
    """Returns an array of zeros."""
    return recorder.movement("full", [0], dtype=dtype, shape=tuple(shape))


def expanded(recorder: Recorder, value: Any, shape: Shape) -> Any:
    """Returns `value` broadcast to `shape`."""
    if isinstance(value, Traced) and not value.on_host and value.extents == tuple(shape):
        return value
    traced = value if isinstance(value, Traced) and not value.on_host else traced_ops.as_tensor(value)
    return recorder.movement("expand", [traced], shape=tuple(shape))


def converted(recorder: Recorder, value: Any, dtype: DType) -> Any:
    """Returns `value` in `dtype`; the real part of a complex value for a real type. Python numbers stay."""
    if not isinstance(value, Traced) or (value.value.dtype is dtype and value.weak is None):
        return value
    if value.value.dtype.is_complex and not dtype.is_complex and dtype.kind != "bool":
        value = emit(recorder, "real", value)
    return value if value.value.dtype is dtype and value.weak is None else emit(recorder, "cast", value, dtype=dtype)


def is_inexact(dtype: DType) -> bool:
    """Whether values of a dtype have derivatives: floating-point and complex numbers."""
    return dtype.is_floating or dtype.is_complex


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
