"""Questions that a function asks about computed values: `if err < tol`, `float(x)`, the size of `x[mask]`.

The interface between a trace and what answers its questions. A question ends a stage of the recording: its answer is a
value of the current call, and what the function does next depends on it.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias

from segments.lazy_dataclasses import dataclass
from tracefuse.dynamic.guards import Guard
from tracefuse.errors import TracefuseError, UnsupportedError
from tracefuse.frontend.tracer.array_ops.traced_ops import apply
from tracefuse.frontend.tracer.effects.printed_values import Print, StagePrints
from tracefuse.frontend.tracer.record.assumptions import ScalarGuard
from tracefuse.frontend.tracer.values.host_numbers import HostNumber
from tracefuse.frontend.tracer.values.later_texts import REPR, REPR_OF_ARRAY, text_of
from tracefuse.ir.collective_kinds import Collective
from tracefuse.ir.extents import Extent, substitute
from tracefuse.ir.fusion import Node, Requirement, Value
from tracefuse.ops.random_draws import SourceOfCall
from tracefuse.runtime.devices import arrays

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.record.recorder import Recorder
    from tracefuse.frontend.tracer.values.traced import Traced

READERS: dict[str, Callable[[Any], Any]] = {
    "bool()": bool, "int()": int, "float()": float, "complex()": complex, "the value": int,
    "item()": lambda array: array.item(), "round()": lambda array: round(array.item()),
    "str()": lambda array: text_of(array, None),
    "repr()": lambda array: text_of(array, REPR),
    "repr() of an array": lambda array: text_of(array, REPR_OF_ARRAY),
}  # fmt: skip
"""How Python reads an array of one element, by the operation that asks."""


class EffectAfterCondition(BaseException):
    """A stage would have effects although what it assumed may not hold. (User code must not catch it.)"""


TEXTS = "texts"
"""Among the numbers of a trace: it asks for texts of computed values that it stores, since it may read them."""
CONDITIONS = "conditions"
"""Among the numbers of a trace: it asks for the conditions under which numbers of Python are exact."""


class _WithResults:
    """A question whose answers are inputs of what follows."""

    __slots__ = ()

    def results_of(self, answer: Any) -> tuple[int, ...]:
        """The inputs of what follows that hold an answer."""
        results: tuple[int, ...] = self.results  # type: ignore[attr-defined]
        return results


@dataclass(frozen=True, slots=True, eq=False)
class ValueQuestion(_WithResults):
    """One question of a function.

    operation: as `READERS` has it. number: the value that is read. where: the line.
    """

    operation: str
    number: int
    where: str | None

    @property
    def reads(self) -> tuple[int, ...]:
        """The values that the answer depends on."""
        return (self.number,)

    def answer(self, values: Mapping[int, Any]) -> Any:
        """Returns the answer. values: arrays of one element, by number."""
        return READERS[self.operation](values[self.number])

    def key_of(self, answer: Any) -> Any:
        """Returns the key of an answer in a tree: NaN equals itself, and numbers of two types differ."""
        if answer is True or answer is False:
            return answer
        return (type(answer), repr(answer) if answer != answer else answer)

    def text_of(self, key: Any) -> str:
        """Returns an answer as text, from its key."""
        return str(key[1] if isinstance(key, tuple) else key)

    @property
    def is_choice(self) -> bool:
        """Whether there are two answers only."""
        return self.operation == "bool()"

    @property
    def results(self) -> tuple[int, ...]:
        """The inputs of what follows that hold the answer."""
        return ()

    @property
    def title(self) -> str:
        """What is asked, for warnings."""
        return f"{self.operation} of a computed value"

    def __str__(self) -> str:
        return f"{self.operation} of T{self.number} ({self.where})"


@dataclass(frozen=True, slots=True, eq=False)
class SizeQuestion(_WithResults):
    """A call of the array library whose results have sizes, or types, that the data decide.

    name: of the function. function: called with the library and the arrays; returns an array or a tuple of arrays.
    reads: the values that it is called with. results: the inputs of what follows that hold its results. where: the
    line.
    """

    name: str
    function: Callable[..., Any]
    reads: tuple[int, ...]
    results: tuple[int, ...]
    where: str | None

    def answer(self, values: Mapping[int, Any]) -> Any:
        """Returns the results, a tuple of arrays. values: by number."""
        arrays = [values[number] for number in self.reads]
        results = self.function(library_of(arrays[0]), *arrays)
        return tuple(results) if isinstance(results, (tuple, list)) else (results,)

    def key_of(self, answer: Any) -> Any:
        """Returns the key of results in a tree: their types, and which of their extents are 0, 1 or more."""
        return tuple([(array.dtype.char, *[min(extent, 2) for extent in array.shape]) for array in answer])

    def text_of(self, key: Any) -> str:
        """Returns sizes as text, from their key."""
        shapes = (" by ".join(("0", "1", "many")[extent] for extent in extents) for _, *extents in key)
        return ", ".join(dict.fromkeys(shapes))

    @property
    def is_choice(self) -> bool:
        """Whether there are a few answers only."""
        return True

    @property
    def title(self) -> str:
        """What is asked, for warnings."""
        return f"the size of {self.name}"

    def __str__(self) -> str:
        return f"size of {self.name} of {', '.join(f'T{number}' for number in self.reads)} ({self.where})"


@dataclass(frozen=True, slots=True, eq=False)
class IntegerQuestion(_WithResults):
    """An integer that becomes a size, a bound or a shift of what follows.

    number: the value that is read. result: the input of what follows that holds the integer. where: the line.
    """

    number: int
    result: int
    where: str | None

    @property
    def reads(self) -> tuple[int, ...]:
        """The values that the answer depends on."""
        return (self.number,)

    @property
    def results(self) -> tuple[int, ...]:
        """The inputs of what follows that hold the answer."""
        return (self.result,)

    def answer(self, values: Mapping[int, Any]) -> Any:
        """Returns the integer, in a tuple. values: arrays of one element, by number."""
        return (int(values[self.number]),)

    def key_of(self, answer: Any) -> Any:
        """Returns the key of an integer in a tree: negative, 0, 1 or more."""
        return max(-1, min(answer[0], 2))

    def text_of(self, key: Any) -> str:
        """Returns an integer as text, from its key."""
        return ("0", "1", "many", "negative")[key]

    @property
    def is_choice(self) -> bool:
        """Whether there are a few answers only."""
        return True

    @property
    def title(self) -> str:
        """What is asked, for warnings."""
        return "a computed size"

    def __str__(self) -> str:
        return f"size from T{self.number} ({self.where})"


Question: TypeAlias = ValueQuestion | SizeQuestion | IntegerQuestion


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What a trace recorded since the question before. The last stage ends with the result, and has no question.

    first, end: the numbers of its values are from `first` up to `end`, which is not included. guards, scalar_guards,
    requirements: those that it added. values, makers: of the whole trace. pinned: the sizes that are constants of the
    trace, as they were at the end of the stage. effects: the results of each of its effects, in order. prints: the
    lines that it prints. condition: whether what the trace assumed of values holds, checked after the stage; None if it
    assumed nothing. host_sizes: its inputs that are sizes which the host computes, and how.
    """

    question: Question | None
    first: int
    end: int
    guards: tuple[Guard, ...]
    scalar_guards: tuple[ScalarGuard, ...]
    requirements: tuple[Requirement, ...]
    values: Mapping[int, Value]
    makers: Mapping[int, Node]
    pinned: Mapping[Any, Extent]
    effects: tuple[tuple[int, ...], ...] = ()
    prints: tuple[Print, ...] = ()
    condition: int | None = None
    host_sizes: tuple[tuple[int, HostNumber], ...] = ()

    @property
    def where(self) -> str | None:
        """The line of its question."""
        return None if self.question is None else self.question.where

    @property
    def results(self) -> tuple[int, ...]:
        """The inputs of what follows that hold the answer to its question."""
        return () if self.question is None else self.question.results

    @property
    def wanted(self) -> tuple[int, ...]:
        """The values that every call computes: those of the question, of the effects and of the printed lines."""
        reads = () if self.question is None else self.question.reads
        reads = reads if self.condition is None else (*reads, self.condition)
        printed = (number for line in self.prints for number in line.numbers)
        return tuple(dict.fromkeys((*reads, *(number for effect in self.effects for number in effect), *printed)))

    def simplify(self, extent: Extent) -> Extent:
        """Returns an extent with the pinned sizes replaced by their values."""
        return substitute(extent, self.pinned) if self.pinned and not isinstance(extent, int) else extent


class Answers(ABC):
    """Answers the questions of one trace.

    numbers: the routes to numbers of the state that are inputs of the trace, and CONDITIONS if it asks for conditions.
    stages: those that have ended. answers:
    to their questions. is_tree: whether a trace without questions ends with a stage, too. running: the context in which
    stages run while the function is traced. refusal: why the data of this call cannot decide sizes, or None.
    """

    def __init__(
        self, numbers: frozenset[Any] = frozenset(), is_tree: bool = False, refusal: str | None = None
    ) -> None:
        self.numbers, self.is_tree, self.refusal = numbers, is_tree, refusal
        self.running: Callable[[], AbstractContextManager[None]] = nullcontext
        self.begin()

    def begin(self) -> None:
        """Forgets what a trace recorded, for one that starts again."""
        self.stages: list[Stage] = []
        self.answers: list[Any] = []
        self._prints = StagePrints()
        # How many guards, scalar guards, requirements and nodes belong to these stages.
        self._guards = self._scalar_guards = self._requirements = self._nodes = 0

    @abstractmethod
    def restart(self, numbers: frozenset[Any]) -> None:
        """Prepares for another trace of the same call, with more numbers of the state as inputs."""

    @abstractmethod
    def answer(self, recorder: Recorder, stage: Stage) -> Any:
        """Returns the answer to the question that ends a stage."""

    @abstractmethod
    def source_of_call(self, make: Callable[..., Any]) -> SourceOfCall:
        """Returns the source of the next random generator that the trace makes, the same one in every trace."""

    def leave(self, refusal: TracefuseError) -> None:  # noqa: B027
        """Leaves the call to the function itself after a refusal, if that is possible."""

    def ask(self, recorder: Recorder, traced: Traced, operation: str, where: str | None) -> Any:
        """Returns the answer to a question about a tensor without axes, and ends the stage."""
        number = traced.number
        return self._answered(recorder, lambda end: ValueQuestion(operation, number, where))

    def ask_integer(self, recorder: Recorder, traced: Traced, where: str | None) -> int:
        """Returns an integer that becomes the next input of the trace, and ends the stage."""
        number = traced.number
        (answer,) = self._answered(recorder, lambda end: IntegerQuestion(number, end, where))
        return int(answer)

    def compute(
        self, recorder: Recorder, name: str, function: Callable[..., Any], numbers: Sequence[int], count: int,
        where: str | None,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Returns the results of a function whose sizes the data decide, and ends the stage.

        numbers: the values that it is called with. count: of its results, which become the next inputs of the trace.
        """
        return self.ask_library(  # type: ignore[no-any-return]
            recorder, name,
            lambda end: SizeQuestion(name, function, tuple(numbers), tuple(range(end, end + count)), where), where,
        )  # fmt: skip

    def ask_library(
        self, recorder: Recorder, name: str, question: Callable[[int], SizeQuestion], where: str | None
    ) -> Any:  # fmt: skip
        """Returns the results of a call of a library, and ends the stage.

        question: returns the question from the number of the next value.
        """
        if self.refusal is not None:
            raise UnsupportedError(f"{name}: the size of the result depends on the data, {self.refusal}", where=where)
        return self._answered(recorder, question)

    def _answered(self, recorder: Recorder, question: Callable[[int], Question]) -> Any:
        condition = unchecked_conditions(recorder)
        stage = self._end(recorder, question, None if condition is None else condition.number)
        if stage.condition is not None and (stage.effects or stage.prints):
            raise EffectAfterCondition
        with self.running():
            answer = self.answer(recorder, stage)
        self.stages.append(stage)
        self.answers.append(answer)
        return answer

    def finish(self, recorder: Recorder) -> None:
        """Ends the last stage of a trace, with the result."""
        if self.stages or self.is_tree:
            self.stages.append(self._end(recorder, lambda end: None))

    @property
    def has_stages(self) -> bool:
        """Whether the recording consists of stages: after the first question, or in a tree."""
        return bool(self.stages) or self.is_tree

    def _end(
        self, recorder: Recorder, question: Callable[[int], Question | None], condition: int | None = None
    ) -> Stage:
        """Returns the stage that ends now. question: returns its question, from the number of the next value."""
        prints = self._prints.of_stage(recorder)
        builder, first = recorder.builder, self.stages[-1].end if self.stages else 0
        recorder.last_exchange = None  # stages run in order: the next exchange follows those of this one
        stage = Stage(
            question(builder.next_number),
            first,
            builder.next_number,
            tuple(recorder.guards)[self._guards :],
            tuple(recorder.scalar_guards[self._scalar_guards :]),
            tuple(builder.requirements[self._requirements :]),
            builder.values,
            builder.makers,
            dict(recorder.pinned),
            tuple(map(_results_of_effect, (n for n in builder.nodes[self._nodes :] if n.op.effect))),
            prints,
            condition,
            tuple((n, read) for n, read in recorder.host_sizes.items() if n >= first),
        )
        self._guards, self._scalar_guards = len(recorder.guards), len(recorder.scalar_guards)
        self._requirements, self._nodes = len(builder.requirements), len(builder.nodes)
        return stage


def _results_of_effect(node: Node) -> tuple[int, ...]:
    """Returns the results of an effect that are values; an exchange also has a token."""
    return node.outputs[:-1] if isinstance(node.op, Collective) else node.outputs


def unchecked_conditions(recorder: Recorder) -> Any:
    """Returns whether all conditions hold that no stage has checked, as a traced value; None if there are none."""
    numbers = list(recorder.conditions)[recorder.checked_conditions :]
    if not numbers:
        return None
    recorder.checked_conditions += len(numbers)
    holds: Any = recorder.traced_type(recorder, numbers[0])
    for number in numbers[1:]:
        holds = apply("logical_and", holds, recorder.traced_type(recorder, number))
    return holds


def library_of(array: Any) -> Any:
    """Returns the module of a NumPy or CuPy array."""
    kind = arrays.kind_of(array)
    assert kind is not None
    return sys.modules[kind]
