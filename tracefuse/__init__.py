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
    CommunicationError,
    CompileError,
    ConcretizationError,
    DeviceError,
    DtypeError,
    FusionError,
    IndexTypeError,
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
    from tracefuse.frontend.control_flow.control_flow_functions import cond, fori_loop, scan, while_loop
    from tracefuse.frontend.derivatives.gradients import checkpoint, grad, jvp, value_and_grad, vjp
    from tracefuse.frontend.fuse_decorator import fuse
    from tracefuse.frontend.ranks import rank_functions as collectives
    from tracefuse.frontend.ranks.sharded_array import (
        ShardedArray,
        from_local,
        make_mesh,
        reshard,
        shard,
        unshard,
    )
    from tracefuse.frontend.ranks.sharded_map import shard_map
    from tracefuse.frontend.tracer.array_ops.stream_parallel import stream_parallel
    from tracefuse.frontend.tracer.effects.printed_values import debug_print
    from tracefuse.ir.parallel_types import ParallelType
    from tracefuse.ir.shardings import DeviceMesh, Sharding
    from tracefuse.pytrees import register_pytree_node
    from tracefuse.runtime.compile_all import wait_for_compilation
    from tracefuse.runtime.devices.shape_dtype import ShapeDtype

__version__ = "0.1.0"

__all__ = [
    "AxisError",
    "CommunicationError",
    "CompileError",
    "ConcretizationError",
    "DataType",
    "DeviceError",
    "DeviceMesh",
    "DtypeError",
    "FusionDefinition",
    "FusionError",
    "IndexTypeError",
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
    "ShardedArray",
    "Sharding",
    "TraceError",
    "TracefuseError",
    "UnsupportedError",
    "__version__",
    "checkpoint",
    "clear_caches",
    "collectives",
    "cond",
    "debug_print",
    "fori_loop",
    "from_local",
    "fuse",
    "grad",
    "jvp",
    "make_mesh",
    "options",
    "register_pytree_node",
    "reshard",
    "rules",
    "scan",
    "shard",
    "shard_map",
    "show_config",
    "stream_parallel",
    "unshard",
    "value_and_grad",
    "vjp",
    "wait_for_compilation",
    "while_loop",
    "xp",
]

# The module and attribute of each public name; None if the name is the module itself.
_WHERE = {
    "DataType": ("dtypes", "DataType"),
    "DeviceMesh": ("ir.shardings", "DeviceMesh"),
    "FusionDefinition": ("definition.fusion_definition", "FusionDefinition"),
    "ParallelType": ("ir.parallel_types", "ParallelType"),
    "ShapeDtype": ("runtime.devices.shape_dtype", "ShapeDtype"),
    "ShardedArray": ("frontend.ranks.sharded_array", "ShardedArray"),
    "Sharding": ("ir.shardings", "Sharding"),
    "checkpoint": ("frontend.derivatives.gradients", "checkpoint"),
    "clear_caches": ("frontend.cache_clearing", "clear_caches"),
    "collectives": ("frontend.ranks.rank_functions", None),
    "cond": ("frontend.control_flow.control_flow_functions", "cond"),
    "debug_print": ("frontend.tracer.effects.printed_values", "debug_print"),
    "fori_loop": ("frontend.control_flow.control_flow_functions", "fori_loop"),
    "from_local": ("frontend.ranks.sharded_array", "from_local"),
    "fuse": ("frontend.fuse_decorator", "fuse"),
    "grad": ("frontend.derivatives.gradients", "grad"),
    "jvp": ("frontend.derivatives.gradients", "jvp"),
    "make_mesh": ("frontend.ranks.sharded_array", "make_mesh"),
    "options": ("config", "options"),
    "register_pytree_node": ("pytrees", "register_pytree_node"),
    "reshard": ("frontend.ranks.sharded_array", "reshard"),
    "rules": ("partition.predicates", None),
    "scan": ("frontend.control_flow.control_flow_functions", "scan"),
    "shard": ("frontend.ranks.sharded_array", "shard"),
    "shard_map": ("frontend.ranks.sharded_map", "shard_map"),
    "show_config": ("diagnostics.configuration", "show_config"),
    "stream_parallel": ("frontend.tracer.array_ops.stream_parallel", "stream_parallel"),
    "unshard": ("frontend.ranks.sharded_array", "unshard"),
    "value_and_grad": ("frontend.derivatives.gradients", "value_and_grad"),
    "vjp": ("frontend.derivatives.gradients", "vjp"),
    "wait_for_compilation": ("runtime.compile_all", "wait_for_compilation"),
    "while_loop": ("frontend.control_flow.control_flow_functions", "while_loop"),
    "xp": ("frontend.xp", None),
}

_BESIDE = {"fuse": "frontend.xp"}
"""Modules that are imported at the first use of a public name: `xp`, the namespace that traced arrays return."""


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
