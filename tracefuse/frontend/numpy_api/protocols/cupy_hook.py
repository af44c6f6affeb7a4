"""CuPy's ufuncs on traced values: the hook that CuPy calls for arguments that are not its own arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse.frontend.numpy_api.protocols import dispatch
from tracefuse.frontend.numpy_api.protocols.elementwise import angle, clip
from tracefuse.frontend.numpy_api.protocols.ufuncs import call_loop, result_signature
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, missing, refuse
from tracefuse.ops import REGISTRY

# CuPy kernels whose name is not "cupy_" followed by the name of a NumPy ufunc.
_CUPY_OPS = {
    "cupy_copy": "set", "cupy_where": "where", "cupyx_scipy_special_erf": "erf", "cupyx_scipy_special_expit": "sigmoid",
    "cupyx_scipy_expit": "sigmoid", "cupyx_scipy_special_erfc": "erfc",
}  # fmt: skip


def call_cupy_kernel(kernel: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Records a call of the CuPy ufunc `kernel`, which is identified by its name.

    CuPy passes the caller's arguments unchanged; output arrays may follow the `nin` inputs. Raises UnsupportedError for
    other kernels.
    """
    name = getattr(kernel, "name", type(kernel).__name__)
    count = getattr(kernel, "nin", len(arguments))
    inputs, outs = arguments[:count], arguments[count:]
    out, dtype = keywords.pop("out", None), keywords.pop("dtype", None)
    keywords.pop("casting", None)
    refuse(name, where=keywords.pop("_where", None), **keywords)
    op, ufunc = _CUPY_OPS.get(name), getattr(np, name.removeprefix("cupy_"), None)
    if name == "cupy_clip":
        result = clip(*inputs)
    elif name == "cupy_angle_deg":
        result = angle(*inputs, deg=True)
    elif op in REGISTRY:
        result = apply(str(op), *inputs, compute_in=dtype)
    elif name.startswith("cupy_") and isinstance(ufunc, np.ufunc):
        result = call_loop(ufunc, inputs, result_signature(ufunc, dtype))
    elif name.startswith("cupy_") and ufunc in dispatch.FUNCTIONS and dtype is None:
        result = dispatch.call(ufunc, inputs, {})
    else:
        raise missing(
            f"the CuPy kernel {name}", "write it with NumPy's functions, or call it outside the fused function"
        )
    targets = (out if isinstance(out, tuple) else (out,)) if out is not None else tuple(outs)
    if not targets:
        return result
    results = result if isinstance(result, tuple) else (result,)
    stored = tuple(r if t is None else into(t, r) for r, t in zip(results, targets, strict=True))
    return stored if isinstance(result, tuple) else stored[0]
