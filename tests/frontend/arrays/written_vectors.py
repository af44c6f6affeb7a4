"""A captured vector that functions write, and the arrays of a result."""

from __future__ import annotations

from typing import Any

import numpy as np

CAPTURED = np.arange(5.0)


def leaves(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [] if result is None else [result]
