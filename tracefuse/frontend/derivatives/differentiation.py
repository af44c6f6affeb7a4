"""Forward and reverse mode over the nodes of a recording.

Both follow the derivative rules of the ops (ir/derivatives.py) and record ordinary nodes, so a derivative can be
differentiated again, and is split into segments with everything else. Reverse mode visits each node once; where an op
has a tangent expression, it records that expression for a placeholder and transposes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tracefuse.errors import UnsupportedError
from tracefuse.frontend.derivatives.applications import RecordedApplication
from tracefuse.frontend.derivatives.loop_derivatives import Modes, loop_cotangents, loop_tangents
from tracefuse.frontend.tracer.array_ops.recorded_ops import converted, expanded, is_inexact, sum_to, zeros
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.control_flow import ControlFlow
from tracefuse.ir.derivatives import Equivalent, Flat, Linear, Multilinear, PartialDerivatives, Tangent
from tracefuse.ir.fusion import Literal, Node
from tracefuse.ops.roles import COPY


class Differentiation:
    """The nodes first .. last of a recording, as a function of the values `wanted`.

    active: the numbers of the values that depend on them and have a derivative.
    """

    def __init__(self, recorder: Recorder, first: int, last: int, wanted: Iterable[int]) -> None:
        self.recorder = recorder
        self.nodes = recorder.builder.nodes[first:last]
        self.active = set(wanted)
        for node in self.nodes:
            if isinstance(node.op.derivative, Flat):
                continue
            for number in recorder.computed_outside.keys() & set(node.inputs):
                self._refuse_outside(number)
            if not self.active.isdisjoint(node.inputs):
                values = recorder.builder.values
                self.active.update(number for number in node.outputs if is_inexact(values[number].dtype))

    def _refuse_outside(self, number: int) -> None:
        """Raises UnsupportedError for an input that a library computed from active values between two stages."""
        outside = self.recorder.computed_outside.get(number)
        if outside is None or not is_inexact(self.recorder.builder.values[number].dtype):
            return
        if self._depends(outside.operands):
            raise UnsupportedError(
                f"{outside.name} has no derivative rule: it is computed between two stages of the call",
                hint="write it with functions whose results have sizes that do not depend on the data, or compute it "
                "outside of the differentiated function", where=outside.where, runs_function=False,
            )  # fmt: skip

    def _depends(self, numbers: Iterable[int]) -> bool:
        """Whether values are active, or were computed between two stages from some that are."""
        waiting, seen = list(numbers), set()
        while waiting:
            number = waiting.pop()
            if number in self.active:
                return True
            if number in self.recorder.computed_outside and number not in seen:
                seen.add(number)
                waiting += self.recorder.computed_outside[number].operands
        return False

    # -- reverse mode -------------------------------------------------------------------------------------------------

    def cotangents(self, seeds: Mapping[int, Traced]) -> dict[int, Traced]:
        """Returns the cotangents of values by number, from those of results. Values without one are missing."""
        for number in seeds:
            self._refuse_outside(number)
        total = dict(seeds)
        checkpoints = self._checkpoints()
        waiting = list(self.nodes)
        while waiting:
            node = waiting.pop()
            region = checkpoints.get(id(node))
            if region is not None:
                del waiting[len(waiting) - len(region) + 1 :]
                self._pull_back_again(region, total)
                continue
            of_results = [total.pop(number, None) for number in node.outputs]
            if all(cotangent_of_result is None for cotangent_of_result in of_results) or self.active.isdisjoint(
                node.inputs
            ):
                continue
            application = self._application(node)
            for operand, cotangent in zip(node.operands, self._pulled_back(application, of_results), strict=True):
                if cotangent is not None and isinstance(operand, int) and operand in self.active:
                    self.add(total, operand, cotangent)
        return total

    def _checkpoints(self) -> dict[int, list[Node]]:
        """Returns the checkpointed calls that lie within the nodes, by the identity of their last node."""
        places = {id(node): place for place, node in enumerate(self.nodes)}
        known: dict[int, list[Node]] = {}
        for region in self.recorder.checkpoints:
            first, last = places.get(id(region[0])), places.get(id(region[-1]))
            if first is not None and last is not None and last - first == len(region) - 1:
                known[id(region[-1])] = region
        return known

    def _pull_back_again(self, region: Sequence[Node], total: dict[int, Traced]) -> None:
        """Records the nodes of a checkpointed call again, on copies of what they read, and transposes those."""
        recorder = self.recorder
        region = [node for node in region if recorder.builder.values[node.outputs[0]].extent is None]  # no sizes
        computed = {number for node in region for number in node.outputs}
        seeds = {number: total.pop(number) for number in computed & total.keys()}
        if not seeds:
            return
        again: dict[int, Traced] = {}
        for node in region:
            for number in node.inputs:
                if number not in computed and number not in again and recorder.builder.values[number].is_tensor:
                    again[number] = recorder.pointwise(COPY, [recorder.traced_type(recorder, number)])
        copies = {number: copy.number for number, copy in again.items() if number in self.active}
        first = len(recorder.builder.nodes)
        for node in region:
            operands = [
                operand.value
                if isinstance(operand, Literal)
                else again.get(operand, recorder.traced_type(recorder, operand))
                for operand in node.operands
            ]
            again.update(zip(node.outputs, recorder.again(node, operands, {}), strict=True))
        inner = Differentiation(recorder, first, len(recorder.builder.nodes), copies.values())
        cotangents = inner.cotangents({again[number].number: operand for number, operand in seeds.items()})
        for number, copy in copies.items():
            if copy in cotangents:
                self.add(total, number, cotangents[copy])

    def add(self, total: dict[int, Traced], number: int, cotangent: Any) -> None:
        value = self.recorder.builder.values[number]
        cotangent = converted(self.recorder, sum_to(self.recorder, cotangent, value.shape), value.dtype)
        known = total.get(number)
        total[number] = cotangent if known is None else known + cotangent

    def _pulled_back(self, node: RecordedApplication, cotangents: Sequence[Any]) -> Sequence[Any]:
        rule = node.node.op.derivative
        if isinstance(rule, PartialDerivatives):
            return self._by_partials(node, rule, cotangents[0])
        if isinstance(rule, (Linear, Multilinear)):
            _check_linear(node, rule)
            return rule.transpose(node, cotangents)
        if isinstance(rule, Tangent):
            if rule.transpose is not None:
                return rule.transpose(node, cotangents)
            return self._by_transposition(node, rule, cotangents)
        if isinstance(rule, Equivalent):
            return self._by_equivalent_transposed(node, rule, cotangents)
        if isinstance(node.node.op, ControlFlow):
            return loop_cotangents(node, cotangents, _MODES)
        raise without_rule(node.node)

    def _by_partials(self, node: RecordedApplication, rule: PartialDerivatives, cotangent: Any) -> list[Any]:
        return [
            _times_partial(node, text, cotangent) if is_active and text else None
            for text, is_active in zip(rule.texts, node.active, strict=True)
        ]

    def _by_transposition(self, node: RecordedApplication, rule: Tangent, cotangents: Sequence[Any]) -> list[Any]:
        builder = self.recorder.builder
        tangents = [
            zeros(self.recorder, shape, operand.value.dtype) if is_active else None
            for shape, operand, is_active in zip(node.shapes, node.operands, node.active, strict=True)
        ]
        start = len(builder.nodes)
        wanted = [tangent.number for tangent in tangents if tangent is not None]
        pushed = rule.rule(node, tangents)
        inner = Differentiation(self.recorder, start, len(builder.nodes), wanted)
        seeds: dict[int, Traced] = {}
        for tangent, cotangent in zip(pushed, cotangents, strict=True):
            if tangent is not None and cotangent is not None:
                inner.add(seeds, tangent.number, cotangent)
        result = inner.cotangents(seeds)
        return [None if tangent is None else result.get(tangent.number) for tangent in tangents]

    def _by_equivalent_transposed(
        self, node: RecordedApplication, rule: Equivalent, cotangents: Sequence[Any]
    ) -> list[Any]:  # fmt: skip
        inner, results = self._equivalent(node, rule, node.active)
        seeds: dict[int, Traced] = {}
        for result, cotangent in zip(results, cotangents, strict=True):
            if isinstance(result, Traced) and cotangent is not None:
                inner.add(seeds, result.number, cotangent)
        by_number = inner.cotangents(seeds)
        # An operand that is given twice has one cotangent.
        return [
            by_number.pop(operand.number, None) if is_active else None
            for operand, is_active in zip(node.operands, node.active, strict=True)
        ]

    def _equivalent(
        self, node: RecordedApplication, rule: Equivalent, active: Sequence[bool]
    ) -> tuple[Differentiation, Sequence[Any]]:
        """Records the expression that is equivalent to an op."""
        nodes = self.recorder.builder.nodes
        first = len(nodes)
        results = rule.rule(node)
        wanted = [operand.number for operand, is_active in zip(node.operands, active, strict=True) if is_active]
        return Differentiation(self.recorder, first, len(nodes), wanted), results

    # -- forward mode -------------------------------------------------------------------------------------------------

    def tangents(self, seeds: Mapping[int, Traced]) -> dict[int, Traced]:
        """Returns the tangents of values by number, from those of `wanted`. Values without one are missing."""
        known = dict(seeds)
        for node in self.nodes:
            of_operands = [known.get(operand) if isinstance(operand, int) else None for operand in node.operands]
            if all(tangent_of_operand is None for tangent_of_operand in of_operands) or self.active.isdisjoint(
                node.outputs
            ):
                continue
            application = self._application(
                node, [tangent_of_operand is not None for tangent_of_operand in of_operands]
            )
            for number, tangent in zip(node.outputs, self._pushed_forward(application, of_operands), strict=True):
                if tangent is not None and number in self.active:
                    value = self.recorder.builder.values[number]
                    known[number] = expanded(self.recorder, converted(self.recorder, tangent, value.dtype), value.shape)
        return known

    def _pushed_forward(self, node: RecordedApplication, tangents: Sequence[Any]) -> Sequence[Any]:
        rule = node.node.op.derivative
        if isinstance(rule, PartialDerivatives):
            terms = [
                _times_partial(node, text, tangent)
                for k, (text, tangent) in enumerate(zip(rule.texts, tangents, strict=True))
                if tangent is not None and text
            ]
            return (_sum(terms),)
        if isinstance(rule, Linear):
            _check_linear(node, rule)
            chosen = range(len(tangents)) if rule.operands is None else rule.operands
            operands = [
                self._tangent_or_zero(node, k, tangents) if k in chosen else node.operands[k]
                for k in range(len(tangents))
            ]
            return self.recorder.again(node.node, operands, rule.attributes)
        if isinstance(rule, Multilinear):
            terms = [
                self.recorder.again(
                    node.node, [tangent_of_operand if j == k else o for j, o in enumerate(node.operands)], {}
                )
                for k, tangent_of_operand in enumerate(tangents)
                if tangent_of_operand is not None
            ]
            return [_sum(column) for column in zip(*terms, strict=True)]
        if isinstance(rule, Tangent):
            return rule.rule(node, tangents)
        if isinstance(rule, Equivalent):
            return self._by_equivalent(node, rule, tangents)
        if isinstance(node.node.op, ControlFlow):
            return loop_tangents(node, tangents, _MODES)
        raise without_rule(node.node)

    def _by_equivalent(self, node: RecordedApplication, rule: Equivalent, tangents: Sequence[Any]) -> list[Any]:
        inner, results = self._equivalent(node, rule, [operand is not None for operand in tangents])
        seeds = {
            operand.number: tangent
            for operand, tangent in zip(node.operands, tangents, strict=True)
            if tangent is not None
        }
        by_number = inner.tangents(seeds)
        return [by_number.get(operand.number) if isinstance(operand, Traced) else None for operand in results]

    def _tangent_or_zero(self, node: RecordedApplication, position: int, tangents: Sequence[Any]) -> Any:
        if tangents[position] is not None:
            return tangents[position]
        operand = node.operands[position]
        if not isinstance(operand, Traced):
            return 0
        return zeros(self.recorder, operand.extents, operand.value.dtype)

    def _application(self, node: Node, active: Sequence[bool] | None = None) -> RecordedApplication:
        if active is None:
            active = [isinstance(operand, int) and operand in self.active for operand in node.operands]
        return RecordedApplication(self.recorder, node, active)


def _times_partial(node: RecordedApplication, text: str, value: Any) -> Any:
    """Multiplies a tangent or a cotangent by a partial derivative."""
    if text in ("1", "-1"):
        return value if text == "1" else -value
    return value * node.partial(text)


def _tangents(recorder: Recorder, first: int, last: int, seeds: Mapping[int, Traced]) -> dict[int, Traced]:
    return Differentiation(recorder, first, last, seeds).tangents(seeds)


def _cotangents(
    recorder: Recorder, first: int, last: int, wanted: Sequence[int], seeds: Mapping[int, Traced]
) -> dict[int, Traced]:
    return Differentiation(recorder, first, last, wanted).cotangents(seeds)


_MODES = Modes(_tangents, _cotangents)


def _sum(terms: Sequence[Any]) -> Any:
    total = None
    for term in terms:
        total = term if total is None else total + term
    return total


def _check_linear(node: RecordedApplication, rule: Linear | Multilinear) -> None:
    only = rule.only if isinstance(rule, Linear) else None
    if only is not None and node.attributes[only[0]] not in only[1]:
        raise without_rule(node.node, f" with {only[0]}={node.attributes[only[0]]!r}")


def without_rule(node: Node, case: str = "") -> UnsupportedError:
    """Returns the error for a node whose op has no derivative rule."""
    return UnsupportedError(
        f"{node.op.name}{case} has no derivative rule",
        hint="compute it outside of the differentiated function, or write it with other functions", where=node.where,
        runs_function=False,
    )  # fmt: skip
