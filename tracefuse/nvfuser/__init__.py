"""nvFuser's Python frontend under its names, so that its scripts run with their import changed.

    import tracefuse.nvfuser as nvfuser
    from tracefuse.nvfuser import FusionDefinition, DataType

docs/from_nvfuser.md lists the names and what is left out. Results are PyTorch tensors where a script uses PyTorch.
"""

from __future__ import annotations

from tracefuse.definition.handles import Scalar, Tensor, Vector
from tracefuse.diagnostics.segment_profiles import FusionProfile, KernelProfile
from tracefuse.dtypes import DataType
from tracefuse.ir.parallel_types import ParallelType
from tracefuse.nvfuser import pytorch_utils
from tracefuse.nvfuser.fusion_caches import FusionCache, LRUCache, LruFusionCache
from tracefuse.nvfuser.nvfuser_version import __version__, version
from tracefuse.nvfuser.script_definition import ScriptDefinition, clone
from tracefuse.nvfuser.tensor_descriptors import compute_contiguity, compute_tensor_descriptor

FusionDefinition = ScriptDefinition
TensorView = Tensor

__all__ = [
    "DataType",
    "FusionCache",
    "FusionDefinition",
    "FusionProfile",
    "KernelProfile",
    "LRUCache",
    "LruFusionCache",
    "ParallelType",
    "Scalar",
    "Tensor",
    "TensorView",
    "Vector",
    "__version__",
    "clone",
    "compute_contiguity",
    "compute_tensor_descriptor",
    "pytorch_utils",
    "version",
]
