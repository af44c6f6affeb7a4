"""Derivatives of loops and branches, as loops and branches over derivatives of their bodies.

Forward mode carries the tangents beside the values. Reverse mode of a loop with a trip count makes it store what each
step starts from, one slice a step, and runs the steps backwards. A loop with a condition has no reverse mode, since the
number of its steps, and so what to store, is not known before it ran.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.control_flow.recorded_control_flow import RecordedCount, record_cond, record_while
from tracefuse.frontend.derivatives.applications import RecordedApplication
from tracefuse.frontend.derivatives.replay import replay
from tracefuse.frontend.derivatives.stored_carries import StoredStarts
from tracefuse.frontend.tracer.array_ops.recorded_ops import is_inexact, zeros
from tracefuse.frontend.tracer.record.captured_inputs import AnotherAttempt
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.control_flow import Branch, CountedLoop, RangeLoop, WhileLoop
from tracefuse.ir.fusion import SubFusion


@dataclass(frozen=True, slots=True)
class Modes:
    """Forward and reverse mode over the nodes first .. last of a recording, by the numbers of values."""

    tangents: Callable[[Recorder, int, int, Mapping[int, Traced]], dict[int, Traced]]
    cotangents: Callable[[Recorder, int, int, Sequence[int], Mapping[int, Traced]], dict[int, Traced]]


class _DifferentiatedBody:
    """The body of a loop or a branch, to be recorded again with its derivative."""

    def __init__(self, node: RecordedApplication, part: SubFusion, modes: Modes) -> None:
        self.recorder, self.part, self.modes = node.recorder, part, modes

    def forward(self, operands: Sequence[Any], tangents: Mapping[int, Traced]) -> tuple[list[Traced], list[Traced]]:
        """Returns the outputs and their tangents, zeros for none. tangents: of operands, by position."""
        recorder = self.recorder
        first = len(recorder.builder.nodes)
        outputs = replay(recorder, self.part, operands)
        by_number = {operands[k].number: tangent for k, tangent in tangents.items()}
        known = self.modes.tangents(recorder, first, len(recorder.builder.nodes), by_number)
        return outputs, [
            self._or_zeros(known.get(output.number), output) for output in outputs if is_inexact(output.value.dtype)
        ]

    def backward(
        self, operands: Sequence[Any], wanted: Sequence[int], cotangents: Mapping[int, Traced]
    ) -> list[Traced]:
        """Returns the cotangents of the operands `wanted`, zeros for none. cotangents: of outputs, by position."""
        recorder = self.recorder
        first = len(recorder.builder.nodes)
        outputs = replay(recorder, self.part, operands)
        seeds: dict[int, Any] = {}
        for k, cotangent in cotangents.items():
            number = outputs[k].number
            seeds[number] = seeds[number] + cotangent if number in seeds else cotangent
        numbers = [operands[k].number for k in wanted]
        known = self.modes.cotangents(recorder, first, len(recorder.builder.nodes), numbers, seeds)
        return [self._or_zeros(known.get(operands[k].number), operands[k]) for k in wanted]

    @staticmethod
    def _or_zeros(value: Traced | None, like: Traced) -> Traced:
        return _zeros_like(like) if value is None else value


def _inexact(operands: Sequence[Any], positions: Sequence[int]) -> list[int]:
    return [k for k in positions if isinstance(operands[k], Traced) and is_inexact(operands[k].value.dtype)]


class _Layout:
    """The positions of a loop's operands: captured, carried and sliced ones, and of its results."""

    def __init__(self, node: RecordedApplication, first: int) -> None:
        count = len(node.operands)
        carried, sliced = node.attributes["carried"], node.attributes.get("sliced", 0)
        self.captured = [*range(first, count - sliced - carried)]
        self.carried = [*range(count - sliced - carried, count - sliced)]
        self.sliced = [*range(count - sliced, count)]
        self.active_captured = [k for k in self.captured if node.active[k]]
        self.active_sliced = [k for k in self.sliced if node.active[k]]
        self.active_carried = _inexact(node.operands, self.carried)


# ---------------------------------------------------------------------------------------------------------------------
# forward mode


def loop_tangents(node: RecordedApplication, tangents: Sequence[Any], modes: Modes) -> Sequence[Any]:
    """Returns the tangents of the results of a loop or a branch. Raises UnsupportedError for one that draws."""
    op = node.node.op
    _require_no_draws(node)
    _require_unrolled(node)
    if isinstance(op, CountedLoop):
        return _counted_tangents(node, tangents, modes)
    if isinstance(op, WhileLoop):
        return _while_tangents(node, tangents, modes)
    assert isinstance(op, Branch)
    return _branch_tangents(node, tangents, modes)


def _require_no_draws(node: RecordedApplication) -> None:
    if node.node.op.effect:
        raise UnsupportedError(
            f"a derivative of {node.node.op.name}, whose body draws random numbers: they would be drawn again",
            hint="draw the numbers of all steps before the loop, and pass the array to scan", where=node.node.where,
            runs_function=False,
        )  # fmt: skip


def _require_unrolled(node: RecordedApplication) -> None:
    """Begins the trace again, with unrolled loops, if the op is a `for` loop whose body was recorded once."""
    if isinstance(node.node.op, RangeLoop):
        node.recorder.loops.decisions.is_enabled = False
        raise AnotherAttempt


def _start_tangents(node: RecordedApplication, tangents: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    return [_zeros_like(node.operands[k]) if tangents[k] is None else tangents[k] for k in positions]


def _zeros_like(value: Traced) -> Traced:
    result: Traced = zeros(value.recorder, value.extents, value.value.dtype)
    return result


def _counted_tangents(node: RecordedApplication, of_operands: Sequence[Any], modes: Modes) -> Sequence[Any]:
    layout, operands = _Layout(node, 2), node.operands
    body = _DifferentiatedBody(node, node.attributes["body"], modes)
    count = len(layout.carried)
    init = ([operands[k] for k in layout.carried], _start_tangents(node, of_operands, layout.active_carried))
    arrays = [*(operands[k] for k in layout.sliced), *(of_operands[k] for k in layout.active_sliced)]
    loop = RecordedCount(node.recorder, "jvp", "f", init, "init", arrays, node.attributes["reverse"])

    def step(counter: Any, value: Any, slices: Sequence[Any]) -> tuple[Any, Any]:
        now = _operands_of_step(node, layout, counter, value[0], slices[: len(layout.sliced)])
        tangents = {k: of_operands[k] for k in layout.active_captured}
        tangents |= dict(zip(layout.active_carried, value[1], strict=True))
        tangents |= dict(zip(layout.active_sliced, slices[len(layout.sliced) :], strict=True))
        outputs, of_outputs = body.forward(now, tangents)
        carried = sum(is_inexact(output.value.dtype) for output in outputs[:count])
        return (outputs[:count], of_outputs[:carried]), of_outputs[carried:]

    (_, final), stacked = loop.run(step, *_bounds(operands))
    return _by_result(node, [*final, *stacked])


def _by_result(node: RecordedApplication, tangents: Sequence[Any]) -> list[Any]:
    rest = iter(tangents)
    return [next(rest) if is_inexact(result.value.dtype) else None for result in node.results]


def _bounds(operands: Sequence[Any]) -> tuple[Any, Any]:
    """The bounds of a counted loop, as sizes where they are."""
    return tuple(
        bound if not isinstance(bound, Traced) or bound.value.extent is None else _size(bound) for bound in operands[:2]
    )


def _size(value: Traced) -> Any:
    (size,) = value.recorder.sizes((value.value.extent,))  # type: ignore[arg-type]
    return size


def _operands_of_step(
    node: RecordedApplication, layout: _Layout, counter: Any, carried: Sequence[Any], slices: Sequence[Any]
) -> list[Any]:
    now = [*node.operands]
    now[0] = counter
    for positions, values in ((layout.carried, carried), (layout.sliced, slices)):
        for position, value in zip(positions, values, strict=True):
            now[position] = value
    return now


def _while_tangents(node: RecordedApplication, of_operands: Sequence[Any], modes: Modes) -> Sequence[Any]:
    layout, operands, recorder = _Layout(node, 0), node.operands, node.recorder
    body = _DifferentiatedBody(node, node.attributes["body"], modes)
    init = ([operands[k] for k in layout.carried], _start_tangents(node, of_operands, layout.active_carried))

    def now(value: Any) -> list[Any]:
        return [*operands[: layout.carried[0]], *value[0]]

    def condition(value: Any) -> Any:
        return replay(recorder, node.attributes["condition"], now(value))[0]

    def step(value: Any) -> Any:
        tangents = {k: of_operands[k] for k in layout.active_captured}
        return body.forward(now(value), tangents | dict(zip(layout.active_carried, value[1], strict=True)))

    _, final = record_while(recorder, condition, step, init, "jvp")
    return _by_result(node, final)


def _branch_tangents(node: RecordedApplication, of_operands: Sequence[Any], modes: Modes) -> Sequence[Any]:
    tangents = {k: tangent for k, tangent in enumerate(of_operands) if tangent is not None and k > 0}

    def function(name: str) -> Callable[[], Any]:
        body = _DifferentiatedBody(node, node.attributes[name], modes)
        return lambda: body.forward(node.operands, {k: t for k, t in tangents.items() if k in body.part.inputs})[1]

    return _by_result(node, _chosen(node, function))


def _chosen(node: RecordedApplication, function: Callable[[str], Callable[[], Any]]) -> Any:
    """Records a choice by the condition of a branch."""
    condition = node.operands[0]
    return record_cond(node.recorder, condition, function("on_true"), function("on_false"), ())


# ---------------------------------------------------------------------------------------------------------------------
# reverse mode


def loop_cotangents(node: RecordedApplication, cotangents: Sequence[Any], modes: Modes) -> Sequence[Any]:
    """Returns the cotangents of the operands of a loop or a branch.

    Raises UnsupportedError for a `while_loop`, and for a body that draws.
    """
    op = node.node.op
    _require_no_draws(node)
    _require_unrolled(node)
    if isinstance(op, CountedLoop):
        return _counted_cotangents(node, cotangents, modes)
    if isinstance(op, Branch):
        return _branch_cotangents(node, cotangents, modes)
    raise UnsupportedError(
        "while_loop has no reverse mode: the number of its steps, and so what to store for it, is not known",
        hint="use fori_loop or scan with a bound on the steps, or jvp", where=node.node.where,
        runs_function=False,
    )  # fmt: skip


def _counted_cotangents(node: RecordedApplication, cotangents: Sequence[Any], modes: Modes) -> Sequence[Any]:
    layout, operands = _Layout(node, 2), node.operands
    stored = StoredStarts(node, layout.carried, _bounds(operands)[1])
    starts, first_node = stored.arrays, len(node.recorder.builder.nodes)
    body = _DifferentiatedBody(node, node.attributes["body"], modes)
    count = len(layout.carried)
    stacked = [k for k in range(count, len(node.results)) if cotangents[k] is not None]
    finals = [
        _zeros_like(operands[k]) if cotangents[k - layout.carried[0]] is None else cotangents[k - layout.carried[0]]
        for k in layout.active_carried
    ]
    totals = [_zeros_like(operands[k]) for k in layout.active_captured]
    arrays = [*starts.values(), *(operands[k] for k in layout.sliced), *(cotangents[k] for k in stacked)]
    loop = RecordedCount(node.recorder, "grad", "f", (finals, totals), "init", arrays, not node.attributes["reverse"])
    wanted = [*layout.active_carried, *layout.active_captured, *layout.active_sliced]

    def step(counter: Any, value: Any, slices: Sequence[Any]) -> tuple[Any, Any]:
        first, last = len(starts), len(starts) + len(layout.sliced)
        rows = dict(zip(starts, slices[:first], strict=True))
        carried = [rows[k] if k in rows else _zeros_like(operands[k]) for k in layout.carried]
        now = _operands_of_step(node, layout, counter, carried, slices[first:last])
        seeds = {
            k - layout.carried[0]: total_of_step
            for k, total_of_step in zip(layout.active_carried, value[0], strict=True)
        }
        seeds |= dict(zip(stacked, slices[last:], strict=True))
        of_operands = body.backward(now, wanted, seeds)
        rest = of_operands[len(finals) :]
        sums = [total + total_of_step for total, total_of_step in zip(value[1], rest[: len(totals)], strict=True)]
        return (of_operands[: len(finals)], sums), rest[len(totals) :]

    (carried, sums), slices = loop.run(step, *_bounds(operands))
    stored.store(first_node)
    results: list[Any] = [None] * len(operands)
    for position, cotangent in zip(wanted, [*carried, *sums, *slices], strict=True):
        results[position] = cotangent
    return results


def _branch_cotangents(node: RecordedApplication, cotangents: Sequence[Any], modes: Modes) -> Sequence[Any]:
    wanted = [k for k, is_active in enumerate(node.active) if is_active and k > 0]
    seeds = {k: of_result for k, of_result in enumerate(cotangents) if of_result is not None}

    def function(name: str) -> Callable[[], Any]:
        body = _DifferentiatedBody(node, node.attributes[name], modes)
        return lambda: body.backward(node.operands, wanted, seeds)

    results: list[Any] = [None] * len(node.operands)
    for position, cotangent in zip(wanted, _chosen(node, function), strict=True):
        results[position] = cotangent
    return results
