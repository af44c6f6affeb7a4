"""Runs loops through compiled drivers, one for each set of argument layouts.

A loop whose steps a driver cannot run stays on the host, and so does one of a few steps, which would end before its
driver is compiled. A driver whose kernel meets an index out of range ends; the steps on the host then raise the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.ir.control_flow import ControlFlow
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.loop_driver import FAILED, LoopDriver
from tracefuse.runtime.driver_building import DriverBuilder, LoopRun, Number, Operand
from tracefuse.runtime.driver_parameters import (
    DriverParameters,
    FixedNumber,
    FromOperand,
    NewMemory,
    NotCompiled,
    Source,
)
from tracefuse.runtime.targets.target import Target

MAX_DRIVERS = 64
"""The number of argument layouts with a driver. Beyond it, the oldest is dropped."""
register(Cache(
    "runtime.driven_loops.DrivenLoop._drivers", "the compiled driver of a loop, or why it has none",
    "shapes, strides and integers of the operands", f"{MAX_DRIVERS}, the oldest go", "a plan", "with the plan",
))  # fmt: skip
FEWEST_STEPS = 16
"""The number of steps below which no driver is compiled."""


@dataclass(frozen=True, slots=True)
class BoundDriver:
    """A compiled driver. results: for each result, its memory after an even and after an odd number of steps."""

    driver: LoopDriver
    launch: Any
    sources: tuple[Source, ...]
    results: tuple[tuple[NewMemory, NewMemory], ...]

    def run(self, operands: Sequence[Any], empty: Any) -> list[Any] | None:
        """Runs the loop and returns its results; None if a kernel met an index out of range."""
        memory: dict[Source, Any] = {}
        arguments: list[Any] = []
        for source in self.sources:
            match source:
                case FixedNumber(value):
                    arguments.append(value)
                case FromOperand(position, part):
                    operand = operands[position]
                    arguments.append(getattr(operand, part) if part else operand)
                case NewMemory(_, shape, dtype):
                    memory[source] = array = empty(shape, dtype)
                    arguments.append(array)
        steps = self.launch(*arguments)
        if steps == FAILED:
            return None
        return [memory[pair[steps & 1]] for pair in self.results]


class DrivenLoop:
    """The drivers of one loop. refusal: why the last call had none, "" if it had one."""

    def __init__(self, run: LoopRun, target: Target, disk: DiskCache | None) -> None:
        self.loop, self.target, self.disk = run, target, disk
        self.refusal = ""
        self._drivers: BoundedTable[Any, BoundDriver | str] = BoundedTable(MAX_DRIVERS)
        node = run.node
        self._free_numbers = 2 if "sliced" in node.attributes else 0
        self.contains_loops = _contains_loops(part for _, part in node.op.sub_fusions(node.attributes))  # type: ignore[attr-defined]

    def run(self, operands: list[Any], steps: int | None) -> list[Any] | None:
        """Runs the loop and returns its results; None if the host must run it. steps: their number, if it is known."""
        key = (
            *(
                (one.shape, one.strides) if hasattr(one, "shape") else self._key_of(k, one)
                for k, one in enumerate(operands)
            ),
            steps if len(self.loop.node.outputs) > self.loop.node.attributes["carried"] else None,
        )
        driver = self._drivers.get(key)
        if driver is None:
            if steps is not None and steps < FEWEST_STEPS and not self.contains_loops:
                return None
            driver = self._drivers[key] = self._build(operands)
        if isinstance(driver, str):
            self.refusal = driver
            return None
        self.refusal = ""
        return driver.run(self._contiguous(operands), self.target.device.empty)

    def knows(self) -> bool:
        """Whether a driver has been built for any operands."""
        return len(self._drivers) > 0

    def _key_of(self, position: int, number: Any) -> Any:
        return number if isinstance(number, int) and position >= self._free_numbers else type(number)

    def _contiguous(self, operands: list[Any]) -> list[Any]:
        """Returns the operands with contiguous initial values of what steps carry."""
        attributes = self.loop.node.attributes
        last = len(operands) - attributes.get("sliced", 0)
        ready = list(operands)
        for position in range(last - attributes["carried"], last):
            array = operands[position]
            if not array.flags.c_contiguous:
                ready[position] = self.target.device.empty(array.shape, self._dtype(position))
                self.target.device.copy(array, ready[position])
        return ready

    def _dtype(self, position: int) -> Any:
        operand = self.loop.node.operands[position]
        assert isinstance(operand, int)
        return self.loop.fusion.values[operand].dtype

    def _build(self, operands: list[Any]) -> BoundDriver | str:
        parameters = DriverParameters(self.target.device)
        places: list[Operand] = [
            parameters.operand(position, one, self._dtype(position))
            if hasattr(one, "shape")
            else self._number(position, one)
            for position, one in enumerate(self._contiguous(operands))
        ]
        try:
            built = DriverBuilder(parameters).build(self.loop, places)
        except NotCompiled as reason:
            return str(reason)
        name = self.loop.node.op.name
        driver = LoopDriver(
            name, tuple(parameters.kernels), tuple(parameters.parameters), built.statements, built.steps
        )
        launch = self.target.compiler.loop(driver, parameters.functions, self.disk)
        sources = dict(zip((p.name for p in parameters.parameters), parameters.sources, strict=True))
        results = tuple((sources[even.pointer], sources[odd.pointer]) for even, odd in built.results)
        return BoundDriver(driver, launch, tuple(parameters.sources), results)  # type: ignore[arg-type]

    def _number(self, position: int, value: Any) -> Number:
        is_literal = not isinstance(self.loop.node.operands[position], int)
        return Number(value, None if is_literal else position)


def _contains_loops(parts: Any) -> bool:
    return any(isinstance(node.op, ControlFlow) for part in parts for node in part.fusion.nodes)
