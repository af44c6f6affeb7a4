"""Functions that define an op in one line, and the registry that each definition enters."""

from __future__ import annotations

from typing import Any

from tracefuse.dtypes import DType
from tracefuse.ir.fusion import Op
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Movement, Pointwise, PullRule, Reduction, ReferenceFunction, ShapeRule

REGISTRY: dict[str, Op] = {}
"""Every op by name, in the order of definition."""


def register(op: Any) -> Any:
    """Adds an op to the registry; a name may be used once."""
    if op.name in REGISTRY:
        raise ValueError(f"two ops are named {op.name}")
    REGISTRY[op.name] = op
    return op


def unary(
    name: str, domain: tuple[DType, ...], *, scalar: str, numpy: ReferenceFunction, doc: str, **more: Any
) -> Pointwise:
    """A pointwise op with one operand."""
    return register(Pointwise(name=name, domain=domain, scalar=scalar, numpy=numpy, doc=doc, **more))  # type: ignore[no-any-return]


def binary(
    name: str, domain: tuple[DType, ...], *, scalar: str, numpy: ReferenceFunction, doc: str, **more: Any
) -> Pointwise:
    """A pointwise op with two operands."""
    return register(Pointwise(name=name, domain=domain, scalar=scalar, numpy=numpy, doc=doc, arity=2, **more))  # type: ignore[no-any-return]


def ternary(
    name: str, domain: tuple[DType, ...], *, scalar: str, numpy: ReferenceFunction, doc: str, **more: Any
) -> Pointwise:
    """A pointwise op with three operands."""
    return register(Pointwise(name=name, domain=domain, scalar=scalar, numpy=numpy, doc=doc, arity=3, **more))  # type: ignore[no-any-return]


def reduction(name: str, *, numpy: ReferenceFunction, doc: str, **more: Any) -> Reduction:
    """A reduction: attributes dims (axes) and keepdim, and more where `attributes` names them."""
    attributes = (("dims", ()), ("keepdim", False), *more.pop("attributes", ()))
    return register(Reduction(name=name, numpy=numpy, doc=doc, attributes=attributes, **more))  # type: ignore[no-any-return]


def movement(
    name: str, *, shape: ShapeRule, pull: PullRule, numpy: ReferenceFunction, doc: str, **more: Any
) -> Movement:
    """A movement op."""
    return register(Movement(name=name, shape=shape, pull=pull, numpy=numpy, doc=doc, **more))  # type: ignore[no-any-return]


def library(
    name: str, domain: tuple[DType, ...], *, shape: ShapeRule, numpy: ReferenceFunction, doc: str, **more: Any
) -> Library:
    """A library op."""
    return register(Library(name=name, domain=domain, shape=shape, numpy=numpy, doc=doc, **more))  # type: ignore[no-any-return]
