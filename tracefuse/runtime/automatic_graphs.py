"""Calls that launch their kernels as a CUDA graph once they have been repeated often enough.

The kernels, and so the bits of the results, are the same as without a graph. A call stays as it was where a graph gains
nothing: few launches, intermediates so large that the kernels outlast their launches, other addresses and sizes at each
call. So does a call whose work the caller records into a graph of its own, since the intermediates of ours are memory
that later calls use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracefuse.config import Options
from tracefuse.dynamic.guards import Guard
from tracefuse.errors import DeviceError, OutOfMemoryError
from tracefuse.runtime.call_code import Call, CallWriter, compile_call
from tracefuse.runtime.graph_code import launches_of_graph
from tracefuse.runtime.ordered_results import with_result_orders
from tracefuse.runtime.plan import Plan
from tracefuse.runtime.replayed_calls import replayed
from tracefuse.runtime.targets.kernel_compiler import LaunchGraph
from tracefuse.runtime.targets.target import Target

LEAST_LAUNCHES = 4
"""In a row, and of a call in which equal kernels are launched together. A graph of fewer costs about as much."""
CALLS_BEFORE = 32
"""Calls of a plan before its graph is built, which takes as long as tens of calls."""
MOST_BYTES = 64 << 20
"""Of intermediates that a graph keeps between calls. The kernels on more run for longer than the host needs."""
WINDOW = 64
"""Calls after which the changes of a graph are counted. One that changes half of its launches gains little."""


def repeatable_call(
    plan: Plan, target: Target, facts: Sequence[Guard], scalars: Callable[[Sequence[Any], Mapping[int, int]], Any],
    options: Options,
) -> tuple[Call, str]:  # fmt: skip
    """Compiles a call, with a graph as the options say, or once it has been repeated often. See `compile_call`."""
    plain = CallWriter(plan, target, options.graph == "on")
    call, text = with_result_orders(*compile_call(plain, facts, scalars), plan)
    if options.graph != "auto" or not target.compiler.has_graphs or not plan.is_straight:
        return replayed(call, plain, scalars), text
    with_graph = plan.for_graph()
    groups = with_graph.arena_plan.groups
    most = max((len(launches_of_graph(group)) for group in groups), default=0)
    if min(most, plain.launches) < LEAST_LAUNCHES:
        return replayed(call, plain, scalars), text

    def make() -> tuple[Call, list[LaunchGraph]]:
        writer = CallWriter(with_graph, target, graph=True, plain=call, most_kept=MOST_BYTES)
        return with_result_orders(*compile_call(writer, facts, scalars), plan)[0], writer.graphs

    updates = bool(plan.segmentation.fusion.aliases or plan.output_buffers or plan.donated)
    return RepeatedCall(call, make, target.device.is_recording, updates), text


class RepeatedCall:
    """A call that becomes one with graphs, and stays one while they are launched again. Thread-safe.

    plain: the call without graphs. make: returns the call with graphs, and these. is_recording: whether the caller
    records the work on the current stream. updates: whether calls write memory that they also read.
    """

    def __init__(
        self, plain: Call, make: Callable[[], tuple[Call, list[LaunchGraph]]], is_recording: Callable[[], bool],
        updates: bool,
    ) -> None:  # fmt: skip
        self._plain, self._make, self._is_recording, self._updates = plain, make, is_recording, updates
        self._run: Call = self._count
        self._calls = 0
        self._changes = 0
        self._lock = threading.Lock()
        self._graphed: Call = plain
        self._graphs: list[LaunchGraph] = []

    def __call__(self, arguments: Sequence[Any]) -> list[Any] | None:
        return self._run(arguments)

    def _count(self, arguments: Sequence[Any]) -> list[Any] | None:
        results = self._plain(arguments)
        if results is not None:
            self._calls += 1
            if self._calls >= CALLS_BEFORE and not self._is_recording() and self._lock.acquire(blocking=False):
                try:
                    if self._run == self._count:
                        self._graphed, self._graphs = self._make()
                        self._calls, self._run = 0, self._launch
                finally:
                    self._lock.release()
        return results

    def _launch(self, arguments: Sequence[Any]) -> list[Any] | None:
        if self._is_recording():
            return self._plain(arguments)
        self._calls += 1
        if self._calls >= WINDOW:
            changes, size = sum(graph.changes for graph in self._graphs), sum(graph.size for graph in self._graphs)
            if changes - self._changes > WINDOW * size // 2:
                self._stop()
            self._calls, self._changes = 0, changes
        try:
            return self._graphed(arguments)
        except (OutOfMemoryError, DeviceError):
            # Without a graph, a call needs less memory. One that writes what it reads must not run twice.
            self._stop()
            if self._updates:
                raise
        return self._plain(arguments)

    def _stop(self) -> None:
        """Goes back to calls without graphs, for good."""
        self._run, self._graphed, self._graphs = self._plain, self._plain, []
