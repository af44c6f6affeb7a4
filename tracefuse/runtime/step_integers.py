"""The integers of a step: extents, positions and host scalars, as code of a driver and for some steps.

An integer that depends on the counter of a loop is an expression of the driver. All others are parameters. A driver is
built from sampled steps: the first and last values of each counter and some between.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from segments.lazy_dataclasses import dataclass, replace
from tracefuse.dtypes import int64
from tracefuse.dynamic.layouts import STRIDE_NAME
from tracefuse.ir.extents import Atom, Expression, Extent, Symbol, evaluate, substitute, symbols, terms_of
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.reference import evaluate_scalars, extent_values
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.kernel_ir import Variable
from tracefuse.runtime.driver_parameters import DriverParameters, NotCompiled, StepTensor, VaryingExtent, constant
from tracefuse.schedule.index_code import IndexCode


@dataclass(frozen=True, slots=True)
class Number:
    """A host scalar of a step.

    values: one that every sampled step has, or one for each. position: of the operand that it is. variable: of the
    driver, if it depends on a counter. largest: the largest value that it has in any step, if the samples may lack it;
    such a number is not negative.
    """

    values: tuple[Any, ...]
    position: int | None = None
    variable: Variable | None = None
    largest: int | None = None

    def at(self, sample: int) -> Any:
        """Returns its value in a sampled step."""
        return self.values[sample] if len(self.values) > 1 else self.values[0]

    def for_samples(self, parents: Sequence[int]) -> Number:
        """Returns the number in sampled steps of an inner loop. parents: the outer step of each."""
        return replace(self, values=tuple(map(self.at, parents))) if len(self.values) > 1 else self


Operand: TypeAlias = StepTensor | Number


def sample_of(operand: Operand, sample: int) -> Any:
    """Returns an operand in a sampled step; an array represents all arrays of its layout."""
    return operand.at(sample)


def varying_extents(fusion: Fusion, arguments: Sequence[Operand]) -> Iterator[tuple[int, StepTensor, VaryingExtent]]:
    """Yields the extents of arrays that differ between steps, with their ids and the arrays."""
    by_value = dict(zip(fusion.inputs, arguments, strict=True))
    for key, value, axis in fusion.axis_ids():
        operand = by_value[value]
        assert isinstance(operand, StepTensor)
        yield from ((key, operand, extent) for extent in operand.varying if extent.axis == axis)


def sizes_of_samples(fusion: Fusion, arguments: Sequence[Operand], count: int) -> list[dict[int, int]]:
    """Returns the extents and the integer inputs of a fusion in each sampled step."""
    first = extent_values(fusion, [sample_of(operand, 0) for operand in arguments])
    numbers = [
        (number, operand)
        for number, operand in zip(fusion.inputs, arguments, strict=True)
        if isinstance(operand, Number) and number in first
    ]
    extents = [(key, extent.values) for key, _, extent in varying_extents(fusion, arguments)]
    return [
        {**first, **{n: int(operand.at(k)) for n, operand in numbers}, **{key: values[k] for key, values in extents}}
        for k in range(count)
    ]


class StepIntegers:
    """The integers of a fusion whose inputs are `arguments`, in `count` sampled steps.

    key: distinguishes the integers of fusions. arrays: of the numbers that strides name.
    """

    def __init__(
        self, parameters: DriverParameters, fusion: Fusion, arguments: Sequence[Operand], count: int, key: Hashable
    ) -> None:
        self.parameters, self.fusion, self.key = parameters, fusion, key
        self.sizes = sizes_of_samples(fusion, arguments, count)
        self.arrays: dict[int, Any] = {}
        self.varying: dict[int, Variable] = {}
        self.largest: dict[int, int] = {}
        for number, operand in zip(fusion.inputs, arguments, strict=True):
            if isinstance(operand, StepTensor):
                self.arrays[number] = operand.array
            elif operand.variable is not None:
                self.varying[number] = operand.variable
                if operand.largest is not None:
                    self.largest[number] = operand.largest
        for id, tensor, varying in varying_extents(fusion, arguments):
            self.varying[id], self.largest[id] = varying.variable, tensor.array.shape[varying.axis]

    def known(self, extent: Extent) -> Extent:
        """Returns an extent with the strides of the arrays, in the symbols of the fusion's inputs."""
        return self.with_strides(self.fusion.canonical(extent))

    def with_strides(self, extent: Extent) -> Extent:
        """Returns an extent with the strides of the arrays, without what the fusion knows of its symbols."""
        strides = {}
        for stride in symbols(extent):
            match = STRIDE_NAME.fullmatch(stride.name)
            if stride.id is None and match is not None:
                number, axis = map(int, match.groups())
                strides[stride] = self.arrays[number].strides[axis] // self.arrays[number].itemsize
        return substitute(extent, strides)

    def varies(self, *extents: Extent) -> bool:
        """Whether any of some extents depends on a counter."""
        return any(self._depends(self.known(extent)) for extent in extents)

    def _depends(self, extent: Extent) -> bool:
        return any(atom.id in self.varying for atom in symbols(extent))

    def values(self, extent: Extent) -> list[int]:
        """Returns an extent in each sampled step."""
        known = self.known(extent)
        return [evaluate(known, sizes) for sizes in self.sizes]

    def condition(
        self, left: Extent, relation: str, right: Extent
    ) -> tuple[ir.Expression, list[tuple[int, int]]] | None:  # fmt: skip
        """Returns a comparison as code, and its sides in each sampled step; None if all steps agree on it.

        relation: a primitive.
        """
        left_side, right_side = self.with_strides(left), self.with_strides(right)
        if not self._depends(left_side) and not self._depends(right_side):
            return None
        atoms = [atom.id for atom in {*symbols(left_side), *symbols(right_side)} if atom.id is not None]
        known: dict[tuple[int, ...], tuple[int, int]] = {}
        sides = []
        for sizes in self.sizes:
            values = tuple(sizes[atom] for atom in atoms)
            if values not in known:
                known[values] = evaluate(left_side, sizes), evaluate(right_side, sizes)
            sides.append(known[values])
        return ir.call(relation, self._code(left_side), self._code(right_side)), sides

    def code(self, extent: Extent) -> ir.Expression:
        """Returns an extent as an expression of the driver."""
        return self._code(self.known(extent))

    def _code(self, extent: Extent) -> ir.Expression:
        if isinstance(extent, int):
            return constant(extent)
        if not self._depends(extent):
            return self.parameters.integer(evaluate(extent, self.sizes[0]), (self.key, extent))
        index = IndexCode(int64)
        for atom in symbols(extent):
            index.bind(atom, self._variable(atom).name)
        return index.code(extent)

    def _variable(self, size: Symbol) -> Variable:
        assert size.id is not None
        if size.id in self.varying:
            return self.varying[size.id]
        variable = self.parameters.integer(self.sizes[0][size.id], (self.key, size))
        assert isinstance(variable, Variable)
        return variable

    def most(self, extent: Extent) -> int:
        """Returns an upper bound of an extent over all steps, which the sampled ones include the ends of."""
        known = self.known(extent)
        if isinstance(known, int) or not self._depends(known):
            return evaluate(known, self.sizes[0])
        self.parameters.fits_bounds = True
        return max(self.values(known)) if self._is_linear(known) else self._bounds(known)[1]

    def may_be_larger(self, extent: Extent) -> bool:
        """Whether an extent may be larger in a step than in all sampled ones."""
        return any(atom.id in self.largest for atom in symbols(self.known(extent)))

    def _is_linear(self, extent: Expression) -> bool:
        """Whether an extent is linear in counters and depends on nothing else, so that it is largest at their ends."""
        for monomial, _ in extent.terms:
            differing = [atom for atom in monomial if self._depends(Expression((((atom,), 1),)))]
            if len(differing) > 1 or any(not isinstance(a, Symbol) or a.id in self.largest for a in differing):
                return False
        return True

    def _bounds(self, extent: Extent) -> tuple[int, int]:
        """Returns a lower and an upper bound of an extent over all steps, by interval arithmetic."""
        least = most = 0
        for monomial, coefficient in terms_of(extent):
            low = high = coefficient
            for ends in map(self._bounds_of_atom, monomial):
                products = [end * other for end in (low, high) for other in ends]
                low, high = min(products), max(products)
            least, most = least + low, most + high
        return least, most

    def _bounds_of_atom(self, atom: Atom) -> tuple[int, int]:
        if isinstance(atom, Symbol):
            assert atom.id is not None
            values = [sizes[atom.id] for sizes in self.sizes]
            return (0, self.largest[atom.id]) if atom.id in self.largest else (min(values), max(values))
        (low, high), (right_low, right_high) = self._bounds(atom.left), self._bounds(atom.right)
        if atom.operation in ("min", "max"):
            choose = min if atom.operation == "min" else max
            return choose(low, right_low), choose(high, right_high)
        if right_low <= 0:
            raise NotCompiled(f"the extent {atom} of a value has no bound")
        if atom.operation == "%":
            return 0, right_high - 1
        quotients = [end // divisor for end in (low, high) for divisor in (right_low, right_high)]
        return min(quotients), max(quotients)

    def computed_scalars(self, arguments: Mapping[int, Operand]) -> dict[int, Number]:
        """Returns the host scalars that the fusion computes. arguments: its inputs."""
        values = self.fusion.values
        nodes = [node for node in self.fusion.nodes if not values[node.outputs[0]].is_tensor]
        if not nodes:
            return {}
        known = {number: sample_of(arguments[number], 0) for number in self.fusion.scalar_inputs}
        if self.varying or not all(values[number].dtype.is_integer for number in known):
            raise NotCompiled("a step computes a number of the host")
        computed: dict[int, Number] = {}
        for node, value in zip(nodes, evaluate_scalars(self.fusion, nodes, known, self.sizes[0]), strict=True):
            computed[node.outputs[0]] = Number((value,))
            if values[node.outputs[0]].dtype.is_integer:
                for sizes in self.sizes:
                    sizes[node.outputs[0]] = int(value)
        return computed
