"""Questions that a function asks about computed values: `if err < tol`, `float(x)`, `x.item()`.

The interface between a trace and what answers its questions. A question ends a stage of the recording: its answer is a
value of the current call, and what the function does next depends on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracefuse.dynamic.guards import Guard
from tracefuse.frontend.tracer.assumptions import ScalarGuard
from tracefuse.ir.extents import Extent, substitute
from tracefuse.ir.fusion import Node, Requirement, Value

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.recorder import Recorder
    from tracefuse.frontend.tracer.traced import Traced

READERS: dict[str, Callable[[Any], Any]] = {
    "bool()": bool, "int()": int, "float()": float, "complex()": complex, "the value": int,
    "item()": lambda array: array.item(),
}  # fmt: skip
"""How Python reads an array of one element, by the operation that asks."""


@dataclass(frozen=True, slots=True, eq=False)
class ValueQuestion:
    """One question of a function.

    operation: as `READERS` has it. number: the value that is read. answer: in the traced call. where: the line.
    """

    operation: str
    number: int
    answer: Any
    where: str | None

    def read(self, array: Any) -> Any:
        """Returns the answer that an array of one element gives."""
        return READERS[self.operation](array)

    @property
    def is_choice(self) -> bool:
        """Whether there are two answers only."""
        return self.operation == "bool()"


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What a trace recorded since the question before. The last stage ends with the result, and has no question.

    first, end: the numbers of its values are from `first` up to `end`, which is not included. guards, scalar_guards,
    requirements: those that it added. values, makers: of the whole trace. pinned: the sizes that are constants of the
    trace, as they were at the end of the stage.
    """

    question: ValueQuestion | None
    first: int
    end: int
    guards: tuple[Guard, ...]
    scalar_guards: tuple[ScalarGuard, ...]
    requirements: tuple[Requirement, ...]
    values: Mapping[int, Value]
    makers: Mapping[int, Node]
    pinned: Mapping[Any, Extent]

    @property
    def where(self) -> str | None:
        """The line of its question."""
        return None if self.question is None else self.question.where

    def simplify(self, extent: Extent) -> Extent:
        """Returns an extent with the pinned sizes replaced by their values."""
        return substitute(extent, self.pinned) if self.pinned and not isinstance(extent, int) else extent


class Answers(ABC):
    """Answers the questions of one trace. stages: those that have ended."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        # How many guards, scalar guards and requirements belong to these stages, and how many nodes have no effect.
        self._guards = self._scalar_guards = self._requirements = self._nodes = 0

    @abstractmethod
    def answer(self, recorder: Recorder, stage: Callable[[Any], Stage], traced: Traced, operation: str) -> Any:
        """Returns the answer. stage: makes the stage that ends here, from the answer."""

    def accepts(self, recorder: Recorder) -> bool:
        """Whether a trace may ask: running the recorded ops once more would change nothing."""
        nodes = recorder.builder.nodes
        if recorder.prints or any(node.op.effect for node in nodes[self._nodes :]):
            return False
        self._nodes = len(nodes)
        return True

    def ask(self, recorder: Recorder, traced: Traced, operation: str, where: str | None) -> Any:
        """Returns the answer to a question about a tensor without axes, and ends the stage."""
        number = traced.number

        def end(answer: Any) -> Stage:
            return self.stage(recorder, ValueQuestion(operation, number, answer, where))

        answer = self.answer(recorder, end, traced, operation)
        stage = end(answer)
        self.stages.append(stage)
        self._guards += len(stage.guards)
        self._scalar_guards += len(stage.scalar_guards)
        self._requirements += len(stage.requirements)
        return answer

    def stage(self, recorder: Recorder, question: ValueQuestion | None) -> Stage:
        """Returns the stage of a recording that has not ended yet."""
        before = self.stages
        builder = recorder.builder
        return Stage(
            question,
            before[-1].end if before else 0,
            builder.next_number,
            tuple(recorder.guards)[self._guards :],
            tuple(recorder.scalar_guards[self._scalar_guards :]),
            tuple(builder.requirements[self._requirements :]),
            builder.values,
            builder.makers,
            dict(recorder.pinned),
        )


def live_numbers(recorder: Recorder) -> Iterator[int]:
    """Yields the numbers of the values that the function can still reach by a name."""
    names = [(reference, name) for reference in recorder.names if (name := reference()) is not None]
    recorder.names = [reference for reference, _ in names]
    for _, name in names:
        number, version = name.state()
        if name.memory is None or version == name.memory.version:
            yield number
