"""What Python asks of a traced array that needs its elements: truth values, numbers, lists, NumPy arrays.

A host scalar and what depends on captured state alone have known elements, and the answer is guarded. If it is one
value that a call computes, the call goes on after the answer. Anything else raises with the user's line.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import TraceError
from tracefuse.frontend.numpy_api import replacements
from tracefuse.frontend.numpy_api.methods import ArrayMethods

_KEEP = "keep it an array; np.where chooses elements"
IN_BODY = (
    "a body is recorded once, for all steps: choose with tracefuse.cond(c, f, g, *operands) or np.where(c, a, b), "
    "and repeat with tracefuse.while_loop(cond_fun, body_fun, init_val)"
)
"""The hint for a question about a value inside the body of a loop or a branch."""


@source.methods_hide_own_frames
class ElementRequests(ArrayMethods):
    """The methods of a traced array that return elements."""

    __slots__ = ()

    def _needs_elements(self, operation: str, instead: str, of: str = replacements.ONE_ARRAY) -> TraceError:
        names = self.recorder.builder.depends_on(self.number)
        depends = f", which depends on {', '.join(names)}" if names else ""
        return TraceError(f"{operation} of {of}{depends}", hint=instead, where=source.user_line())

    def _number_or_raise(self, operation: str, convert: Callable[[Any], Any], instead: str) -> Any:
        """Returns `convert(elements)`, guarded; raises if the elements depend on array arguments."""
        self.recorder.check_alive()
        if self.read is not None:
            return convert(self.recorder.value_of(self, operation))
        answer = self.recorder.contents.ask(self.number, operation, convert)
        if answer is not None:
            return answer
        if self.recorder.body is not None:
            raise self._needs_elements(operation, IN_BODY)
        what, hint = replacements.of_number(operation, instead)
        answers = self.recorder.answers
        if answers is not None and what == operation and not self.value.shape:
            return answers.ask(self.recorder, self, operation, source.user_line())
        raise self._needs_elements(what, hint)

    def __bool__(self) -> bool:
        return bool(self._number_or_raise("bool()", bool, "choose elements with np.where(condition, a, b)"))

    def __int__(self) -> int:
        return int(self._number_or_raise("int()", int, _KEEP))

    def __float__(self) -> float:
        return float(self._number_or_raise("float()", float, _KEEP))

    def __complex__(self) -> complex:
        return complex(self._number_or_raise("complex()", complex, _KEEP))

    def __index__(self) -> int:
        if not self.value.dtype.is_integer:
            raise TraceError(f"a traced {self.value.dtype} is no index", where=source.user_line())
        return int(self._number_or_raise("the value", operator.index, "index with np.take_along_axis or np.take"))

    def item(self, *arguments: Any) -> Any:
        return self._number_or_raise("item()", lambda known: np.asarray(known).item(*arguments), _KEEP)

    def tolist(self) -> Any:
        known = self.recorder.contents.ask(self.number, "tolist()")
        if known is not None:
            return known.tolist()
        raise self._needs_elements("tolist()", "return the array and convert it outside")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        known = self.recorder.contents.ask(self.number, "the elements of an array")
        if known is not None:
            return np.array(known, dtype)
        raise self._needs_elements(*replacements.of_elements())
