"""Runs loops through compiled drivers, one for each set of argument layouts.

A loop whose steps a driver cannot run stays on the host, and so does one of a few steps, which would end before its
driver is compiled. A driver whose kernel meets an index out of range ends; the steps on the host then raise the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from segments.lazy_dataclasses import dataclass
from tracefuse.caches import BoundedTable, Cache, register
from tracefuse.config import Options
from tracefuse.ir.control_flow import ControlFlow
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.loop_driver import NO_CHOICE, LoopDriver
from tracefuse.logs import say
from tracefuse.runtime.driver_building import DriverBuilder, LoopRun
from tracefuse.runtime.driver_calls import DriverCall, driver_call, key_function
from tracefuse.runtime.driver_parameters import (
    DriverParameters,
    NewMemory,
    NotCompiled,
    StepTensor,
)
from tracefuse.runtime.step_integers import Number, Operand
from tracefuse.runtime.targets.target import Target

MAX_DRIVERS = 64
"""The number of argument layouts with a driver. Beyond it, the oldest is dropped."""
register(Cache(
    "runtime.driven_loops.DrivenLoop._drivers", "the compiled driver of a loop, or why it has none",
    "shapes, strides and integers of the operands", f"{MAX_DRIVERS}, the oldest go", "a plan", "with the plan",
))  # fmt: skip
MOST_BUILDS = 100
"""The number of drivers that are built for one loop."""
FEWEST_STEPS = 16
"""The number of steps of a loop below which no driver is compiled, until several calls have run STEPS_OF_CALLS."""
STEPS_OF_CALLS = 160
"""The number of steps of calls with the same layouts, each below FEWEST_STEPS, after which a driver is compiled."""
register(Cache(
    "runtime.driven_loops.DrivenLoop._steps_on_host", "how many steps of a short loop the host has run",
    "shapes, strides and integers of the operands", f"{MAX_DRIVERS}, the oldest go", "a plan", "with the plan",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class BoundDriver:
    """A compiled driver.

    call: allocates memory and launches it. bounds: of the integers of the loop that it was built for. fits_bounds: it
    serves no others. kept: what must live as long as the driver.
    """

    driver: LoopDriver
    call: DriverCall
    bounds: tuple[int, ...]
    fits_bounds: bool
    kept: tuple[Any, ...]

    def run(self, operands: Sequence[Any], bounds: Sequence[int], empty: Any) -> list[Any] | int:
        """Runs the loop and returns its results, or what the driver returns instead."""
        return self.call(operands, bounds, empty)


class DrivenLoop:
    """The drivers of one loop. refusal: why the last call had none, "" if it had one."""

    def __init__(self, run: LoopRun, target: Target, disk: DiskCache | None, options: Options) -> None:
        self.loop, self.target, self.disk, self.options = run, target, disk, options
        self.refusal = ""
        self._builds = 0
        self._drivers: BoundedTable[Any, BoundDriver | str] = BoundedTable(MAX_DRIVERS)
        self._steps_on_host: BoundedTable[Any, int] = BoundedTable(MAX_DRIVERS)
        node, op = run.node, run.node.op
        assert isinstance(op, ControlFlow)
        tensors = [self._is_tensor(operand) for operand in node.operands]
        self._key_of = key_function(tensors, 2 if "sliced" in node.attributes else 0)
        self._has_stacks = len(node.outputs) > node.attributes["carried"]
        parts = (part.fusion for _, part in op.sub_fusions(node.attributes))
        self.contains_loops = any(isinstance(inner.op, ControlFlow) for part in parts for inner in part.nodes)

    def run(
        self, operands: list[Any], steps: int | None, inputs: Sequence[Any] = (), bounds: tuple[int, ...] = ()
    ) -> list[Any] | None:
        """Runs the loop and returns its results; None if the host must run it.

        steps: their number, if it is known. inputs: of the fusion of the op. bounds: of a counter on which integers of
        a step depend.
        """
        key = self._key(operands, steps)
        is_short = steps is not None and steps < FEWEST_STEPS and (steps == 1 or not self.contains_loops)
        if is_short and key not in self._drivers and not self._are_enough(key, steps or 0):
            return None
        driver = self._driver(key, operands, inputs, bounds)
        if not isinstance(driver, str):
            ready = self._contiguous(operands)
            results = driver.run(ready, bounds, self.target.device.empty)
            if results == NO_CHOICE and driver.bounds != bounds:
                driver = self._driver((key, bounds), operands, inputs, bounds)
                results = NO_CHOICE if isinstance(driver, str) else driver.run(ready, bounds, self.target.device.empty)
            if not isinstance(results, int):
                self.refusal = ""
                return results
            if results == NO_CHOICE:
                self._drivers[key, bounds] = self._drivers[key] = driver = "a step has another plan"
        self.refusal = driver if isinstance(driver, str) else "an index is out of range"
        return None

    def _driver(
        self, key: Any, operands: list[Any], inputs: Sequence[Any], bounds: tuple[int, ...]
    ) -> BoundDriver | str:  # fmt: skip
        """Returns the driver for operands, or why there is none."""
        driver = self._drivers.get(key)
        if isinstance(driver, BoundDriver) and driver.fits_bounds and driver.bounds != bounds:
            key = key, bounds
            driver = self._drivers.get(key)
        if driver is None:
            if self._builds == MOST_BUILDS:
                return "its sizes differ from call to call"
            self._builds += 1
            driver = self._drivers[key] = self._build(operands, inputs, bounds)
            self._log(driver)
        return driver

    def _log(self, driver: BoundDriver | str) -> None:
        """Logs what runs the loop, and with `debug=3` the code of the driver."""
        options, node = self.options, self.loop.node
        runs = "one compiled function runs its steps"
        if isinstance(driver, str):
            runs = f"the host runs its steps, since {driver}"
        say(options, 1, lambda: f"{node.op.name} ({node.where}): {runs}")
        if not isinstance(driver, str):
            text = driver.driver
            say(options, 3, lambda: str(text))

    def has_run_on_host(
        self, operands: list[Any], steps: int, inputs: Sequence[Any] = (), bounds: tuple[int, ...] = ()
    ) -> None:
        """Builds a driver for later calls if the host has run enough steps of loops of unknown length."""
        key = self._key(operands, None)
        if key not in self._drivers and self._are_enough(key, steps):
            self._driver(key, operands, inputs, bounds)

    def _are_enough(self, key: Any, steps: int) -> bool:
        """Adds steps of a short loop; returns whether a driver is to be compiled."""
        self._steps_on_host[key] = total = self._steps_on_host.get(key, 0) + steps
        return total >= STEPS_OF_CALLS

    def _key(self, operands: Sequence[Any], steps: int | None) -> Any:
        return self._key_of(operands), steps if self._has_stacks else None

    def knows(self) -> bool:
        """Whether a driver has been built for any operands."""
        return len(self._drivers) > 0

    def _is_tensor(self, operand: Any) -> bool:
        return isinstance(operand, int) and self.loop.fusion.values[operand].is_tensor

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

    def _build(
        self, operands: list[Any], inputs: Sequence[Any], bounds: tuple[int, ...]
    ) -> BoundDriver | str:  # fmt: skip
        parameters, node = DriverParameters(self.target.device), self.loop.node
        places: list[Operand] = [
            parameters.operand(position, operand, self._dtype(position))
            if self._is_tensor(node.operands[position])
            else Number((operand,), position if isinstance(node.operands[position], int) else None)
            for position, operand in enumerate(self._contiguous(operands))
        ]
        values: list[Operand] = [
            StepTensor("", operand, self.loop.fusion.values[number].dtype)
            if self._is_tensor(number)
            else Number((operand,))
            for number, operand in zip(self.loop.fusion.inputs, inputs, strict=False)
        ]
        try:
            built = DriverBuilder(parameters).build(self.loop, values, places)
        except NotCompiled as reason:
            return str(reason)
        kernels, declared = tuple(parameters.kernels), tuple(parameters.parameters)
        driver = LoopDriver(node.op.name, kernels, declared, built.statements, built.steps)
        launch = self.target.compiler.loop(driver, parameters.functions, self.disk)
        sources = dict(zip((p.name for p in parameters.parameters), parameters.sources, strict=True))
        memory = {name: source for name, source in sources.items() if isinstance(source, NewMemory)}
        results = tuple((memory[even.pointer], memory[odd.pointer]) for even, odd in built.results)
        return BoundDriver(
            driver,
            driver_call(parameters.sources, results, launch),
            bounds,
            parameters.fits_bounds,
            tuple(parameters.kept),
        )
