"""Counters of recorded loops as operands: integers that a size in the body of a loop computes from the counter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracefuse.ir.extents import Atom, Expression, Extent, Symbol, terms_of
from tracefuse.ops import REGISTRY, Pointwise

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.record.recorder import Recorder

_OPS = {"//": "floor_divide", "%": "remainder", "min": "minimum", "max": "maximum"}


def counter_value(recorder: Recorder, extent: Extent) -> Any:
    """Returns an extent that depends on a counter as an array without axes, with the promotion of a Python int."""
    total: Any = None
    for monomial, coefficient in terms_of(extent):
        term: Any = coefficient
        for atom in monomial:
            factor = _atom_value(recorder, atom)
            term = factor if type(term) is int and term == 1 else _apply(recorder, "mul", term, factor)
        total = term if total is None else _apply(recorder, "add", total, term)
    return 0 if total is None else total


def _atom_value(recorder: Recorder, atom: Atom) -> Any:
    if not isinstance(atom, Symbol):
        sides = [recorder.scalar(side) if isinstance(side, Expression) else side for side in (atom.left, atom.right)]
        return _apply(recorder, _OPS[atom.operation], *sides)
    extent = Expression((((atom,), 1),))
    if not recorder.counters.occur_in(extent):
        return recorder.scalar(extent)
    assert atom.id is not None
    counter = recorder.traced_type(recorder, atom.id, "int")
    value = recorder.movement("full", [counter], shape=())
    value.weak = "int"
    return value


def _apply(recorder: Recorder, name: str, *operands: Any) -> Any:
    op = REGISTRY[name]
    assert isinstance(op, Pointwise)
    return recorder.pointwise(op, operands)
