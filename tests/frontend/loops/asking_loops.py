"""Copies of arguments, for a function that writes them."""

from __future__ import annotations

from typing import Any

import numpy as np


def copies(arguments: Any) -> list[Any]:
    return [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
