"""A plan written as one Python function: what every call pays for.

The function takes the arguments, reads their extents once, tests everything that the plan depends on (types, layouts,
facts about sizes) and returns None where something differs; else it allocates, launches and returns the outputs. Values
are local variables: t3 for value 3, e1 for extent -1. It does what `segments.Runner` does with the same program.

Knows: programs, the texts that a backend gives. Must not know: how a plan is chosen or built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from segments import Alias, Allocate, Copy, Launch, Release
from tracefuse.extents import Extent, Symbol, python_text
from tracefuse.guards import Guard
from tracefuse.ir import Fusion, Requirement
from tracefuse.layouts import STRIDE_NAME, Strided, strided
from tracefuse.plan import CompiledSegment, Plan
from tracefuse.targets import Backend

Call: TypeAlias = Callable[[Sequence[Any]], "list[Any] | None"]
"""The outputs, or None where the plan does not fit the arguments; then nothing has run."""

_PYTHON_TYPES = {"bool": "bool", "int": "int", "uint": "int", "float": "float", "complex": "complex"}


def compile_call(
    plan: Plan, backend: Backend, facts: Sequence[Guard], scalars: Callable[[Sequence[Any], Mapping[int, int]], Any]
) -> tuple[Call, str]:
    """(the function, its text).

    facts: under which the fusion was recorded, beside the plan's own. scalars: the computed host scalars, in order,
    from the arguments and the extents.
    """
    writer = _Writer(plan, backend)
    text = writer.write(facts)
    names = {**writer.names, **backend.names(), "scalars": scalars, "layout_of": _layout_of, "min": min, "max": max}
    names["other_device"] = backend.on_device
    exec(compile(text, "<tracefuse call>", "exec"), names)
    return names["call"], text


def _layout_of(array: Any, aligned: Callable[[Any], bool]) -> Strided:
    return strided(array.shape, array.strides, array.dtype.itemsize, aligned(array))


def name_of(number: int) -> str:
    """The local variable of a value or an extent."""
    return f"t{number}" if number >= 0 else f"e{-number}"


class _Writer:
    def __init__(self, plan: Plan, backend: Backend) -> None:
        self.plan, self.backend = plan, backend
        self.fusion: Fusion = plan.segmentation.fusion
        self.names: dict[str, Any] = {"is_aligned": backend.is_aligned}

    def _name(self, prefix: str, value: Any) -> str:
        name = f"{prefix}{len(self.names)}"
        self.names[name] = value
        return name

    def _extent(self, extent: Extent) -> str:
        return python_text(extent, self._symbol)

    def _symbol(self, symbol: Symbol) -> str:
        if symbol.id is not None:
            return name_of(symbol.id)
        found = STRIDE_NAME.fullmatch(symbol.name)
        assert found is not None
        number, axis = map(int, found.groups())
        memory = next((given.memory for given in self.plan.given if given.value == number), number)
        return f"(t{memory}.strides[{axis}] // {self.fusion.values[number].dtype.itemsize})"

    def write(self, facts: Sequence[Guard]) -> str:
        inputs = (*self.fusion.inputs, *self.plan.buffers)
        lines = ["def call(a):"]
        if inputs:
            lines.append(f"    {', '.join(map(name_of, inputs))}, = a")
        lines += _unless(self._types())
        lines += self._shapes()
        lines += _unless([*self._sizes(facts), *self._layouts()])
        elsewhere = self.backend.elsewhere_text()
        if elsewhere is not None:
            lines += [f"    if {elsewhere}:", "        return other_device(call, a)"]
        lines += self._scalars()
        for instruction in self.plan.program.instructions:
            match instruction:
                case Allocate(value, spec):
                    lines.append(self._allocate(value, spec))
                case Alias(value, original):
                    lines.append(f"    {name_of(value)} = {name_of(original)}")
                case Copy(source, target):
                    lines.append(f"    copy({name_of(source)}, {name_of(target)})")
                case Launch():
                    lines.append(self._launch(instruction))
                case Release(value) if value not in inputs:
                    lines.append(f"    {name_of(value)} = None")
        outputs = [name_of(number) for number in self.plan.program.outputs]
        return "\n".join([*lines, f"    return [{', '.join(outputs)}]", ""])

    # -- conditions ---------------------------------------------------------------------------------------------------

    def _types(self) -> Iterable[str]:
        for number in self.fusion.inputs:
            value, name = self.fusion.values[number], name_of(number)
            if value.is_tensor:
                yield f"type({name}) is array_type"
                yield f"{name}.dtype == {self._name('d', value.dtype.numpy)}"
                yield f"{name}.ndim == {len(value.shape)}"
                here = self.backend.here_text(name)
                if here is not None:
                    yield here
            else:
                yield f"type({name}) is {_PYTHON_TYPES[value.dtype.kind]}"

    def _shapes(self) -> list[str]:
        lines = []
        ids = list(self.fusion.axis_ids())
        for number in self.fusion.tensor_inputs:
            own = [name_of(key) for key, owner, _ in ids if owner == number]
            if own:
                lines.append(f"    {', '.join(own)}, = {name_of(number)}.shape")
        return lines

    def _sizes(self, facts: Sequence[Guard]) -> Iterable[str]:
        for key, number, axis in self.fusion.axis_ids():
            extent = self.fusion.values[number].shape[axis]
            if isinstance(extent, int):
                yield f"{name_of(key)} == {extent}"
        for number in self.fusion.scalar_inputs:
            dtype = self.fusion.values[number].dtype
            if dtype.is_integer:
                limits = np.iinfo(dtype.name)
                yield f"{limits.min} <= {name_of(number)} <= {limits.max}"
        conditions: list[Guard | Requirement] = [*facts, *self.plan.segmentation.original.requirements]
        for one in (*conditions, *self.plan.guards):
            yield f"{self._extent(one.left)} {one.relation} {self._extent(one.right)}"

    def _layouts(self) -> Iterable[str]:
        for number, layout in zip(self.fusion.tensor_inputs, self.plan.layouts, strict=True):
            name = name_of(number)
            wide = number in self.plan.aligned
            if wide:
                yield self.backend.wide_text(name)
            if layout is None:
                yield self.backend.plain_text(name, wide)
            else:
                yield f"not ({self.backend.plain_text(name, wide)})"
                yield f"layout_of({name}, is_aligned) == {self._name('l', layout)}"

    # -- what runs ----------------------------------------------------------------------------------------------------

    def _scalars(self) -> list[str]:
        made = [n.outputs[0] for n in self.fusion.nodes if not self.fusion.values[n.outputs[0]].is_tensor]
        if not made:
            return []
        integers = [n for n in self.fusion.scalar_inputs if self.fusion.values[n].extent is not None]
        known = [key for key, _, _ in self.fusion.axis_ids()] + integers
        extents = ", ".join(f"{key}: {name_of(key)}" for key in known)
        return [f"    {', '.join(map(name_of, made))}, = scalars(a, {{{extents}}})"]

    def _allocate(self, value: int, spec: Any) -> str:
        shape = "".join(f"{self._extent(extent)}, " for extent in spec.extents)
        return f"    {name_of(value)} = empty(({shape}), {self._name('d', spec.dtype)})"

    def _launch(self, launch: Launch) -> str:
        segment = launch.label
        assert isinstance(segment, CompiledSegment)
        run = self._name("run", segment.run)
        inputs = "".join(f"{name_of(value)}, " for value in launch.inputs)
        outputs = "".join(f"{name_of(value)}, " for value in launch.outputs)
        if segment.lowered is None:
            return f"    {outputs or '()'} = {run}(({inputs}), ())"
        return f"    {run}(({inputs}), ({outputs}))"


def _unless(conditions: Iterable[str]) -> list[str]:
    """`return None` unless all hold; each condition once."""
    tests = list(dict.fromkeys(conditions))
    return [f"    if not ({' and '.join(tests)}):", "        return None"] if tests else []
