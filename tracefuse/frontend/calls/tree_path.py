"""The fast path of a function that asks questions: from the arguments to the result, along a tree of known answers.

It serves calls on NumPy and CuPy arrays whose stages draw no random numbers and print nothing. Any other call follows
the tree in `QuestionTree.follow`; stages that ran before that showed run again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.input_texts import NOT_APPLICABLE, InputWriter, array_tests, is_native, tuple_text
from tracefuse.frontend.calls.question_tree import QuestionTree, TreeNode
from tracefuse.frontend.calls.stage_code import DECLINED, FINISHED, IN_FULL, RESULT, CallLeaves, Step, give_up, step_of
from tracefuse.frontend.calls.trace_entry import Entry
from tracefuse.frontend.calls.untraced_calls import RUNS_FUNCTION
from tracefuse.generated_code import compile_function
from tracefuse.runtime.argument_leaves import Leaf
from tracefuse.runtime.devices.shape_dtype import FOREIGN
from tracefuse.runtime.memory.buffer_facts import NO_BUFFER_USE, OutputBufferUse

Enter = Callable[[Sequence[Any], Mapping[str, Any], Any], "tuple[dict[Any, Any], CallLeaves] | None"]


class TreePath:
    """Leads calls of one signature and one trace key along a tree.

    entry: of a result, for the cache of traces, or None. enter: returns the values of a call by number and its
    arguments, or None for a call with another key. may_run_function: see `CallArguments`.
    """

    plans_alone = first = None
    use = NO_BUFFER_USE

    def __init__(self, tree: QuestionTree, entry: Entry | None, enter: Enter, may_run_function: bool) -> None:
        self.tree, self.entry, self._enter, self._may_run_function = tree, entry, enter, may_run_function

    @property
    def has_conditions(self) -> bool:
        """Whether Python may raise another exception than the trace does."""
        return self.entry is not None and bool(self.entry.trace.conditions)

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any], bound: Any, out: Any) -> Any:
        """Returns the result of a call, NOT_APPLICABLE or RUNS_FUNCTION."""
        entered = self._enter(args, kwargs, bound)
        if entered is None:
            return NOT_APPLICABLE
        values, call = entered
        level: Any = self.tree.roots
        while True:
            for node in level:
                level = (node.step or _add_step(node))(values, call)
                if level is not DECLINED:
                    break
            else:
                return RUNS_FUNCTION if self._may_run_function and self.tree.is_closed else NOT_APPLICABLE
            if level is FINISHED:
                self.tree.hits += 1
                return values[RESULT]
            if level is IN_FULL:
                return NOT_APPLICABLE


def _add_step(node: TreeNode) -> Step:
    compiled = node.compiled  # another thread may drop it
    if compiled is None:
        return give_up
    node.step = step_of(node, compiled)
    return node.step  # type: ignore[no-any-return]


def tree_path(tree: QuestionTree, entry: Entry | None, call: CallArguments) -> TreePath | None:
    """Returns the fast path of calls like this one; None if they have to be flattened in full."""
    is_native_call = tree.kind not in FOREIGN and all(is_native(leaf, tree.kind) for leaf in call.leaves)
    if not is_native_call:
        return None
    writer = _EntryWriter(entry, NO_BUFFER_USE)
    return TreePath(tree, entry, writer.function(call), call.may_run_function)


class _EntryWriter(InputWriter):
    """Writes the function that tests the key of a call and returns its values by number."""

    def __init__(self, entry: Entry | None, use: OutputBufferUse) -> None:
        super().__init__(entry, use)
        self.otherwise = "None"

    def function(self, call: CallArguments) -> Enter:
        leaves = self._arguments(call)
        values: list[str] = []
        for variable, leaf in zip(leaves, call.leaves, strict=True):
            if leaf.is_static:
                continue
            if leaf.is_array:
                self._unless(" and ".join(array_tests(variable, leaf.value, self._name)))
            elif leaf.weak is not None:
                self._unless(self._number_test(variable, leaf))
            values.append(f"{len(values)}: {self._numbers.get(variable, variable)}")
        arguments = f"(args, kwargs, bound, {tuple_text(leaves)})"
        body = [*self.lines, f"return {{{', '.join(values)}}}, {arguments}"]
        text = "\n".join(["def enter(args, kwargs, bound):", *(f"    {line}" for line in body), ""])
        return compile_function(text, "enter", self.names, "key of a call")  # type: ignore[no-any-return]

    def _number_test(self, variable: str, leaf: Leaf) -> str:
        test = f"type({variable}) is {self._name('t', type(leaf.value))}"
        return test if type(leaf.value) is not int else f"{test} and {-(2**63)} <= {variable} < {2**63}"
