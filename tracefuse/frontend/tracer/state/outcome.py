"""The outcome of a trace: where each leaf of the result and of the changed state comes from at every call.

A traced value becomes one output for all its places. An overlay becomes its original. A new
container or instance is created at each call; it keeps its identity between the result and the state.

Must not know: calls.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.tracer.array_ops import traced_ops
from tracefuse.frontend.tracer.array_ops.masked_elements import MaskedElements
from tracefuse.frontend.tracer.captured.captures import ArgumentTwin
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.state.container_overlays import OVERLAY_BASES
from tracefuse.frontend.tracer.state.container_records import CONTAINERS
from tracefuse.frontend.tracer.state.function_clones import EMPTY, contents_of
from tracefuse.frontend.tracer.state.object_layout import ABSENT, native_base, native_dict, slot_contents, slots_of
from tracefuse.frontend.tracer.state.overlays import Overlays
from tracefuse.frontend.tracer.state.scope_views import GlobalsView, is_created
from tracefuse.frontend.tracer.values.later_texts import split_at_marks
from tracefuse.frontend.tracer.values.listed_rows import ListedRows
from tracefuse.frontend.tracer.values.result_leaves import (
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
)
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, plain_key
from tracefuse.frontend.tracer.values.traced import ComputedObject, ObjectOfProgram, Traced

_TYPES = frozenset("?bBhHiIlLqQefdFD")


def _is_supported(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array of NumPy that the trace made can be recorded."""
    return type(array) is np.ndarray and array.dtype.char in _TYPES and array.dtype.isnative


def _require_constant(value: Any, path: str) -> None:
    """Raises UnsupportedError for an object that stands for a computed value, which no later call has."""
    if type(value).__module__.startswith("jax") and type(value).__name__.endswith("Tracer"):
        raise UnsupportedError(
            f"{path} is assigned an array that a function of jax.numpy computes",
            hint="return the array, and assign it after the call", where=source.user_line(),
        )  # fmt: skip
    if hasattr(type(value), "refuse_as_result"):
        value.refuse_as_result(path)


def _is_range_of_sizes(value: Any) -> bool:
    return getattr(type(value), "python_type", None) is range


def _entries_of(value: Any) -> tuple[Any, Any, Any]:
    return value.start, value.stop, value.step


class Outcome:
    """The leaves of one trace. arguments: the leaves of the call as the function received them."""

    def __init__(self, recorder: Recorder, overlays: Overlays, arguments: Sequence[Any]) -> None:
        self.recorder, self._overlays = recorder, overlays
        self._arguments = {
            id(value): k
            for k, value in reversed(list(enumerate(arguments)))
            if isinstance(value, (Traced, SymbolicSize, ArgumentTwin))
        }
        self.new_objects: list[NewObject] = []
        self._new: dict[int, tuple[int, Any]] = {}
        self._outputs: dict[int, tuple[int, Any]] = {}
        self._waiting: list[tuple[NewObject, Any, str]] = []

    # -- leaves -------------------------------------------------------------------------------------------------------

    def result_leaf(self, value: Any) -> ResultLeaf:
        """Records a leaf of the result."""
        return self._leaf(value, "the result", is_state=False)

    def state_leaf(self, value: Any, path: str) -> ResultLeaf:
        """Records a value that the function stored at `path`."""
        return self._leaf(value, path, is_state=True)

    def _leaf(self, value: Any, path: str, is_state: bool) -> ResultLeaf:
        leaf = self._single(value, path, is_state)
        while self._waiting:
            self._fill(*self._waiting.pop())
        return leaf

    def _single(self, value: Any, path: str, is_state: bool) -> ResultLeaf:
        if id(value) in self._arguments:
            return ArgumentLeaf(self._arguments[id(value)])
        if isinstance(value, SymbolicSize):
            extent = self.recorder.simplify(value.extent)
            self.recorder.counters.occur_in(extent)  # raises for a counter of a recorded loop
            return ConstantLeaf(extent) if isinstance(extent, int) else SizeLeaf(extent)
        if isinstance(value, MaskedElements):
            value = value.elements()
        if isinstance(value, str):
            return self._text(value, path)
        if isinstance(value, Traced):
            return self._traced(value, is_state)
        if isinstance(value, ComputedObject):
            message = f"{path} is a {value.__class__.__name__}, which is created between two stages of each call"
            hint = "return the results of its methods, or create it outside the fused function"
            raise UnsupportedError(message, hint=hint, where=source.user_line())
        known = self._overlays.original(value)
        if known is not None:
            original, place = known
            is_constant = isinstance(original, (type, types.FunctionType, types.ModuleType))
            return ConstantLeaf(original) if is_constant else PlaceLeaf(place)
        if isinstance(value, ObjectOfProgram):
            return ConstantLeaf(value.original)
        if is_created(value):
            return self._new_function(value, value.__globals__, path)
        if self._is_new(value):
            return self._new_object(value, path)
        if isinstance(value, ListedRows):
            return self._new_list(value, path)
        if type(value) is functools.partial and self._is_part((value.func, *value.args, *value.keywords.values())):
            return self._new_partial(value, path)
        if (type(value) is slice and self._is_part(value)) or _is_range_of_sizes(value):
            return self._new_range(value, path)
        if isinstance(value, np.ndarray) and (is_state or (_is_supported(value) and self.recorder.device is None)):
            # Each call stores or returns an array of its own.
            return self._traced(traced_ops.copy(self.recorder.capture(value)), is_state)
        _require_constant(value, path)
        return ConstantLeaf(value)

    def _text(self, value: str, path: str) -> ResultLeaf:
        """Returns a text, which may have computed numbers in it."""
        text = split_at_marks(value, self.recorder.texts)
        if text is None:
            return ConstantLeaf(value)
        parts = tuple(self._single(part, path, True) for part in text.values)
        return TextLeaf(text.texts, text.specifications, parts)

    def _new_list(self, value: ListedRows, path: str) -> ResultLeaf:
        """Returns a list that each call makes of the rows of arrays."""
        known = self._new.get(id(value))
        if known is None:
            entries = [self._single(entry, path, True) for entry in value.values]
            known = self._new[id(value)] = (len(self.new_objects), value)
            self.new_objects.append(NewObject(value.cls, ListedRows, entries, arguments=(value.parts,)))
        return NewLeaf(known[0])

    def _new_range(self, value: Any, path: str) -> ResultLeaf:
        """Returns a slice, or a range of sizes, that each call makes."""
        entries = [self._single(entry, path, True) for entry in _entries_of(value)]
        base = range if _is_range_of_sizes(value) else slice
        self.new_objects.append(NewObject(base, base, entries))
        return NewLeaf(len(self.new_objects) - 1)

    def _traced(self, traced: Traced, is_state: bool) -> ResultLeaf:
        recorder = self.recorder
        capture = recorder.capture_of(traced)
        if capture is not None and capture.place is not None:
            return PlaceLeaf(capture.place)
        recorder.resolve(traced)
        known = self._outputs.get(id(traced))
        leaf = PythonLeaf if traced.is_python else ScalarLeaf if is_state and traced.is_immutable else OutputLeaf
        if known is not None:
            return leaf(known[0])
        if traced.on_host and traced.weak is not None and traced.read is not None:
            return NumberLeaf(traced.read)
        tensor = traced_ops.as_tensor(traced) if traced.on_host else traced
        builder = recorder.builder
        is_fresh = tensor.number in recorder.fresh_inputs and tensor.number not in builder.outputs
        if (tensor.number in builder.inputs and not is_fresh) or tensor.number in builder.outputs:
            # A result shares no memory with an argument or another result.
            tensor = recorder.movement("permute", [tensor], dims=tuple(range(len(tensor.extents))))
        builder.output(tensor.number)
        position = len(builder.outputs) - 1
        self._outputs[id(traced)] = (position, traced)
        return leaf(position)

    # -- new objects --------------------------------------------------------------------------------------------------

    def _is_new(self, value: Any) -> bool:
        """Whether each call creates an object of its own: a container, or an instance of a class of the user."""
        cls = type(value)
        if cls in OVERLAY_BASES or cls in CONTAINERS:
            return True
        if isinstance(value, tuple):
            return any(self._is_part(entry) for entry in value)
        users = self._overlays.objects.users_class(cls)
        return users is not cls or (self._overlays.objects.has_shadow(cls) and self._holds_parts(value))

    def _is_part(self, value: Any) -> bool:
        return (
            isinstance(value, (Traced, SymbolicSize, MaskedElements, ListedRows))
            or self._overlays.original(value) is not None
            or self._is_new(value)
            or is_created(value)
            or type(value) is functools.partial
            or (type(value) is slice and any(map(self._is_part, _entries_of(value))))
            or _is_range_of_sizes(value)
        )

    def _holds_parts(self, value: Any) -> bool:
        return any(self._is_part(part) for part in native_dict(value).values())

    def _new_object(self, value: Any, path: str) -> NewLeaf:
        known = self._new.get(id(value))
        if known is not None:
            return NewLeaf(known[0])
        cls = self._overlays.objects.users_class(type(value))
        base = tuple if isinstance(value, tuple) else native_base(cls) or object
        new = NewObject(OVERLAY_BASES.get(cls, cls), base)
        position = len(self.new_objects)
        self._new[id(value)] = (position, value)
        if base is tuple:  # a tuple is created with its entries
            new.entries = [self._single(entry, f"{path}[{k}]", True) for k, entry in enumerate(value)]
            position = len(self.new_objects)
            self._new[id(value)] = (position, value)
        else:
            self._waiting.append((new, value, path))
        self.new_objects.append(new)
        return NewLeaf(position)

    def _new_partial(self, value: functools.partial[Any], path: str) -> NewLeaf:
        """Records a partial function of traced values, which each call creates."""
        known = self._new.get(id(value))
        if known is None:
            entries = [self._single(entry, path, True) for entry in (value.func, *value.args)]
            items = [(name, self._single(entry, path, True)) for name, entry in value.keywords.items()]
            known = self._new[id(value)] = (len(self.new_objects), value)
            self.new_objects.append(NewObject(functools.partial, functools.partial, entries, items))
        return NewLeaf(known[0])

    def _new_function(self, value: types.FunctionType, view: GlobalsView, path: str) -> NewLeaf:
        """Records a function that the clone created: each call creates one, over the globals of the module."""
        known = self._new.get(id(value))
        if known is not None:
            return NewLeaf(known[0])
        cells = [self._cell(cell, path) for cell in value.__closure__ or ()]
        arguments = (self._overlays.functions.code_of(value), view.table, value.__name__)
        new = NewObject(types.FunctionType, types.FunctionType, cells, arguments=arguments)
        self._new[id(value)] = (len(self.new_objects), value)
        self.new_objects.append(new)
        self._waiting.append((new, value, path))
        return NewLeaf(len(self.new_objects) - 1)

    def _cell(self, cell: types.CellType, path: str) -> ResultLeaf:
        """Records a cell of a function that the clone created."""
        original = self._overlays.functions.original_cell(cell)
        if original is not None:
            return ConstantLeaf(original)
        known = self._new.get(id(cell))
        if known is None:
            known = self._new[id(cell)] = (len(self.new_objects), cell)
            self.new_objects.append(NewObject(types.CellType, types.CellType))
            self._waiting.append((self.new_objects[-1], cell, path))
        return NewLeaf(known[0])

    def _fill_function(self, new: NewObject, value: types.FunctionType, path: str) -> None:
        parts = {
            "__defaults__": value.__defaults__, "__kwdefaults__": value.__kwdefaults__, **vars(value),
            **{name: getattr(value, name) for name in ("__qualname__", "__doc__", "__module__")},
        }  # fmt: skip
        new.attributes = [(name, self._single(part, f"{path}.{name}", True)) for name, part in parts.items()]

    def _fill(self, new: NewObject, value: Any, path: str) -> None:
        """Records the parts of a new object."""
        if new.base is types.CellType:
            contents = contents_of(value)
            new.entries = [] if contents is EMPTY else [self._single(contents, path, True)]
            return
        if new.base is types.FunctionType:
            self._fill_function(new, value, path)
            return
        family = CONTAINERS.get(new.base)
        if family is list:
            entries = list(new.base.__iter__(value))  # type: ignore[attr-defined]
            new.entries = [self._single(entry, f"{path}[{k}]", True) for k, entry in enumerate(entries)]
        elif family is set:
            new.entries = [self._single(entry, path, True) for entry in set.__iter__(value)]
        elif family is dict:
            new.items = [(plain_key(k), self._single(v, f"{path}[{k!r}]", True)) for k, v in dict.items(value)]
        if hasattr(value, "maxlen"):
            new.arguments = (value.maxlen,)
        if hasattr(value, "default_factory"):
            known = self._overlays.original(value.default_factory)
            new.arguments = (known[0] if known is not None else value.default_factory,)
        attributes = dict(native_dict(value))
        for name, slot in slots_of(type(value)):
            contents = slot_contents(value, slot)
            if contents is not ABSENT:
                attributes[name] = contents
        new.attributes = [(name, self._single(part, f"{path}.{name}", True)) for name, part in attributes.items()]

    def is_of_caller(self, value: Any) -> bool:
        """Whether a part of a result is a container or an instance that exists outside of the call."""
        known = self._overlays.original(value)
        return known is not None and not isinstance(known[0], tuple)

    def is_shared(self, result: Any, changes: Iterable[Any]) -> bool:
        """Whether a result shares objects that each call creates with values of the state, or with its functions."""
        in_result = self._objects_in(result)
        stored = {identity for value in changes for identity in self._objects_in(value)}
        return not stored.isdisjoint(in_result) or any(map(is_created, in_result.values()))

    def holds_twice(self, result: Any) -> bool:
        """Whether a result has one new list or dict at two places, of which a pytree would make two."""
        seen: set[int] = set()
        waiting = [result]
        while waiting:
            current = waiting.pop()
            is_rows = isinstance(current, ListedRows)
            if isinstance(current, Traced) or not (is_rows or self._is_new(current)):
                continue
            if is_rows or isinstance(current, (list, dict)):
                if id(current) in seen:
                    return True
                seen.add(id(current))
            if isinstance(current, dict):
                waiting += dict.values(current)
            elif isinstance(current, (list, tuple)):
                waiting += list.__iter__(current) if isinstance(current, list) else tuple(current)
        return False

    def has_traced_keys(self, result: Any) -> bool:
        """Whether a dict in a result has keys that are numbers of the call, which each call's dict has in their place.

        (A pytree would keep the keys of the trace.)
        """
        dicts = (dictionary for dictionary in self._objects_in(result).values() if isinstance(dictionary, dict))
        return any(plain_key(key) is not key for dictionary in dicts for key in dict.keys(dictionary))

    def _objects_in(self, value: Any) -> dict[int, Any]:
        """The new objects in a tree of tuples, lists, dicts and functions, by their ids."""
        ids: dict[int, Any] = {}
        waiting = [value]
        while waiting:
            current = waiting.pop()
            if id(current) in ids or isinstance(current, Traced) or not (is_created(current) or self._is_new(current)):
                continue
            ids[id(current)] = current
            if isinstance(current, types.FunctionType):
                waiting += map(contents_of, current.__closure__ or ())
            if isinstance(current, dict):
                waiting += dict.values(current)
            elif isinstance(current, (list, tuple)):
                waiting += list.__iter__(current) if isinstance(current, list) else tuple(current)
            waiting += native_dict(current).values()
        return ids
