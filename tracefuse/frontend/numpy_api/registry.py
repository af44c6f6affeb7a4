"""How NumPy's functions are registered: by NumPy's own function object.

Each module of a topic has a table; `dispatch` puts them together.

Knows: tables by function. Must not know: what a function of NumPy means, traced values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse.frontend.tracer.traced_ops import located


def functions(*names: str) -> list[Any]:
    """Those of these functions that this NumPy has: some came after version 2.0."""
    return [getattr(np, name) for name in names if hasattr(np, name)]


class Functions(dict[Any, Callable[..., Any]]):
    """Meanings of functions on traced values, by function object."""

    def implements(self, *functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Registers the meaning of functions; errors without a line get the user's."""

        def register(implementation: Callable[..., Any]) -> Callable[..., Any]:
            placed = located(implementation)
            self.update(dict.fromkeys(functions, placed))
            return placed

        return register
