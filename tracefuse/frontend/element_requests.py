"""What Python asks of a traced array that needs its elements: truth values, numbers, lists, NumPy arrays.

A host scalar and what depends on captured state alone have known elements, and the answer is guarded. If it is one
value that a call computes, the call goes on after the answer. Anything else raises with the user's line.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import ScalarError, TraceError
from tracefuse.frontend.numpy_api.hints import replacements
from tracefuse.frontend.numpy_api.protocols.methods import ArrayMethods
from tracefuse.frontend.python_numbers import number_twins
from tracefuse.frontend.python_numbers.number_questions import needs_elements, number_or_raise, truth_of
from tracefuse.frontend.tracer.array_ops import shaping
from tracefuse.frontend.tracer.effects import numpy_errors
from tracefuse.frontend.tracer.libraries import number_calls
from tracefuse.frontend.tracer.questions_in_loops import begin_again_rewritten
from tracefuse.ir.extents import product

MOST_LISTED = 64
"""Most elements that `tolist` records one by one."""

_KEEP = "keep it an array; np.where chooses elements"


@numpy_errors.methods_raise_as_numpy
class ElementRequests(ArrayMethods):
    """The methods of a traced array that return elements."""

    __slots__ = ()

    def _needs_elements(self, operation: str, instead: str, of: str = replacements.ONE_ARRAY) -> TraceError:
        refusal = needs_elements(self, operation, instead, of)
        refusal.runs_function = self.recorder.body is None
        return refusal

    def _number_or_raise(self, operation: str, convert: Callable[[Any], Any], instead: str) -> Any:
        """Returns `convert(elements)`, guarded; raises if the elements depend on array arguments."""
        return number_or_raise(self, operation, convert, instead)

    def __bool__(self) -> bool:
        return truth_of(self)

    def __int__(self) -> int:
        return int(self._number_or_raise("int()", self._as_scalar(int), _KEEP))

    def __float__(self) -> float:
        return float(self._number_or_raise("float()", self._as_scalar(float), _KEEP))

    def _as_scalar(self, convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A conversion to a number of Python: of a complex scalar of NumPy its real part."""
        kind = self.value.dtype.numpy.type
        return (lambda known: convert(kind(known))) if self.is_immutable and self.value.dtype.is_complex else convert

    def __complex__(self) -> complex:
        return complex(self._number_or_raise("complex()", complex, _KEEP))

    def __index__(self) -> int:
        if not self.value.dtype.is_integer:
            raise TraceError(
                f"a traced {self.value.dtype} is not an index", hint="write int(x)", where=source.user_line()
            )
        return int(self._number_or_raise("the value", operator.index, "index with np.take_along_axis or np.take"))

    def item(self, *arguments: Any) -> Any:
        if arguments and not self.on_host:
            index = arguments[0] if len(arguments) == 1 else arguments
            array: Any = self
            return (array if isinstance(index, tuple) else shaping.reshape(self, -1))[index].item()
        if self.extents:
            message = "can only convert an array of size 1 to a Python scalar, not one of {left} elements"
            hint = "write x.item(k), or x.tolist()"
            where, size = source.user_line(), product(self.extents)
            self.recorder.builder.require(size, "==", 1, message, hint, where, ScalarError)
            return shaping.reshape(self, ()).item()
        if not arguments and number_calls.is_computed(self):
            result = number_twins.item_of(self)
            if result is not NotImplemented:
                return result
        return self._number_or_raise("item()", lambda known: np.asarray(known).item(*arguments), _KEEP)

    def tolist(self) -> Any:
        known = self.recorder.contents.ask(self.number, "tolist()")
        if known is not None:
            return known.tolist()
        recorder, extents = self.recorder, self.extents
        begin_again_rewritten(recorder, source.user_frame())
        if math.prod(map(recorder.known, extents)) <= MOST_LISTED:
            for extent in extents:
                recorder.pin(extent, "tolist()")
            return self._listed()
        raise self._needs_elements("tolist()", "return the array and convert it outside")

    def _listed(self) -> Any:
        """Returns the elements as numbers in nested lists, one for each axis."""
        array: Any = self
        return [array[k]._listed() for k in range(array.shape[0])] if self.value.shape else self.item()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        known = self.recorder.contents.ask(self.number, "the elements of an array")
        if known is not None:
            return np.array(known, dtype)
        raise self._needs_elements(*replacements.of_elements())
