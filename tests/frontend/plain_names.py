"""Names of builtins in a module of its own."""

from __future__ import annotations

to_float = float
