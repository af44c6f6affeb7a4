"""tracefuse: NumPy-style functions recorded, split into segments and compiled for NumPy and CuPy arrays.

Importing this loads neither cupy, jax, torch nor llvmlite. What is heavier to load is loaded at its first use.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

import segments as _segments

if not hasattr(_segments, "IndexMap") and not os.path.isfile(
    os.path.join(os.path.dirname(_segments.__file__ or ""), "partition.py")
):
    raise ImportError(
        f"the package 'segments' at {_segments.__file__} is not the one that tracefuse comes with: uninstall the other "
        "distribution that installs a top-level 'segments', then reinstall tracefuse"
    )

from tracefuse.errors import (
    CompileError,
    ConcretizationError,
    DeviceError,
    DtypeError,
    FusionError,
    InternalError,
    OptionError,
    OutOfMemoryError,
    OutOfRangeError,
    ScalarError,
    ShapeError,
    TraceError,
    TracefuseError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from tracefuse.arrays import ShapeDtype
    from tracefuse.caches import clear_caches
    from tracefuse.calls.printed_values import debug_print
    from tracefuse.config import options
    from tracefuse.diagnosis.configuration import show_config
    from tracefuse.dtypes import DataType
    from tracefuse.fused import fuse
    from tracefuse.parallel import ParallelType
    from tracefuse.pytrees import register_pytree_node
    from tracefuse.tracer.streams import stream_parallel

__version__ = "0.1.0"

__all__ = [
    "CompileError",
    "ConcretizationError",
    "DataType",
    "DeviceError",
    "DtypeError",
    "FusionDefinition",
    "FusionError",
    "InternalError",
    "OptionError",
    "OutOfMemoryError",
    "OutOfRangeError",
    "ParallelType",
    "ScalarError",
    "ShapeDtype",
    "ShapeError",
    "TraceError",
    "TracefuseError",
    "UnsupportedError",
    "__version__",
    "clear_caches",
    "debug_print",
    "fuse",
    "options",
    "register_pytree_node",
    "rules",
    "show_config",
    "stream_parallel",
    "xp",
]

# Public names by the module that has them; None where the name is a module itself.
_WHERE = {
    "DataType": "dtypes",
    "FusionDefinition": "definition",
    "ParallelType": "parallel",
    "ShapeDtype": "arrays",
    "clear_caches": "caches",
    "debug_print": "calls.printed_values",
    "fuse": "fused",
    "options": "config",
    "register_pytree_node": "pytrees",
    "rules": None,
    "show_config": "diagnosis.configuration",
    "stream_parallel": "tracer.streams",
    "xp": None,
}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tracefuse' has no attribute {name!r}")
    module = importlib.import_module(f"tracefuse.{_WHERE[name] or name}")
    found = module if _WHERE[name] is None else getattr(module, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
