"""Functions of `heapq` on lists of the state, which they change past the methods of overlays.

Must not know: overlays of values.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable
from typing import Any

from tracefuse import source
from tracefuse.frontend.tracer.state.container_records import record_of

MODULES = (heapq,)
"""Modules with such functions."""


def _twin(function: Callable[..., Any]) -> Callable[..., Any]:
    @source.forwards
    def call(heap: Any, *arguments: Any) -> Any:
        record = record_of(heap)
        if record is not None:
            record.read_to_reorder()
        return function(heap, *arguments)

    functools.update_wrapper(call, function, assigned=("__name__", "__qualname__", "__doc__", "__module__"))
    return call


FUNCTIONS: dict[int, Callable[..., Any]] = {
    id(function): _twin(function)
    for function in (heapq.heapify, heapq.heappush, heapq.heappop, heapq.heappushpop, heapq.heapreplace)
}
"""Twins of the functions, by the id of each."""
