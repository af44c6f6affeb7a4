"""tracefuse: traces NumPy-style functions, splits them into segments and compiles them for NumPy and CuPy arrays.

Importing the package loads none of cupy, jax, torch and llvmlite; public names load their modules at first use.
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
        f"the package 'segments' at {_segments.__file__} is not tracefuse's: uninstall the other "
        "distribution that installs a top-level 'segments', then reinstall tracefuse"
    )

from tracefuse.errors import (
    AxisError,
    CompileError,
    ConcretizationError,
    DeviceError,
    DtypeError,
    FusionError,
    IntegerRangeError,
    InternalError,
    OptionError,
    OutOfMemoryError,
    OutOfRangeError,
    ReadOnlyError,
    ScalarError,
    ShapeError,
    TraceError,
    TracefuseError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from tracefuse.config import options
    from tracefuse.diagnostics.configuration import show_config
    from tracefuse.dtypes import DataType
    from tracefuse.frontend.cache_clearing import clear_caches
    from tracefuse.frontend.control_flow_functions import cond, fori_loop, scan, while_loop
    from tracefuse.frontend.fuse import fuse
    from tracefuse.frontend.tracer.printed_values import debug_print
    from tracefuse.frontend.tracer.stream_parallel import stream_parallel
    from tracefuse.ir.parallel_types import ParallelType
    from tracefuse.pytrees import register_pytree_node
    from tracefuse.runtime.devices.arrays import ShapeDtype

__version__ = "0.1.0"

__all__ = [
    "AxisError",
    "CompileError",
    "ConcretizationError",
    "DataType",
    "DeviceError",
    "DtypeError",
    "FusionDefinition",
    "FusionError",
    "IntegerRangeError",
    "InternalError",
    "OptionError",
    "OutOfMemoryError",
    "OutOfRangeError",
    "ParallelType",
    "ReadOnlyError",
    "ScalarError",
    "ShapeDtype",
    "ShapeError",
    "TraceError",
    "TracefuseError",
    "UnsupportedError",
    "__version__",
    "clear_caches",
    "cond",
    "debug_print",
    "fori_loop",
    "fuse",
    "options",
    "register_pytree_node",
    "rules",
    "scan",
    "show_config",
    "stream_parallel",
    "while_loop",
    "xp",
]

# The module and attribute of each public name; None if the name is the module itself.
_WHERE = {
    "DataType": ("dtypes", "DataType"),
    "FusionDefinition": ("definition.fusion_definition", "FusionDefinition"),
    "ParallelType": ("ir.parallel_types", "ParallelType"),
    "ShapeDtype": ("runtime.devices.arrays", "ShapeDtype"),
    "clear_caches": ("frontend.cache_clearing", "clear_caches"),
    "cond": ("frontend.control_flow_functions", "cond"),
    "debug_print": ("frontend.tracer.printed_values", "debug_print"),
    "fori_loop": ("frontend.control_flow_functions", "fori_loop"),
    "fuse": ("frontend.fuse", "fuse"),
    "options": ("config", "options"),
    "register_pytree_node": ("pytrees", "register_pytree_node"),
    "rules": ("partition.predicates", None),
    "scan": ("frontend.control_flow_functions", "scan"),
    "show_config": ("diagnostics.configuration", "show_config"),
    "stream_parallel": ("frontend.tracer.stream_parallel", "stream_parallel"),
    "while_loop": ("frontend.control_flow_functions", "while_loop"),
    "xp": ("frontend.xp", None),
}

_BESIDE = {"fuse": "frontend.xp"}
"""What is loaded with a public name: the namespace that traced arrays return."""


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'tracefuse' has no attribute {name!r}")
    module_name, attribute = _WHERE[name]
    module = importlib.import_module(f"tracefuse.{module_name}")
    if name in _BESIDE:
        importlib.import_module(f"tracefuse.{_BESIDE[name]}")
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
