"""The kind of op that calls a function of NumPy, SciPy or CuPy on whole arrays.

Such an op has any number of results, with types and shapes by rule, and gets each operand in its own type: the function
decides what to convert. Parameters that hold no array are attributes; a size among them may be symbolic.

Must not know: the individual ops, how segments run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from tracefuse.dtypes import ALL, DType
from tracefuse.ir.error_models import LibraryError
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ir.op_kinds import Library

ResultTypes: TypeAlias = Callable[[Sequence[DType], Attributes], tuple[DType, ...]]
ResultShapes: TypeAlias = Callable[[Sequence[Shape], Attributes, Require], tuple[Shape, ...]]

ARRAYS = "arrays"
"""The attribute with the names of the parameters that a node's operands are, if some are optional."""


def _unknown_error(
    numpy: Callable[..., Any], operands: list[tuple[Any, Any]], attributes: Mapping[str, Any], unit: float
) -> Any:
    """The bound of a function without an error model: unknown."""
    return np.inf


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class WholeArrayOp(Library):
    """A library op on whole arrays.

    numpy(*arrays, **attributes) returns one array, or a tuple of them. function: NumPy's or SciPy's function that
    records the op; its parameters are those of `numpy`. parameters: the names of those that hold arrays, in order.
    optional: whether some of them may be left out; a node then names its operands in the attribute `arrays`.
    either: the parameters that hold an array or a number or text, which then is an attribute. dtypes(operand types,
    attributes): the types of the results. shape(operand shapes, attributes, require): their shapes. raises: whether the
    data of a call may make the function raise. sizes_from_data: why the data of a call may give a result another shape;
    the call then raises.
    """

    dtypes: ResultTypes
    shape: Callable[..., Any]
    domain: tuple[DType, ...] = ALL
    function: Any = None
    parameters: tuple[str, ...] = ("a",)
    optional: bool = False
    either: tuple[str, ...] = ()
    raises: bool = True
    sizes_from_data: str = ""
    error: LibraryError = _unknown_error

    def keeps_type(self, position: int) -> bool:
        return True

    @property
    def may_raise(self) -> bool:
        return self.raises

    def shapes(self, shapes: Sequence[Shape], attributes: Attributes, require: Require) -> tuple[Shape, ...]:
        return tuple(self.shape(shapes, attributes, require))

    def call(self, operands: Sequence[Any], attributes: Attributes) -> tuple[Any, ...]:
        """Calls the function and returns its results."""
        names = attributes.get(ARRAYS)
        if names is None:
            result = self.numpy(*operands, **attributes)
        else:  # the first one by position, as in some functions it has no name
            named = dict(zip(names[1:], operands[1:], strict=True))
            keywords = {name: value for name, value in attributes.items() if name not in names and name != ARRAYS}
            result = self.numpy(operands[0], **named, **keywords)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)
