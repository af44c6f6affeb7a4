"""Exchanges of NumPy arrays over any messenger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tracefuse.errors import DeviceError, shown
from tracefuse.runtime.communicators.host_exchanges import EXCHANGES, Rounds
from tracefuse.runtime.communicators.messenger import Messenger
from tracefuse.runtime.communicators.world import Communicator, Start, World


class HostRequest:
    """An exchange in progress. Its later rounds start in `finish`."""

    __slots__ = ("_pending", "_rounds", "_target", "_text", "_world")

    def __init__(self, rounds: Rounds, source: Any, target: Any, text: str, world: World) -> None:
        self._rounds, self._target, self._text, self._world = rounds, (source, target), text, world
        self._pending = next(rounds, None)

    def finish(self) -> Any:
        """Returns the target once it is complete."""
        while self._pending is not None:
            self._world.wait(self._pending, self._text)
            self._pending = next(self._rounds, None)
        return self._target[1]


class HostCommunicator(Communicator):
    """Exchanges of NumPy arrays of one rank with a group."""

    def __init__(self, messenger: Messenger, world: World) -> None:
        self.rank, self.size = messenger.rank, messenger.size
        self._messenger, self._world = messenger, world

    def exchange(self, kind: str, parameters: Mapping[str, Any]) -> Start:
        """Returns what starts an exchange. It raises DeviceError for arrays that are not NumPy's."""
        rounds, messenger, world = EXCHANGES[kind], self._messenger, self._world

        def start(source: Any, target: Any, overlaps: bool) -> HostRequest:
            if not isinstance(source, np.ndarray):
                raise DeviceError(
                    f"{kind} of {shown(source)} between ranks that exchange host memory",
                    hint="pass NumPy arrays, or start the job with communicator='nccl'",
                )
            return HostRequest(rounds(messenger, source, target, **parameters), source, target, kind, world)

        return start
