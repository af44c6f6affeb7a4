"""How the results of a definition arise: from a kernel, in some order in memory, or from an argument.

A result with a stride order is a permuted output: its kernel writes the axes in the order of memory, and the call
returns a transposed view. A result that is an updated argument is the argument. A result that only views an input is
computed by the array library on the argument, without a kernel, where a definition asks for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.ir.fusion import Fusion, Node, Type, Value
from tracefuse.ir.op_kinds import Movement
from tracefuse.ir.reference import check_requirements, concrete_attributes, extent_values
from tracefuse.ops import REGISTRY
from tracefuse.runtime.devices import arrays
from tracefuse.runtime.memory.buffer_facts import returned

StrideOrder: TypeAlias = tuple[int, ...]
"""The rank of each axis by stride: 0 for the innermost axis."""

_VIEWING = ("broadcast", "permute", "reshape", "squeeze")
"""Movements that return views of contiguous arrays in every array library."""


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How one result arises.

    dims: for a permuted output, the axes from the outermost in memory. argument: the position of the argument that the
    result is, or views through `steps`; None if a kernel computes the result.
    """

    dims: tuple[int, ...] = ()
    argument: int | None = None
    steps: tuple[Node, ...] = ()

    def into(self, buffer: Any) -> Any:
        """Returns the view of a result's buffer that the kernel writes."""
        return _transposed(buffer, self.dims) if self.dims and buffer is not None else buffer

    def of(self, result: Any) -> Any:
        """Returns the result as the user sees it."""
        if not self.dims:
            return result
        return _transposed(result, sorted(range(len(self.dims)), key=self.dims.__getitem__))


@dataclass(frozen=True, eq=False)
class OutputForms:
    """The forms of all results. recorded: the definition's fusion. fusion: the one that computes the permuted outputs.

    forms: one for each output that `execute` returns, in order.
    """

    recorded: Fusion
    fusion: Fusion
    forms: tuple[OutputForm, ...]

    def run(
        self, compute: Callable[[Sequence[Any] | None], list[Any]], inputs: Sequence[Any], outputs: Sequence[Any] | None
    ) -> list[Any]:
        """Returns the results. compute: runs `fusion` into output buffers. outputs: a buffer or None for each result.

        A buffer for a result that is an argument, or views one, is left as it is.
        """
        padded = [None] * len(self.forms) if outputs is None else outputs
        pairs = [(form, buffer) for form, buffer in zip(self.forms, padded, strict=True) if form.argument is None]
        buffers = None if outputs is None else [form.into(buffer) for form, buffer in pairs]
        computed = compute(buffers) if self.fusion.outputs else []
        filled = (form.of(r) if b is None else b for (form, b), r in zip(pairs, computed, strict=True))
        return self._merged(filled, inputs)

    def of(self, computed: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
        """Returns the results, given those that `fusion` computed."""
        forms = (form for form in self.forms if form.argument is None)
        return self._merged((form.of(r) for form, r in zip(forms, computed, strict=True)), inputs)

    def _merged(self, computed: Any, inputs: Sequence[Any]) -> list[Any]:
        remaining = iter(computed)
        return [next(remaining) if form.argument is None else self._view(form, inputs) for form in self.forms]

    def _view(self, form: OutputForm, inputs: Sequence[Any]) -> Any:
        assert form.argument is not None
        argument = inputs[form.argument]
        if not form.steps:
            return argument
        extents = extent_values(self.recorded, inputs)
        check_requirements(self.recorded, extents)
        kind = arrays.kind_of(argument) or "numpy"
        array = arrays.entering(kind)(argument)
        for node in form.steps:
            assert isinstance(node.op, Movement)
            array = node.op.numpy(array, **concrete_attributes(node, extents))
        return arrays.leaving(kind)(array)


def forms_of(fusion: Fusion, orders: Mapping[int, StrideOrder], *, views: bool) -> OutputForms | None:
    """Returns the forms of the results, or None if kernels compute all of them as they are.

    orders: the stride orders of outputs, by number. views: whether a result that only views an input shares its memory.
    """
    updated = set(fusion.aliases.values())
    producers = fusion.producers
    forms = []
    for number in returned(fusion):
        if number in updated:
            forms.append(OutputForm(argument=fusion.inputs.index(number)))
        elif number in orders:
            forms.append(OutputForm(dims=_outer_first(orders[number])))
        else:
            forms.append(_viewed(fusion, producers, number, updated) if views else OutputForm())
    if all(form == OutputForm() for form in forms):
        return None
    fresh = {n: form for n, form in zip(returned(fusion), forms, strict=True) if form.argument is None}
    return OutputForms(fusion, _permuted(fusion, fresh), tuple(forms))


def _outer_first(order: StrideOrder) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=lambda axis: -order[axis]))


def _viewed(fusion: Fusion, producers: Mapping[int, Node], number: int, updated: set[int]) -> OutputForm:
    """Returns the form of a view of an input if the value is one, else of a result that a kernel computes."""
    steps: list[Node] = []
    viewing = [REGISTRY[name] for name in _VIEWING]
    dtype = fusion.values[number].dtype
    while number in producers:
        node = producers[number]
        if node.op not in viewing or node.compute is not dtype:
            return OutputForm()
        steps.insert(0, node)
        (number,) = node.inputs
    value = fusion.values[number]
    is_contiguous = value.layout is not None and not value.layout.stride_order and False not in value.layout.contiguity
    if not steps or number in updated or value.dtype is not dtype or not is_contiguous:
        return OutputForm()
    return OutputForm(argument=fusion.inputs.index(number), steps=tuple(steps))


def _permuted(fusion: Fusion, forms: Mapping[int, OutputForm]) -> Fusion:
    """Returns the fusion whose outputs are the updates of inputs and the computed results, permuted where asked for."""
    values, nodes, outputs = dict(fusion.values), list(fusion.nodes), []
    fresh = itertools.count(max(values, default=-1) + 1)
    for number in fusion.outputs:
        if number not in fusion.aliases and number not in forms:
            continue
        dims = forms[number].dims if number in forms else ()
        if dims:
            old, permuted = values[number], next(fresh)
            shape = tuple(old.shape[axis] for axis in dims)
            values[permuted] = Value(permuted, Type(old.dtype, shape), where=old.where, origin=number)
            nodes.append(Node(REGISTRY["permute"], (number,), {"dims": dims}, old.dtype, (permuted,), old.where))
            number = permuted
        outputs.append(number)
    return replace(fusion, values=values, nodes=tuple(nodes), outputs=tuple(outputs))


def _transposed(array: Any, dims: Sequence[int]) -> Any:
    permute = getattr(array, "permute", None)  # of a torch tensor, whose transpose takes two axes
    return array.transpose(dims) if permute is None else permute(*dims)
