"""temporary"""

from __future__ import annotations
from collections.abc import Iterable

FUNCTIONS: dict[str, object] = {}


def functions(symbols: Iterable[str], declarations: dict[str, str]) -> list[str]:
    return []
