"""Calls of library functions that no op expresses, between two stages of a call: `scipy.signal.find_peaks(x)`.

The function gets the elements of its operands as read-only arrays. Its results are inputs of what follows, which is
symbolic in their sizes, and compiled for sizes of 0, of 1 and of more, and for the types that come.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from types import BuiltinFunctionType, FunctionType
from typing import Any, NoReturn

import numpy as np

from segments.lazy_dataclasses import dataclass
from tracefuse import pytrees, source
from tracefuse.errors import TracefuseError, UnsupportedError
from tracefuse.frontend.tracer.array_ops.assignment import array_of
from tracefuse.frontend.tracer.array_ops.masked_elements import MaskedElements
from tracefuse.frontend.tracer.array_ops.traced_ops import as_tensor
from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.effects.caught_errors import handler_around
from tracefuse.frontend.tracer.effects.questions import Answers, SizeQuestion
from tracefuse.frontend.tracer.libraries.given_arguments import GivenArguments, PlaceOfOperand, only_reads
from tracefuse.frontend.tracer.libraries.passed_functions import (
    WITH_EFFECTS,
    NotPassed,
    PassedDict,
    passed_function,
)
from tracefuse.frontend.tracer.libraries.result_forms import OBJECT, Form, kinds_of, put_together, take_apart
from tracefuse.frontend.tracer.libraries.stage_objects import SharedArrays, StageArray, StageObject
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library
from tracefuse.frontend.tracer.record.captured_inputs import ComputedOutside
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, plain_key
from tracefuse.frontend.tracer.values.traced import ComputedObject, Memory, ObjectOfProgram, Traced
from tracefuse.runtime.devices.arrays import dtype_of_array

OUTSIDE = "call it outside the fused function and pass its result in"
_PLAIN = (bool, int, float, complex, str, bytes, type(None), enum.Enum, slice, range, np.dtype, np.generic, np.ndarray)
_COMPUTING = ("numpy", "scipy", "math", "operator", "builtins")
"""Packages whose functions may be arguments: they read no state of the program, but for those with effects."""


MOST_CAUGHT = 16
"""Most arrays and numbers that a function in a `try` statement returns."""

_WRITTEN = ("out", "output")
"""Parameters with arrays that a function writes."""


class CallResults(tuple[Any, ...]):
    """The arrays and numbers that a function returned, and the form of its result.

    For an exception that a handler of the user may catch, its entries are None and its form holds the exception.
    """

    form: Form

    @property
    def raised(self) -> RaisedError | None:
        value = self.form[1] if self.form[0] == "value" else None
        return value if isinstance(value, RaisedError) else None


@dataclass(frozen=True, slots=True)
class RaisedError:
    """An exception of a call; equal ones have equal types and texts."""

    kind: type[Exception]
    text: str
    error: Exception = field(compare=False)

    def again(self) -> Exception:
        """Returns a copy of the exception, which the traceback of a run can refer to."""
        return copy.copy(self.error)


class CallQuestion(SizeQuestion):
    """A call whose results have a form that is known once it has run.

    first: the number that the first result gets as an input of what follows. may_catch: whether the call is in a `try`
    statement.
    """

    first: int
    may_catch: bool

    def __init__(
        self, name: str, call: Callable[..., Any], reads: tuple[int, ...], first: int, where: str | None,
        may_catch: bool,
    ) -> None:  # fmt: skip
        super().__init__(name, call, reads, (), where)
        object.__setattr__(self, "first", first)
        object.__setattr__(self, "may_catch", may_catch)

    def answer(self, values: Mapping[int, Any]) -> CallResults:
        return self.settle(self.function(*(values[number] for number in self.reads)))

    def results_of(self, answer: CallResults) -> tuple[int, ...]:
        return tuple(range(self.first, self.first + len(answer)))

    def settle(self, results: CallResults) -> CallResults:
        """Numbers the results of the first call, which the trace goes on with. An exception counts as as many."""
        if not self.results:
            object.__setattr__(self, "results", self.results_of(results))
        if results.raised is not None:
            padded = CallResults(None for _ in self.results)
            padded.form = results.form
            return padded
        if self.may_catch and len(results) > MOST_CAUGHT:
            reason = f"in a try statement, it returned {len(results)} arrays and numbers"
            raise _refusal(self.name, reason, self.where)
        return results

    def key_of(self, answer: Any) -> Any:
        return (answer.form,) if answer.raised is not None else (answer.form, *super().key_of(answer))

    def text_of(self, key: Any) -> str:
        (kind, *rest), *shapes = key
        is_raised = kind == "value" and isinstance(rest[0], RaisedError)
        return f"raises {rest[0].kind.__name__}" if is_raised else super().text_of(shapes) or "done"

    def __str__(self) -> str:
        return f"{self.name} of {', '.join(f'T{number}' for number in self.reads)} ({self.where})"


class _EntriesOfSequence:
    """A list or tuple whose entries are computed numbers of one kind, as one operand."""

    __slots__ = ("array", "kind", "sequence")

    def __init__(self, entries: Sequence[Traced]) -> None:
        self.array, self.sequence, self.kind = array_of(entries), type(entries), entries[0].weak or "array"


def call_between_stages(
    function: Callable[..., Any], name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:  # fmt: skip
    """Calls a function on the elements of traced operands and returns its result, with traced values in it.

    name: of the function, as the user writes it. Raises UnsupportedError for arguments that are neither arrays nor
    numbers, text or functions of NumPy and SciPy, for an array to write, and where no call can go on with results:
    inside of a recorded body, on a GPU, and when a function is inspected. In a `try` statement, what the function
    raises is a result like others, with which the handlers of the user go on.
    """
    _require_no_output(name, keywords)
    leaves, structure = pytrees.flatten((tuple(map(_listed, arguments)), {k: _listed(v) for k, v in keywords.items()}))
    operands: list[Traced | ComputedObject] = []
    shared = SharedArrays.among(leaves)
    placed = [_place(name, leaf, operands) for leaf in leaves]
    recorder = operands[0].recorder if operands else current.get()
    assert recorder is not None
    where = source.user_line()
    answers = _answers_of(recorder, name, where)
    may_catch = handler_around() == "try"

    arguments_of = GivenArguments(placed, is_written=not only_reads(function, placed))

    def run(*arrays: Any) -> CallResults:
        return _results(function, name, where, structure, arguments_of(arrays), may_catch)

    reads = tuple(operand.number for operand in operands)
    questions: list[CallQuestion] = []

    def question(first: int) -> CallQuestion:
        questions.append(CallQuestion(name, run, reads, first, where, may_catch))
        return questions[-1]

    results = answers.ask_library(recorder, name, question, where)
    questions[-1].settle(results)
    if results.raised is not None:
        _raise_again(recorder, results.raised)
    result = _as_traced(recorder, results, ComputedOutside(reads, name, where), shared)
    for operand in operands:
        if isinstance(operand, StageArray):
            operand.share(pytrees.flatten(result)[0])
    return result


def _raise_again(recorder: Recorder, raised: RaisedError) -> NoReturn:
    """Raises what a call raised, for the handlers of the user."""
    for _ in range(MOST_CAUGHT):  # the numbers of the results of calls that do not raise
        recorder.builder.new_number()
    raise raised.again()


def _require_no_output(name: str, keywords: Mapping[str, Any]) -> None:
    for parameter in _WRITTEN:
        if keywords.get(parameter) is not None:
            raise _refusal(name, f"it writes into {parameter}", source.user_line())


def _answers_of(recorder: Recorder, name: str, where: str | None) -> Answers:
    """Returns what gives a trace the results of its stages. Raises UnsupportedError where no call goes on with them."""
    if recorder.device is not None:
        reason = "its arrays are on a GPU"
    elif recorder.body is not None:
        reason = "it is inside of a recorded loop or branch"
    elif recorder.answers is None:
        reason = "its results are known only in a call"
    else:
        return recorder.answers
    raise UnsupportedError(f"{name} cannot be fused: {reason}", hint=OUTSIDE, where=where)


def call_or_refuse(
    function: Callable[..., Any], name: str, arguments: Sequence[Any], keywords: Mapping[str, Any],
    refusal: Exception,
) -> Any:  # fmt: skip
    """Calls a function that could not be recorded between two stages; raises `refusal` where that is refused, too."""
    try:
        return call_between_stages(function, name, arguments, keywords)
    except UnsupportedError as error:
        if isinstance(refusal, TracefuseError):
            refusal.runs_function = error.runs_function
        raise refusal from None


def _refusal(name: str, reason: str, where: str | None, hint: str = OUTSIDE) -> UnsupportedError:
    """Returns the refusal of a call that the function itself can make."""
    return UnsupportedError(f"{name} cannot be fused: {reason}", hint=hint, where=where, runs_function=True)


def _listed(value: Any) -> Any:
    """An argument, with the elements under a mask as an array, and a list of computed numbers as one operand."""
    if isinstance(value, MaskedElements):
        return value.elements()
    if (
        type(value) in (list, tuple)
        and value
        and all(isinstance(element, Traced) and not element.extents for element in value)
    ):
        is_of_one_kind = len({(element.weak, element.value.dtype) for element in value}) == 1
        return _EntriesOfSequence(value) if is_of_one_kind else value
    return value


def _place(name: str, leaf: Any, operands: list[Traced | ComputedObject]) -> Any:
    """Returns an argument, or the place of an operand for it, which is added to the operands."""
    if isinstance(leaf, ComputedObject):
        operands.append(leaf)
        return PlaceOfOperand(len(operands) - 1, OBJECT)
    if isinstance(leaf, _EntriesOfSequence):
        operands.append(leaf.array)
        return PlaceOfOperand(len(operands) - 1, leaf.kind, leaf.sequence)
    if isinstance(leaf, (SymbolicSize, MaskedElements, Traced)):
        kind = "int" if isinstance(leaf, SymbolicSize) else getattr(leaf, "weak", None) or "array"
        tensor = leaf.elements() if isinstance(leaf, MaskedElements) else as_tensor(leaf)
        tensor = as_tensor(tensor)  # a number of Python may be one of the host
        operands.append(tensor)
        return PlaceOfOperand(len(operands) - 1, kind)
    if isinstance(leaf, FunctionType) and not is_of_library(leaf.__module__):
        return _placed_function(name, leaf, operands)
    if isinstance(leaf, ObjectOfProgram):
        return leaf.original
    if isinstance(leaf, dict):  # of the state: those among the arguments are pytrees
        return PassedDict({plain_key(key): _place(name, leaf[key], operands) for key in leaf})
    module = (getattr(leaf, "__module__", None) or "").partition(".")[0]
    is_function = isinstance(leaf, (FunctionType, BuiltinFunctionType, np.ufunc)) and module in _COMPUTING
    is_function = is_function and leaf.__name__ not in WITH_EFFECTS
    if not is_function and not isinstance(leaf, (*_PLAIN, type)):
        raise _refusal(name, f"an argument is a {type(leaf).__name__}", source.user_line())
    return leaf


def _placed_function(name: str, function: FunctionType, operands: list[Traced | ComputedObject]) -> Any:
    recorder = current.get()
    where = source.user_line()
    if recorder is None or recorder.overlays is None:
        raise _refusal(name, f"an argument is the function {function.__name__}", where)
    overlays = recorder.overlays
    if not hasattr(function.__globals__, "table"):  # of an object that the trace does not see through
        function = overlays.read(function, Place(function.__name__, routes.to(function), function, where))
    try:
        return passed_function(
            function, recorder.overlays.functions.code_of, lambda value: _place(name, value, operands)
        )
    except NotPassed as reason:
        message = f"an argument is the function {function.__name__}, and {reason}"
        hint = "give the function what it reads as its arguments, or call it outside the fused function"
        raise _refusal(name, message, where, hint) from None


def _results(
    function: Callable[..., Any], name: str, where: str | None, structure: Any, leaves: Sequence[Any], may_catch: bool
) -> CallResults:  # fmt: skip
    """Calls the function on the arguments of a call. Its errors carry the user's line, or are results, if `may_catch`.

    leaves: of the arguments.
    """
    results: list[Any] = []
    try:
        try:
            result = _call(function, structure, leaves)
        except ValueError as error:
            if "read-only" not in str(error):
                raise
            result = _call_on_copies(function, structure, leaves)
        form = take_apart(result, results)
    except UnsupportedError as error:
        raise UnsupportedError(f"{name}: {error.message}", hint=OUTSIDE, where=where, runs_function=True) from None
    except TracefuseError:
        raise
    except Exception as error:
        if may_catch:
            failed = CallResults()
            failed.form = "value", RaisedError(type(error), str(error), copy.copy(error))
            return failed
        error.add_note(f"in {name} ({where})")
        raise
    answer = CallResults(np.array(argument) if _may_share(argument, leaves) else argument for argument in results)
    answer.form = form
    return answer


def _call(function: Callable[..., Any], structure: Any, leaves: Sequence[Any]) -> Any:
    arguments, keywords = pytrees.unflatten(structure, leaves)
    enclosing = current.set(None)  # the function computes with arrays; it records nothing
    try:
        return function(*arguments, **keywords)
    finally:
        current.reset(enclosing)


def _call_on_copies(function: Callable[..., Any], structure: Any, leaves: Sequence[Any]) -> Any:
    """Calls a function that takes no read-only arrays, though it may write none. Raises UnsupportedError if it did."""
    copies = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    result = _call(function, structure, copies)
    for leaf, passed in zip(leaves, copies, strict=True):
        if isinstance(leaf, np.ndarray) and leaf.tobytes() != passed.tobytes():
            raise UnsupportedError("it writes into an argument")
    return result


def _may_share(result: Any, leaves: Sequence[Any]) -> bool:
    return any(isinstance(leaf, np.ndarray) and np.may_share_memory(result, leaf) for leaf in leaves)


def _as_traced(recorder: Recorder, results: CallResults, outside: ComputedOutside, shared: SharedArrays) -> Any:
    """Returns the results as traced values. shared: the arrays that objects among them may refer to."""
    leaves: list[Any] = []
    for array, kind in zip(results, kinds_of(results.form), strict=True):
        if kind == OBJECT:
            number = recorder.builder.new_number()
            recorder.objects.add(number)
            cls = StageArray if isinstance(array[()], np.ndarray) else StageObject
            leaves.append(cls(recorder, number, array[()], outside.name, shared, call_between_stages))
            continue
        number = recorder.tensor_input(array.shape, dtype_of_array(array), f"{outside.name}()", outside.where)
        recorder.computed_outside[number] = outside
        is_number = kind not in ("array", "scalar")
        traced = recorder.traced_type(recorder, number)
        traced = recorder.python_number(traced, kind) if is_number else traced
        if kind == "array":
            traced.memory = Memory()
        leaves.append(traced)
    return put_together(results.form, iter(leaves))
