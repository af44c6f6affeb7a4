"""An array, a global and a count of traces for the tests of fuse."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from tracefuse import fuse
from tracefuse.frontend.fuse import FusedFunction

A = np.arange(12, dtype=np.float32).reshape(3, 4)
reference = functools.partial(fuse, target="reference")


def traces(function: FusedFunction[Any, Any]) -> int:
    return function.cache_info().traces
