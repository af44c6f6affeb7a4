"""SciPy's functions while a function is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MODULES: tuple[str, ...] = ()


def recording_functions() -> dict[int, Callable[..., Any]]:
    return {}
