"""The fast path of a function that asks questions: from NumPy arrays to the result, along a tree of known answers.

It serves calls whose arguments are arrays alone, and stages that read no state, have no effects and write nothing. Any
other call takes the way of `QuestionTree.follow`; stages that ran before that showed run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.compiled_stages import Environment, check_stage
from tracefuse.frontend.calls.input_texts import NOT_APPLICABLE
from tracefuse.frontend.calls.question_tree import QuestionTree, TreeNode
from tracefuse.frontend.calls.trace_entry import Entry
from tracefuse.generated_code import compile_expression
from tracefuse.runtime.argument_leaves import LeafKind
from tracefuse.runtime.memory.buffer_facts import NO_BUFFER_USE


class TreePath:
    """Leads calls of one signature and one trace key along a tree. entry: of a result, for the cache of traces."""

    plans_alone = first = None
    use = NO_BUFFER_USE

    def __init__(self, tree: QuestionTree, entry: Entry, has_key: Callable[[Sequence[Any]], bool]) -> None:
        self.tree, self.entry, self._has_key = tree, entry, has_key

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any], bound: Any, out: Any) -> Any:
        """Returns the result of a call, or NOT_APPLICABLE."""
        if not self._has_key(args):
            return NOT_APPLICABLE
        values = dict(enumerate(args))
        environment = Environment(values, {})
        level: Sequence[TreeNode] = self.tree.roots
        while True:
            for node in level:
                environment.axes = node.axes
                if node.compiled is not None and node.is_pure and node.accepts(environment):
                    break
            else:
                return NOT_APPLICABLE
            stage = node.stage
            if stage.requirements:
                check_stage(stage, environment)
            try:
                node.compiled.run(environment)
            except Exception:
                if node.has_conditions:
                    return NOT_APPLICABLE
                raise
            if stage.condition is not None and not values[stage.condition]:
                return NOT_APPLICABLE
            question = stage.question
            if question is None:
                return node.result_of(values)
            answer = question.answer(values)
            if question.results:
                values.update(zip(question.results, answer, strict=True))
            for number in node.drops:
                values.pop(number, None)
            level = node.children.get(question.key_of(answer), ())


def tree_path(tree: QuestionTree, entry: Entry, call: CallArguments) -> TreePath | None:
    """Returns the fast path of calls like this one; None if their arguments are not NumPy arrays alone."""
    positional, keywords = call.structure.children()
    is_flat = not keywords.num_children and all(node.is_leaf() for node in positional.children())
    is_plain = all(leaf.kind is LeafKind.ARRAY and type(leaf.value) is np.ndarray for leaf in call.leaves)
    if not (is_flat and is_plain and call.leaves):
        return None
    tests = []
    for k, leaf in enumerate(call.leaves):
        tests.append(f"a[{k}].dtype.num == {leaf.value.dtype.num} and a[{k}].ndim == {leaf.value.ndim}")
        signs = ("==" if extent == 1 else "!=" for extent in leaf.value.shape)
        tests += [f"a[{k}].shape[{axis}] {sign} 1" for axis, sign in enumerate(signs)]
        tests.append(f"a[{k}].dtype.isnative")
    return TreePath(tree, entry, compile_expression("a", " and ".join(tests), "key of a call"))
