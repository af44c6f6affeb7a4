"""The stages of a function that asks questions, as the inspection methods show them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from tracefuse.compiler.executable import Executable
from tracefuse.definition.segment import Segments
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.calls.question_tree import QuestionTree
from tracefuse.frontend.calls.tree_text import TreeExplanation
from tracefuse.ir.extents import evaluate
from tracefuse.partition import segment_table
from tracefuse.runtime.devices.shape_dtype import ShapeDtype

View = TypeVar("View")


class StageViews(Generic[View]):
    """What is shown of each stage that computes, in the order of `explain`.

    Stages are those that the calls so far have met. An index gives the view of a stage; `str` prints each stage below
    the answers that lead to it.
    """

    def __init__(self, tree: QuestionTree, view: Callable[[Executable], View]) -> None:
        self._stages: list[tuple[str, View]] = []
        for node, headline in TreeExplanation(tree).headlines():
            executable = None if node.compiled is None else node.compiled.executable
            if isinstance(executable, Executable):
                self._stages.append((headline, view(executable)))
            elif executable is not None:
                raise UnsupportedError("target='reference' has no segments", hint="leave target= out to see them")

    def __len__(self) -> int:
        return len(self._stages)

    def __getitem__(self, position: int) -> View:
        return self._stages[position][1]

    def __iter__(self) -> Iterator[View]:
        return (view for _, view in self._stages)

    def __str__(self) -> str:
        return "\n".join(f"# {headline.strip()}\n{_text_of(view)}" for headline, view in self._stages)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return segment_table.html_of(self)


def last_inputs(executable: Executable) -> list[Any]:
    """Returns stand-ins for the inputs of a stage, with the sizes of its last call; with 8 if it has not run yet."""
    values, plans = executable.fusion.values, executable.plans.plans()
    facts = plans[0].values if plans else {key: 8 for key, _, _ in executable.fusion.axis_ids()}
    return [
        ShapeDtype(tuple(evaluate(extent, facts) for extent in values[number].shape), values[number].dtype.numpy)
        if values[number].is_tensor
        else facts.get(number, 1)
        for number in executable.fusion.inputs
    ]


def _text_of(view: Any) -> str:
    return "\n".join(repr(segment.definition) for segment in view) if isinstance(view, Segments) else repr(view)
