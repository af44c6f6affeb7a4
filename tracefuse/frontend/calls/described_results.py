"""The shapes and dtypes of a result before the call runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.frontend.calls.call import CallArguments
from tracefuse.frontend.calls.trace_entry import Entry
from tracefuse.frontend.tracer.values.result_leaves import (
    ArgumentLeaf,
    ConstantLeaf,
    NumberLeaf,
    OutputLeaf,
    PlaceLeaf,
    PythonLeaf,
    ResultLeaf,
    ScalarLeaf,
    SizeLeaf,
    TextLeaf,
)
from tracefuse.ir.extents import evaluate
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.devices.shape_dtype import ShapeDtype
from tracefuse.runtime.memory.buffer_facts import returned


def result_types(entry: Entry, arguments: Sequence[Any], call: CallArguments) -> list[Any]:
    """Returns each leaf of the result of a call, arrays as ShapeDtypes; of an object that the call creates, its class.

    arguments: of the fusion, arrays or ShapeDtypes.
    """
    facts = entry.trace.facts(arguments)
    return [_type_of(entry, leaf, facts, call) for leaf in entry.trace.results]


def _type_of(entry: Entry, leaf: ResultLeaf, facts: dict[int, Any], call: CallArguments) -> Any:
    trace = entry.trace
    match leaf:
        case OutputLeaf(position) | ScalarLeaf(position) | PythonLeaf(position):
            value = trace.fusion.values[returned(trace.fusion)[position]]
            shape = tuple(evaluate(extent, facts) for extent in value.shape)
            return ShapeDtype(shape, arrays.dtype_leaving(entry.kind, value.dtype))
        case ArgumentLeaf(position):
            return _described(call.leaves[position].value)
        case ConstantLeaf(value):
            return value
        case SizeLeaf(extent):
            return evaluate(extent, facts)
        case NumberLeaf(read):
            return read(facts)
        case TextLeaf():
            return str
        case PlaceLeaf(place):
            return _described(place.read(call.roots))
    return trace.new_objects[leaf.position].cls


def _described(value: Any) -> Any:
    if arrays.kind_of(value) in (None, "spec"):
        return value
    return ShapeDtype(tuple(value.shape), arrays.dtype_of_array(value).numpy)
