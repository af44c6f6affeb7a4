"""Writes the steps of a call that run on whole values: host operations, exchanges between ranks and their waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import segments
from segments import HostOp, name_of
from tracefuse.runtime.targets.array_device import ArrayDevice


class ExchangeCode:
    """The lines of one call. name: gives an object a variable. hold: records that a variable keeps memory alive.

    addresses: the lines that read the addresses of values.
    """

    def __init__(
        self, device: ArrayDevice, name: Callable[[str, Any], str], hold: Callable[[str], str],
        addresses: Callable[[Iterable[int]], list[str]],
    ) -> None:  # fmt: skip
        self.device, self.name, self.hold, self.addresses = device, name, hold, addresses
        self.requests: dict[int, segments.Communicate] = {}

    def host_op(self, instruction: HostOp, allocated: Iterable[str]) -> list[str]:
        """Writes a host operation, into an array if its variable is among those allocated, else a new one."""
        run, label = self.name("host_op", self.device.host_op), self.name("op", instruction.label)
        inputs, output = "".join(f"{name_of(value)}, " for value in instruction.inputs), name_of(instruction.output)
        target = output if output in allocated else "None"
        line = f"    {self.hold(output)} = {run}({label}, [{inputs}], {target})"
        return [line, *self.addresses((instruction.output,))]

    def start(self, instruction: segments.Communicate) -> list[str]:
        """Writes the start of an exchange."""
        start = self.name("exchange", instruction.label.start)  # type: ignore[attr-defined]
        self.requests[instruction.request] = instruction
        targets = [name_of(value) for value in instruction.targets]
        operands = ", ".join([*map(name_of, instruction.sources), *(targets or ["None"])])
        return [f"    {self.hold(f'request{instruction.request}')} = {start}({operands})"]

    def wait(self, request: int) -> list[str]:
        """Writes the wait for an exchange, after which its target is complete."""
        finish = self.name("finish", self.requests[request].label.finish)  # type: ignore[attr-defined]
        return [f"    {finish}(request{request})", f"    request{request} = None"]
