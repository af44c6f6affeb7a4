"""Errors that a handler of the traced function catches, as NumPy raises them: their type, arguments and text.

NumPy itself is asked, by the same operation on arrays of the same types and sizes. An error that no handler of the
function catches leaves the call as tracefuse raised it, in a class that NumPy's is of.

Must not know: overlays of values.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from tracefuse import source
from tracefuse.errors import (
    DtypeError,
    IntegerRangeError,
    NoElementsError,
    OutOfRangeError,
    ScalarError,
    ShapeError,
    TracefuseError,
    UnsupportedError,
)
from tracefuse.frontend.tracer.effects.caught_errors import handler_around, handler_binds_error, is_unmet
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.nested_lists import check_depth
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced

Class = TypeVar("Class", bound=type)

_OF_OPERANDS = (ShapeError, DtypeError, OutOfRangeError, ScalarError)
"""Errors that follow from the types and the sizes of operands."""

_OF_ARGUMENTS = (TypeError, ValueError, IndexError, AttributeError)
"""Errors of Python's own functions, and of attributes of arrays, for arguments that are no arrays."""

_OWN = (ScalarError, DtypeError, OutOfRangeError, IntegerRangeError, NoElementsError)
"""Errors of tracefuse by which the classes of NumPy's are raised."""

_REASON = "the text of an error that the function catches"

MOST_ELEMENTS = 1 << 22
"""Elements of all operands with which NumPy is asked for its error."""


def methods_raise_as_numpy(cls: Class) -> Class:
    """Decorates the methods of traced arrays: what they raise inside of a handler is what NumPy raises."""
    return source.methods_hide_own_frames(cls, _of_numpy)


def _of_numpy(error: Exception, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Exception | None:
    """Returns NumPy's error for a call of a method; None outside of handlers and where NumPy raises none."""
    recorder = current.get()
    is_of_operands = isinstance(error, _OF_OPERANDS) or type(error) in _OF_ARGUMENTS
    if not is_of_operands or isinstance(error, UnsupportedError) or recorder is None:
        return None
    if recorder.device is not None or not recorder.alive:
        return None
    function, given = _operation(name, arguments)
    try:
        check_depth([given, *keywords.values()])
    except ShapeError:
        return None
    traced = list(_traced_in([given, keywords]))
    if function is None or any(one.is_python for one in traced):
        return None
    if sum(math.prod(map(recorder.known, one.extents)) for one in traced) > MOST_ELEMENTS:
        return None
    raised = [_raised(function, _samples([given, keywords], recorder, filled)) for filled in (True, False)]
    if raised[0] is None or raised[1] is None or _identity(raised[0]) != _identity(raised[1]):
        return None  # it depends on elements
    if handler_around() is None:
        return _of_the_class_of(raised[0], error)
    recorder.caught.append((raised[0], error, tuple(one.extents for one in traced)))
    if handler_binds_error():
        guard_texts(raised[0])
    return raised[0]


def raised_by_numpy(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """Returns what a function of NumPy raises for arrays of the types and sizes of its operands; None for nothing."""
    traced = list(_traced_in([*arguments, dict(keywords)]))
    recorder = traced[0].recorder if traced else None
    if recorder is None or sum(math.prod(map(recorder.known, one.extents)) for one in traced) > MOST_ELEMENTS:
        return None
    return _raised(function, _samples([list(arguments), dict(keywords)], recorder, True))


def _of_the_class_of(raised: Exception, error: Exception) -> Exception | None:
    """Returns tracefuse's error of the class of NumPy's, with the text of its own; None if that is of this class."""
    builtin = next(kind for kind in type(raised).__mro__ if kind.__module__ == "builtins")
    own = next((kind for kind in _OWN if issubclass(kind, builtin)), None)
    if isinstance(error, builtin) or own is None:
        return None
    if isinstance(error, TracefuseError):
        return own(error.message, hint=error.hint, where=error.where or source.user_line())
    return own(str(raised), where=source.user_line())


def guard_texts(error: BaseException | None) -> None:
    """Guards the sizes that the text of an error quotes, once something reads it."""
    recorder = current.get()
    if recorder is None:
        return
    for raised, _, operands in recorder.caught:
        if raised is error:
            for extent in (extent for extents in operands for extent in extents):
                recorder.pin(extent, _REASON)


def first_raised(error: BaseException, recorder: Recorder) -> BaseException:
    """Returns the error that a call raises whose trace ended in an error: the first of the program.

    That is a requirement on sizes that an earlier operation recorded and the sizes of the call do not meet, if there is
    one. For an error of NumPy that no handler caught it is tracefuse's.
    """
    for requirement in recorder.builder.requirements:
        if is_unmet(requirement, recorder):
            return requirement.error(recorder.known(requirement.left), recorder.known(requirement.right))
    return next((one for raised, one, _ in recorder.caught if raised is error), error)


def _operation(name: str, arguments: Sequence[Any]) -> tuple[Callable[..., Any] | None, Sequence[Any]]:
    """The function of Python or NumPy that a method of a traced array implements, and its arguments."""
    if name == "__array_ufunc__":
        return getattr(arguments[1], arguments[2]), arguments[3:]
    if name == "__array_function__":
        return (lambda positional, named: arguments[1](*positional, **named)), arguments[3:5]
    plain = name.replace("__r", "__", 1) if name in _REVERSED else name
    function = divmod if plain == "__divmod__" else vars(operator).get(plain)
    if plain.startswith("__") and function is not None:
        return function, arguments[::-1] if name in _REVERSED else arguments
    if plain.startswith("_") or not hasattr(np.ndarray, plain):
        return None, arguments
    return (lambda array, *more, **named: getattr(array, plain)(*more, **named)), arguments


_REVERSED = frozenset(name for name in [*dir(int), "__rmatmul__"] if name.startswith("__r") and name[3:] not in (
    "epr__", "ound__", "educe__", "educe_ex__",
))  # fmt: skip
"""The operators of a right operand."""


def _traced_in(value: Any) -> Iterator[Traced]:
    if isinstance(value, Traced):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _traced_in(one)
    elif isinstance(value, slice):
        yield from _traced_in([value.start, value.stop, value.step])


def _samples(value: Any, recorder: Recorder, filled: bool) -> Any:
    """Nested operands with arrays of the same types and sizes in the place of traced values."""
    if isinstance(value, Traced):
        builder, kind = recorder.builder, value.value.dtype.numpy
        is_constant = value.number in builder.independent and value.number not in builder.of_state
        elements = recorder.contents.elements(value.number, None) if is_constant else None
        known = np.full(tuple(map(recorder.known, value.extents)), filled if elements is None else elements, kind)
        scalar = known.item() if value.weak is not None and not value.extents else known[()]
        return scalar if value.is_immutable or value.weak is not None else known
    if isinstance(value, SymbolicSize):
        return recorder.known(value.extent)
    if type(value) in (list, tuple):
        return type(value)(_samples(one, recorder, filled) for one in value)
    if isinstance(value, slice):
        return slice(*_samples([value.start, value.stop, value.step], recorder, filled))
    if isinstance(value, np.ndarray):
        return value.copy()
    return {k: _samples(one, recorder, filled) for k, one in value.items()} if isinstance(value, dict) else value


def _raised(function: Callable[..., Any], samples: Any) -> Exception | None:
    """What a function raises."""
    enclosing = current.set(None)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            function(*samples[0], **samples[1])
    except Exception as error:
        error.__traceback__ = error.__context__ = None
        return error
    finally:
        current.reset(enclosing)
    return None


def _identity(error: BaseException) -> tuple[type, str]:
    return type(error), str(error)


def show_user_frames() -> None:
    """Removes tracefuse's frames from the traceback of the error that the user's code handles, if it handles one."""
    error = sys.exception()
    if error is not None:
        frames = error.__traceback__
        source.hide_own_frames(error)
        if error.__traceback__ is None:  # a library that handles it may read its frames
            error.__traceback__ = frames


def _reading(function: Callable[..., Any]) -> Callable[..., Any]:
    """The twin of a function that reads the error that is being handled."""

    @source.forwards
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        show_user_frames()
        guard_texts(sys.exception())
        return function(*arguments, **keywords)

    return call


MODULES = (sys, traceback)
FUNCTIONS: Mapping[int, Any] = MappingProxyType({
    id(function): _reading(function) for function in (sys.exc_info, sys.exception, traceback.format_exc)
})  # fmt: skip
"""Twins of the functions that read the error that is being handled, by the id of each."""
