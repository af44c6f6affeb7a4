"""An argument and an object for the tests of loops and branches."""

from __future__ import annotations

import numpy as np

X = np.linspace(-1, 1, 7)


class Counter:
    """An object whose attributes, list and array a body writes."""

    def __init__(self) -> None:
        self.count, self.total, self.history = 0, np.zeros(3), [0]
