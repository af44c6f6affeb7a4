"""Records the function of a sub-fusion, as printed definitions have it, as a definition of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from tracefuse.ir.fusion import Fusion


def part_recorder(definition: Callable[..., Any]) -> Callable[[Callable[[Any], None]], Fusion]:
    """Returns a function that records a function `part(fd)` and returns its fusion. definition: makes a definition."""

    def record(function: Callable[[Any], None]) -> Fusion:
        with definition(ids=itertools.count(1)) as part:
            function(part)
        fusion: Fusion = part.fusion
        return fusion

    return record
