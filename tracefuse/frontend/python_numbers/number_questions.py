"""Questions for the number of a traced value, and conditions under which the recording of Python's numbers is exact.

Python's numbers differ from NumPy's where they overflow, divide by zero or leave the domain of a function. A condition
excludes these cases: the call computes it with its results and, if it fails, runs once more, this time asking for the
numbers themselves. A function with effects that cannot be run twice asks for each condition instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.dtypes import PYTHON_TYPES
from tracefuse.errors import TraceError, TracefuseError
from tracefuse.frontend.numpy_api.hints import replacements
from tracefuse.frontend.tracer.array_ops.traced_ops import apply
from tracefuse.frontend.tracer.effects.assumed_conditions import is_assumed
from tracefuse.frontend.tracer.python_code.raising_branches import raising_outcome
from tracefuse.frontend.tracer.questions_in_loops import begin_again_with_loops
from tracefuse.frontend.tracer.values.later_texts import REPR, text_of
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced

IN_BODY = (
    "a body is recorded once, for all steps: choose with tracefuse.cond(c, f, g, *operands) or np.where(c, a, b), "
    "and repeat with tracefuse.while_loop(cond_fun, body_fun, init_val)"
)
"""The hint for a question about a value inside the body of a loop or a branch."""

CHOOSE = "a condition must be a Python scalar: choose elements with np.where(condition, a, b)"


def needs_elements(traced: Traced, operation: str, instead: str, of: str = replacements.ONE_ARRAY) -> TraceError:
    """Returns the error for an operation that needs the elements of a traced value."""
    names = traced.recorder.builder.depends_on(traced.number)
    depends = f", which depends on {', '.join(names)}" if names else ""
    return TraceError(f"{operation} of {of}{depends}", hint=instead, where=source.user_line())


def number_or_raise(traced: Traced, operation: str, convert: Callable[[Any], Any], instead: str) -> Any:
    """Returns `convert(elements)`, guarded, or the answer of the call; raises if nothing answers.

    operation: a key of `READERS` for a question that calls answer. instead: the hint.
    """
    recorder = traced.recorder
    recorder.check_alive()
    if traced.read is not None:
        return convert(recorder.value_of(traced, operation))
    if operation == "bool()" and recorder.contents.follows_sizes(traced.number):
        begin_again_with_loops(recorder)  # before the answer guards the sizes
    answer = recorder.contents.ask(traced.number, operation, convert)
    if answer is not None:
        return answer
    if operation == "bool()":
        begin_again_with_loops(recorder)
    if recorder.body is not None:
        raise needs_elements(traced, operation, IN_BODY)
    answers = recorder.answers
    if answers is not None and not traced.value.shape:
        return answers.ask(recorder, traced, operation, source.user_line())
    raise needs_elements(traced, *replacements.of_number(operation, instead))


def text_or_raise(traced: Traced, specification: str | None) -> str:
    """Returns the text of an array or a number, as the call answers; raises if nothing answers.

    specification: None for `str`, `REPR` or `REPR_OF_ARRAY` for `repr`.
    """
    recorder = traced.recorder
    asks = "str()" if specification is None else "repr()" if specification == REPR else "repr() of an array"
    known = recorder.value_of(traced, asks) if traced.read is not None else None
    if known is None:
        known = recorder.contents.ask(traced.number, asks, np.asarray)
    if known is not None:
        return text_of(np.asarray(known, traced.value.dtype.numpy), specification)
    if recorder.body is not None:
        raise needs_elements(traced, asks, "return the value from the body and print it after the loop")
    if recorder.answers is None:
        raise needs_elements(traced, asks, "return the value and make the text outside")
    return str(recorder.answers.ask(recorder, traced, asks, source.user_line()))


def truth_of(traced: Traced) -> bool:
    """Whether a traced value is true: known, the answer of the call, or assumed if the other branch only raises."""
    frame = source.user_frame()
    raising = None if frame is None else raising_outcome(frame)
    if raising is None or traced.value.shape or traced.read is not None:
        return bool(number_or_raise(traced, "bool()", bool, CHOOSE))
    holds = apply("logical_not", traced) if raising else apply("ne", traced, 0)
    return assume(holds) is not raising


def assume(condition: Any) -> bool:
    """Whether a condition holds, a truth value or a traced one. True may depend on a check of later calls."""
    if not isinstance(condition, Traced):
        return bool(condition)
    recorder = condition.recorder
    collected = None if recorder.body is None else recorder.body.conditions
    if collected is not None and not condition.on_host:
        collected.setdefault(condition.number, source.user_line())
        return True
    return is_assumed(condition) or bool(number_or_raise(condition, "bool()", bool, CHOOSE))


def real(number: Any) -> Any:
    """Returns the number of Python that a traced number is in the current call; any other value as it is."""
    if isinstance(number, SymbolicSize):
        return int(number)
    if not isinstance(number, Traced) or number.weak is None:
        return number
    kind = PYTHON_TYPES[number.weak]
    operation = f"{number.weak}()"
    return number_or_raise(number, operation, kind, "keep it an array; np.where chooses elements")


def settle_arguments(error: Exception) -> None:
    """Replaces traced numbers among the arguments of an exception of the user by the numbers of the call."""
    if isinstance(error, TracefuseError) or not any(
        isinstance(argument, (Traced, SymbolicSize)) for argument in error.args
    ):
        return
    error.args = tuple(map(_settled, error.args))


def _settled(value: Any) -> Any:
    if isinstance(value, SymbolicSize):
        return value.hint
    if not isinstance(value, Traced) or value.value.shape or value.recorder.body is not None:
        return value
    kind = (lambda number: number) if value.weak is not None else value.value.dtype.numpy.type
    return kind(number_or_raise(value, "item()", lambda known: np.asarray(known).item(), "give a number"))
