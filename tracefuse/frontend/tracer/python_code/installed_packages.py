"""Which modules are code of the user, and which belong to Python or to an installed package.

Must not know: traces.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_LIBRARIES = sys.stdlib_module_names | {
    *("numpy", "cupy", "cupyx", "jax", "jaxlib", "torch", "tracefuse", "segments"),
    *("scipy", "skimage", "bottleneck", "pywt", "sklearn", "statsmodels", "hmmlearn", "pandas", "xarray", "numba"),
    *("flax", "equinox", "optax"),
}
"""Libraries whose modules, classes and functions are never state of the user."""
_TRACED_PACKAGES: set[str] = set()
"""Installed packages with fused functions: their code is that of the user."""


def count_as_users(function: Any) -> None:
    """Makes the package of a function that is fused code of the user, also where the package is installed.

    Its functions are traced as clones, and its globals and objects are captured state.
    """
    owner = getattr(function, "__self__", function)  # a method may be one that a class of a library defines
    module = getattr(function if owner is function else type(owner), "__module__", None) or type(function).__module__
    package = module.partition(".")[0]
    if package not in _LIBRARIES:
        _TRACED_PACKAGES.add(package)


def is_of_library(module: str | None) -> bool:
    """Whether a module belongs to Python or to an installed package, of which no function is fused."""
    top = (module or "").partition(".")[0]
    if top in _LIBRARIES:  # polynomials hold arrays and compute in Python: they are traced as the user's classes are
        return not (module or "").startswith("numpy.polynomial")
    if top in _TRACED_PACKAGES:
        return False
    file = vars(sys.modules[top]).get("__file__") if top in sys.modules else None
    if not isinstance(file, str):
        return False
    return f"{os.sep}site-packages{os.sep}" in file or f"{os.sep}dist-packages{os.sep}" in file
