"""The text of results and of writes of the state in the generated code of a call.

Must not know: the fast path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracefuse import pytrees
from tracefuse.errors import InternalError
from tracefuse.frontend.recorded_trace import Trace
from tracefuse.frontend.tracer.captured.routes import Route
from tracefuse.frontend.tracer.state.container_records import CONTAINERS
from tracefuse.frontend.tracer.values.host_numbers import compiled
from tracefuse.frontend.tracer.values.later_texts import joined
from tracefuse.frontend.tracer.values.result_leaves import (
    COMPUTED,
    WRITES,
    ArgumentLeaf,
    ConstantLeaf,
    NewLeaf,
    NumberLeaf,
    OutputLeaf,
    PlaceLeaf,
    PythonLeaf,
    ResultLeaf,
    ScalarLeaf,
    SizeLeaf,
    TextLeaf,
)
from tracefuse.ir.extents import Symbol, python_text


class LeafTexts:
    """Texts for one trace; in them, `r` holds the outputs.

    name: adds a global of the generated code and returns its name. read: returns the variable of the object at a route,
    which is read before anything runs. leaves: variables of the leaves of the arguments. facts: texts of the extents
    and scalars, by id. output: returns the text of an output, by its position, as the caller receives it.
    """

    def __init__(
        self, trace: Trace, name: Callable[[str, Any], str], read: Callable[[Route], str], leaves: Sequence[str],
        facts: Mapping[int, str], output: Callable[[int], str] = "r[{}]".format,
    ) -> None:  # fmt: skip
        self._output = output
        self._trace, self._name, self._read, self._leaves, self._facts = trace, name, read, leaves, facts

    def are_possible(self) -> bool:
        """Whether every leaf has a text: no call creates objects other than containers of the result."""
        values = [*self._trace.results, *(leaf for write in self._trace.writes for leaf in (write.key, write.value))]
        return not any(isinstance(leaf, NewLeaf) for leaf in values)

    def result(self) -> str:
        """The expression of the result."""
        texts = [self._leaf(leaf) for leaf in self._trace.results]
        if not _is_of_plain_nodes(self._trace.structure):
            unflatten, structure = self._name("unflatten", pytrees.unflatten), self._name("s", self._trace.structure)
            return f"{unflatten}({structure}, [{', '.join(texts)}])"
        return self._built(pytrees.unflatten(self._trace.structure, range(len(texts))), texts)

    def writes(self) -> list[str]:
        """The statements that write the state back: values first, then the stores in their order."""
        values: list[str] = []
        stores: list[str] = []
        for write in self._trace.writes:
            function, text = WRITES[write.kind]
            if write.kind in ("entry", "computed entry") and type(write.target.value) in CONTAINERS:
                text = WRITES["plain entry"][1]  # no class of the user stores entries by a method of its own
            value = "None" if write.value is None else self._first(write.value, values)
            is_computed = write.kind in COMPUTED
            position = self._first(write.key, values) if is_computed else self._name("k", write.key)
            key = write.key if isinstance(write.key, str) and write.key.isidentifier() else ""
            if "{3}" in text and not key:
                text = "store({0}, {1}, {2})"
            target = self._read(write.target.route)
            stores.append(text.format(target, position, value, key))
            if text.startswith("store"):
                stores[-1] = stores[-1].replace("store", self._name("store", function), 1)
        return [*values, *stores]

    def _first(self, leaf: ResultLeaf, values: list[str]) -> str:
        """The expression of a leaf before any store; one that computes is a statement of its own."""
        value = self._leaf(leaf)
        if not isinstance(leaf, SizeLeaf | NumberLeaf | ScalarLeaf | PythonLeaf | TextLeaf):
            return value
        values.append(f"w{len(values)} = {value}")
        return f"w{len(values) - 1}"

    def _leaf(self, leaf: ResultLeaf) -> str:
        """The expression of a leaf."""
        match leaf:
            case OutputLeaf(position):
                return self._output(position)
            case ScalarLeaf(position):
                return f"{self._output(position)}[()]"
            case PythonLeaf(position):
                return f"r[{position}].item()"
            case ArgumentLeaf(position):
                return self._leaves[position]
            case ConstantLeaf(value):
                return self._name("s", value)
            case PlaceLeaf(place):
                return self._read(place.route)
            case SizeLeaf(extent):
                return python_text(extent, self._fact)
            case TextLeaf(texts, specifications, values):
                inner = ", ".join(map(self._leaf, values))
                constants = f"{self._name('s', texts)}, {self._name('s', specifications)}"
                return f"{self._name('joined', joined)}({constants}, [{inner}])"
            case NumberLeaf(read):
                function, facts = compiled(read)
                return f"{self._name('number', function)}({', '.join(self._facts[key] for key in facts)})"
        raise InternalError(f"a fast path cannot compute {leaf}")

    def _fact(self, symbol: Symbol) -> str:
        assert symbol.id is not None
        return self._facts[symbol.id]

    def _built(self, tree: Any, texts: Sequence[str]) -> str:
        """The expression of a pytree whose leaves are positions in `texts`."""
        if isinstance(tree, int):
            return texts[tree]
        if isinstance(tree, dict):
            items = (f"{self._name('k', key)}: {self._built(child, texts)}" for key, child in tree.items())
            return f"{{{', '.join(items)}}}"
        children = [self._built(child, texts) for child in tree]
        return (
            f"({''.join(f'{text}, ' for text in children)})" if isinstance(tree, tuple) else f"[{', '.join(children)}]"
        )


def _is_of_plain_nodes(node: Any) -> bool:
    """Whether every node of a pytree is a dict, a list or a tuple."""
    return node.is_leaf() or (node.type in (dict, list, tuple) and all(map(_is_of_plain_nodes, node.children())))
