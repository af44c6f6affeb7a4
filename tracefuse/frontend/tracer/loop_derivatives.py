"""Derivatives of loops and branches."""

from __future__ import annotations
from typing import Any, Sequence
def loop_cotangents(node: Any, given: Sequence[Any]) -> Sequence[Any]:
    raise NotImplementedError
def loop_tangents(node: Any, given: Sequence[Any]) -> Sequence[Any]:
    raise NotImplementedError
