"""Registration of implementations by NumPy's function object.

Each module of `numpy_api` fills a table of its own; `dispatch` merges the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse.frontend.numpy_api.registration.result_order import ordered
from tracefuse.frontend.tracer.array_ops.traced_ops import located


def functions(*names: str) -> list[Any]:
    """Returns the functions of these names that the installed NumPy has; some came after version 2.0."""
    return [getattr(np, name) for name in names if hasattr(np, name)]


class Functions(dict[Any, Callable[..., Any]]):
    """Implementations on traced values, by NumPy's function object."""

    def implements(self, *functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Registers an implementation of `functions`.

        Errors without a line get the user's, and new arrays the order in memory of NumPy's.
        """

        def register(implementation: Callable[..., Any]) -> Callable[..., Any]:
            with_line = located(ordered(functions[0], implementation) if functions else implementation)
            self.update(dict.fromkeys(functions, with_line))
            return with_line

        return register
