"""`explain` of a function that asks questions about computed values: the tree that its calls have met so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.compiler.executable import Executable
from tracefuse.frontend.calls.question_tree import QuestionTree, TreeNode
from tracefuse.partition import segment_table


@dataclass(frozen=True, eq=False)
class TreeExplanation:
    """The questions of a function, the answers that calls have met, and the work before each. `str` prints it.

    The text also tells whether calls run the function itself and why, and which loops are unrolled, so that each
    iteration asks.
    """

    tree: QuestionTree

    @property
    def questions(self) -> int:
        """The number of questions in the tree."""
        return sum(node.stage.question is not None for node, _, _ in self._nodes())

    def _nodes(self) -> Iterator[tuple[TreeNode, int, str]]:
        """Yields every node with its depth and the answer that leads to it, in the order of the text."""
        waiting: list[tuple[TreeNode, int, str]] = [(node, 0, "") for node in reversed(self.tree.roots)]
        while waiting:
            node, depth, answer = waiting.pop()
            yield node, depth, answer
            question = node.stage.question
            below = [(key, child) for key, children in node.children.items() for child in children]
            if question is not None:
                waiting += [(child, depth + 1, f"{question.text_of(key)}: ") for key, child in reversed(below)]

    def headlines(self) -> Iterator[tuple[TreeNode, str]]:
        """Yields every node with its line of the text: the answer that leads to it, its question and its work."""
        for node, depth, answer in self._nodes():
            question = node.stage.question
            title = "result" if question is None else str(question)
            wait = "" if question is None else ", then the host reads it; on a GPU it waits"
            yield node, f"{'  ' * depth}{answer}{title}: {_work_text(node)}{wait}"

    @property
    def unrolled(self) -> tuple[str, ...]:
        """The loops that are unrolled, with their lines and the reasons."""
        return self.tree.unrolled

    def __str__(self) -> str:
        lines = [line for _, line in self.headlines()] + self.tree.closings
        return "\n".join([*lines, *(f"unrolled loop: {text}" for text in self.unrolled)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return segment_table.html_of(self)


def _work_text(node: TreeNode) -> str:
    """The segments of a stage, and the values that it computes for later stages."""
    executable: Any = None if node.compiled is None else node.compiled.executable
    count = len(executable.segmentation.segments) if isinstance(executable, Executable) else int(executable is not None)
    values = f"{len(node.reads)} value{'s' * (len(node.reads) != 1)}"
    later_values = "" if node.stage.question is None or not node.reads else f", {values} for later stages"
    return f"{count} segment{'s' * (count != 1)}{later_values}"
