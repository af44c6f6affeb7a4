"""The names of nvFuser's newer frontend, `nvfuser_direct`: those of `tracefuse.nvfuser`.

One class of definitions takes the calls of both frontends.
"""

from __future__ import annotations

import sys

from tracefuse.nvfuser import (
    DataType,
    FusionCache,
    FusionDefinition,
    FusionProfile,
    KernelProfile,
    LRUCache,
    LruFusionCache,
    ParallelType,
    Scalar,
    Tensor,
    TensorView,
    Vector,
    __version__,
    clone,
    compute_contiguity,
    compute_tensor_descriptor,
    pytorch_utils,
    version,
)

# `from tracefuse.nvfuser_direct.pytorch_utils import ...` finds the one module.
sys.modules[f"{__name__}.pytorch_utils"] = pytorch_utils

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
