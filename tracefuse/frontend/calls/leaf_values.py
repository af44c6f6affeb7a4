"""The values of the leaves of a result and of the changed state, in one call.

Must not know: traces, plans.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import CellType, FunctionType
from typing import Any

from tracefuse.errors import InternalError
from tracefuse.frontend.tracer.captured.routes import CallRoots
from tracefuse.frontend.tracer.values.later_texts import joined
from tracefuse.frontend.tracer.values.listed_rows import ListedRows
from tracefuse.frontend.tracer.values.result_leaves import (
    COMPUTED,
    WRITES,
    ArgumentLeaf,
    ConstantLeaf,
    NewLeaf,
    NewObject,
    NumberLeaf,
    OutputLeaf,
    PlaceLeaf,
    PythonLeaf,
    ResultLeaf,
    ScalarLeaf,
    SizeLeaf,
    TextLeaf,
    Write,
)
from tracefuse.ir.extents import evaluate


class LeafValues:
    """Values of leaves in one call.

    facts: extents and scalars of the call, computed on demand. leaves: of the arguments. outputs: of the fusion.
    """

    def __init__(
        self, new_objects: Sequence[NewObject], facts: Callable[[], Mapping[int, Any]], leaves: Sequence[Any],
        outputs: Sequence[Any], roots: CallRoots,
    ) -> None:  # fmt: skip
        self._new_objects, self._compute_facts, self._facts = new_objects, facts, None
        self._leaves, self._outputs, self._roots = leaves, outputs, roots
        self._created: list[Any] | None = None

    _facts: Mapping[int, Any] | None

    def of(self, leaf: ResultLeaf) -> Any:
        """The value of a leaf."""
        match leaf:
            case OutputLeaf(position):
                return self._outputs[position]
            case ScalarLeaf(position):
                return self._outputs[position][()]
            case PythonLeaf(position):
                return self._outputs[position].item()
            case ArgumentLeaf(position):
                return self._leaves[position]
            case ConstantLeaf(value):
                return value
            case SizeLeaf(extent):
                return evaluate(extent, self.facts)
            case NumberLeaf(read):
                return read(self.facts)
            case PlaceLeaf(place):
                return place.read(self._roots)
            case TextLeaf(texts, specifications, values):
                return joined(texts, specifications, [self.of(value) for value in values])
            case NewLeaf(position):
                return self.created[position]
        raise InternalError(f"no value of {leaf}")

    @property
    def facts(self) -> Mapping[int, Any]:
        if self._facts is None:
            self._facts = self._compute_facts()
        return self._facts

    @property
    def created(self) -> list[Any]:
        """The new objects of the call, complete."""
        if self._created is None:
            self._created = []
            for new in self._new_objects:
                self._created.append(self._create(new))
            for new, value in zip(self._new_objects, self._created, strict=True):
                self._fill(new, value)
        return self._created

    def _create(self, new: NewObject) -> Any:
        base: Any = new.base
        if base is FunctionType:
            code, table, name = new.arguments
            return FunctionType(code, table, name, None, tuple([self.of(leaf) for leaf in new.entries]))
        if base is functools.partial:
            function, *arguments = (self.of(leaf) for leaf in new.entries)
            return functools.partial(function, *arguments, **{name: self.of(leaf) for name, leaf in new.items})
        if base is ListedRows:
            (parts,) = new.arguments
            return ListedRows(new.cls, parts, [self.of(leaf) for leaf in new.entries]).in_class()
        if base in (range, slice):
            return base(*[self.of(leaf) for leaf in new.entries])
        if base is tuple:
            return tuple.__new__(new.cls, [self.of(leaf) for leaf in new.entries])
        return base.__new__(new.cls) if not new.arguments or new.cls is not base else base(*_initial(new))

    def _fill(self, new: NewObject, value: Any) -> None:
        base: Any = new.base
        if base in (functools.partial, range, slice, ListedRows):  # complete
            return
        if new.base is CellType and new.entries:
            value.cell_contents = self.of(new.entries[0])
        elif new.base not in (tuple, FunctionType) and new.entries:
            (value.update if new.base is set else value.extend)([self.of(leaf) for leaf in new.entries])
        for key, leaf in new.items:
            base.__setitem__(value, key, self.of(leaf))
        for name, leaf in new.attributes:
            object.__setattr__(value, name, self.of(leaf))


def _initial(new: NewObject) -> tuple[Any, ...]:
    """The arguments that create an empty container: of a deque its length, of a defaultdict its factory."""
    return ((), *new.arguments) if hasattr(new.base, "maxlen") else new.arguments


def write_back(writes: Sequence[Write], values: LeafValues, roots: CallRoots) -> None:
    """Makes the writes of a call: every value and every object is read before the first write."""
    stores = []
    for write in writes:
        key = values.of(write.key) if write.kind in COMPUTED else write.key
        value = None if write.value is None else values.of(write.value)
        stores.append((WRITES[write.kind][0], write.target.read(roots), key, value))
    for store, target, key, value in stores:
        store(target, key, value)
