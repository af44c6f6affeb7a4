"""Decomposition of composite reductions into other ops.

The definition of an op such as var gives `steps`: a Python expression over `a` (the operand), `n` (the number of
elements reduced), the op's own attributes, other ops by name, and operators. A kernel then makes several passes over
a row that it holds on chip, and a value that the fusion computes anyway (the mean of a layer norm) is computed once.
"""

from __future__ import annotations

import ast

from tracefuse.caches import memoized
from tracefuse.dtypes import int64
from tracefuse.errors import InternalError
from tracefuse.ir.extents import Extent, product
from tracefuse.ir.fusion import Fusion, Literal, Node, Operand
from tracefuse.ops import REGISTRY, Pointwise, Reduction
from tracefuse.ops.roles import EXTENT
from tracefuse.passes.common_subexpressions import merge_common
from tracefuse.passes.rewriter import Rewriter

OPERATORS: dict[type[ast.operator] | type[ast.unaryop], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floor_divide",
    ast.Mod: "remainder",
    ast.Pow: "pow",
    ast.USub: "neg",
}


def decompose(fusion: Fusion) -> Fusion:
    """Replaces composite reductions by the steps that their definitions give.

    The result keeps its number. Intermediates have the compute type of the node (float32 for halves), so the
    decomposition adds no rounding. Nodes that become equal are merged.
    """
    if not any(isinstance(node.op, Reduction) and node.op.steps for node in fusion.nodes):
        return fusion
    rewriter = Rewriter(fusion)
    for node in fusion.nodes:
        if isinstance(node.op, Reduction) and node.op.steps:
            _Steps(fusion, rewriter, node).emit(node.op.steps)
        else:
            rewriter.keep(node)
    return merge_common(rewriter.build())


@memoized("syntax trees of decompositions", key="text of an op definition", most=512, clears=False)
def _parsed(steps: str) -> ast.expr:
    return ast.parse(steps, mode="eval").body


class _Steps:
    """Emits the steps of one node; equal subexpressions are emitted once."""

    def __init__(self, fusion: Fusion, rewriter: Rewriter, node: Node) -> None:
        self.fusion, self.rewriter, self.node = fusion, rewriter, node
        self.result = node.outputs[0]
        self.compute = node.compute.compute
        self.emitted: dict[tuple[str, bool], Operand] = {}

    def emit(self, steps: str) -> None:
        expression = _parsed(steps)
        operands, op, keepdim = self._parts(expression, inner=False)
        self._emit(op, operands, keepdim, number=self.result)

    def _operand(self, expression: ast.expr, inner: bool) -> Operand:
        """Emits a subexpression. inner: it is an operand of a reduction, so its own reductions keep their axes."""
        if isinstance(expression, ast.Name):
            return self._name(expression.id)
        if isinstance(expression, ast.Constant) and isinstance(expression.value, bool | int | float | complex):
            return Literal(expression.value)
        if self._is_count(expression):
            return self._count()
        key = (ast.dump(expression), inner)
        if key not in self.emitted:
            operands, op, keepdim = self._parts(expression, inner)
            self.emitted[key] = self._emit(op, operands, keepdim)
        return self.emitted[key]

    def _name(self, name: str) -> Operand:
        if name == "a":
            return self.node.operands[0]
        if name == "n":
            return self._count()
        if name in self.node.attributes:
            return Literal(self.node.attributes[name])
        raise InternalError(f"the steps of {self.node.op.name} name {name}, which is neither a, n nor an attribute")

    def _is_count(self, expression: ast.expr) -> bool:
        """Whether the expression is n, optionally minus an attribute that is 0, optionally clamped to >= 0."""
        match expression:
            case ast.Name("n"):
                return True
            case ast.BinOp(left, ast.Sub(), ast.Name(name)):
                return self.node.attributes.get(name) == 0 and self._is_count(left)
            case ast.Call(ast.Name("maximum"), [first, ast.Constant(0)]):
                return self._is_count(first)
        return False

    def _count(self) -> Operand:
        shape = self.fusion.shape_of(self.node.operands[0])
        count: Extent = product(shape[axis] for axis in self.node.attributes["dims"])
        if isinstance(count, int):
            return Literal(count)
        key = ("n", False)
        if key not in self.emitted:
            (number,) = self.rewriter.node(
                EXTENT, [], {"value": count}, int64, [int64], where=self.node.where, extents=[count]
            )
            self.rewriter.mark(number, self.result)
            self.emitted[key] = number
        return self.emitted[key]

    def _parts(self, expression: ast.expr, inner: bool) -> tuple[list[Operand], Pointwise | Reduction, bool]:
        """Returns (operands, op, keepdim) of an expression that is an operator or a call."""
        match expression:
            case ast.BinOp(left, operator, right):
                op, arguments = REGISTRY[OPERATORS[type(operator)]], [left, right]
            case ast.UnaryOp(operator, operand):
                op, arguments = REGISTRY[OPERATORS[type(operator)]], [operand]
            case ast.Call(ast.Name(name), arguments, []) if name in REGISTRY:
                op = REGISTRY[name]
            case _:
                raise InternalError(f"steps of {self.node.op.name}: {ast.unparse(expression)} is not a step")
        if not isinstance(op, Pointwise | Reduction):
            raise InternalError(f"steps of {self.node.op.name}: {op.name} is neither pointwise nor a reduction")
        reduces = isinstance(op, Reduction)
        operands = [self._operand(argument, inner or reduces) for argument in arguments]
        return operands, op, inner or bool(self.node.attributes["keepdim"])

    def _emit(self, op: Pointwise | Reduction, operands: list[Operand], keepdim: bool, number: int = -1) -> int:
        attributes = {"dims": self.node.attributes["dims"], "keepdim": keepdim} if isinstance(op, Reduction) else {}
        final = number >= 0
        dtype = self.fusion.values[self.result].dtype if final else self.compute
        before = self.rewriter.values.get(number)
        (result,) = self.rewriter.node(
            op, operands, attributes, self.compute, [dtype], where=self.node.where, numbers=[number] if final else []
        )
        if before is not None:
            self.rewriter.values[result] = before
        else:
            self.rewriter.mark(result, self.result)
        return result
