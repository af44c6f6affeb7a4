"""The kind of op that exchanges data between ranks.

A collective runs along one axis of a mesh, as a segment of its own, which the host program starts and waits for.
Collectives run in program order on every rank: each has a second result, a token, which the next one takes as its last
operand. Its operand and its result are contiguous, with equal extents on all ranks.

Must not know: single ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType, bool_
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ir.library_kinds import WholeArrayOp

GROUP = "group"
"""The attribute with the ranks that a collective runs among. It has `size`, and `run(name, array, shape, parameters)`
returns the new array that the exchange results in."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Collective(WholeArrayOp):
    """An exchange between the ranks along a mesh axis; its name is that of the exchange.

    result_shape(operand shape, attributes, require): the shape of the result. parameters: the attributes that the
    exchange takes. linear: the result for a sum is the sum of the results.
    """

    result_shape: Any
    parameters: tuple[str, ...] = ()
    linear: bool = True

    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        return tuple(self.result_shape(shapes[0], attributes, require)), ()

    def parameters_of(self, attributes: Attributes) -> dict[str, Any]:
        """Returns the attributes that the exchange takes."""
        return {name: attributes[name] for name in self.parameters}

    def caller(self, attributes: Attributes) -> Callable[..., Any]:
        return lambda *operands: self.call(operands, attributes)

    def call(self, operands: Sequence[Any], attributes: Attributes) -> tuple[Any, ...]:
        """Runs the exchange and returns its result and a token."""
        shape, _ = self.shapes([operands[0].shape], attributes, _assume)
        result = attributes[GROUP].run(self.name, operands[0], shape, self.parameters_of(attributes))
        return result, np.zeros_like(result, shape=(), dtype=np.bool_)


EXCHANGES = "exchanges"
"""The attribute of a group of exchanges: for each, the op and its attributes by name, as pairs."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CoalescedExchanges(Collective):
    """Exchanges along one mesh axis that start together. It has one operand and one result for each, and the token."""

    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        results = zip(exchanges_of(self, attributes), shapes, strict=False)
        return (*(op.shapes([shape], more, require)[0] for (op, more), shape in results), ())

    def call(self, operands: Sequence[Any], attributes: Attributes) -> tuple[Any, ...]:
        """Runs the exchanges one after the other and returns their results and a token."""
        each = zip(exchanges_of(self, attributes), operands, strict=False)
        results = [op.call([operand], more)[0] for (op, more), operand in each]
        return (*results, np.zeros_like(results[0], shape=(), dtype=np.bool_))


def exchanges_of(op: Collective, attributes: Attributes) -> Sequence[tuple[Collective, Attributes]]:
    """Returns the exchanges that a node starts: the op and the attributes of each."""
    return [(exchange, dict(pairs)) for exchange, pairs in attributes.get(EXCHANGES, ())] or [(op, attributes)]


def collective_types(operands: Sequence[DType], attributes: Attributes) -> tuple[DType, ...]:
    """Returns the types of the results: that of each operand, and that of the token."""
    count = len(attributes.get(EXCHANGES, (None,)))
    return (*operands[:count], bool_)


def _assume(*_: Any) -> None:
    """Accepts every requirement. The fusion has already checked them."""
