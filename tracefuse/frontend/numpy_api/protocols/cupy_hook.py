"""CuPy's ufuncs on traced values: the hook that CuPy calls for arguments that are not its own arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import TraceError
from tracefuse.frontend.numpy_api.formulas import special_functions
from tracefuse.frontend.numpy_api.protocols import dispatch
from tracefuse.frontend.numpy_api.protocols.elementwise import angle, clip
from tracefuse.frontend.numpy_api.protocols.ufuncs import call_ufunc
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.traced_ops import apply, missing, refuse
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ops import REGISTRY

# CuPy kernels whose name is not "cupy_" followed by the name of a NumPy ufunc.
_CUPY_OPS = {
    "cupy_copy": "set", "cupy_where": "where", "cupyx_scipy_special_erf": "erf", "cupyx_scipy_special_expit": "sigmoid",
    "cupyx_scipy_expit": "sigmoid", "cupyx_scipy_special_erfc": "erfc", "cupy_rsqrt": "rsqrt",
}  # fmt: skip


def call_cupy_kernel(kernel: Any, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Records a call of the CuPy ufunc `kernel`: that of NumPy which its name tells, or one of cupyx.scipy.special.

    CuPy passes the caller's arguments unchanged; output arrays may follow the `nin` inputs. Raises UnsupportedError for
    other kernels, and TraceError for an output that is no array.
    """
    name = getattr(kernel, "name", type(kernel).__name__)
    count = getattr(kernel, "nin", len(arguments))
    inputs, targets = arguments[:count], _targets(name, arguments[count:], keywords.pop("out", None))
    ufunc = getattr(np, name.removeprefix("cupy_"), None)
    if name.startswith("cupy_") and isinstance(ufunc, np.ufunc):
        return record_ufunc(ufunc, inputs, targets, keywords)
    result = _recorded(kernel, name, inputs, keywords)
    if not targets:
        return result
    results = result if isinstance(result, tuple) else (result,)
    stored = tuple(r if t is None else into(t, r) for r, t in zip(results, targets, strict=True))
    return stored if isinstance(result, tuple) else stored[0]


def record_ufunc(ufunc: np.ufunc, inputs: Sequence[Any], targets: Sequence[Any], keywords: dict[str, Any]) -> Any:
    """Records a call of a ufunc of NumPy with the arguments of CuPy's. targets: the output arrays, if any."""
    named = {name.removeprefix("_"): value for name, value in keywords.items() if value is not None}
    return call_ufunc(ufunc, "__call__", inputs, {**named, "out": tuple(targets)} if targets else named)


def _targets(name: str, positional: Sequence[Any], out: Any) -> tuple[Any, ...]:
    """The output arrays of a call, one entry for each result; empty if there are none."""
    targets = (out if isinstance(out, tuple) else (out,)) if out is not None else tuple(positional)
    for target in targets:
        if target is not None and not isinstance(target, (Traced, np.ndarray)) and not hasattr(target, "__dlpack__"):
            raise TraceError(
                f"{name.removeprefix('cupy_')}: an output is of type {type(target).__name__}",
                hint="give an array, or leave the output out", where=source.user_line(),
            )  # fmt: skip
    return () if all(target is None for target in targets) else targets


def _recorded(kernel: Any, name: str, inputs: Sequence[Any], keywords: dict[str, Any]) -> Any:
    dtype = keywords.pop("dtype", None)
    keywords.pop("casting", None)
    op, function, special = _CUPY_OPS.get(name), getattr(np, name.removeprefix("cupy_"), None), _special_name(kernel)
    refuse(name, **keywords)
    if name == "cupy_clip":
        return clip(*inputs)
    if name == "cupy_angle_deg":
        return angle(*inputs, deg=True)
    if op in REGISTRY:
        return apply(str(op), *inputs, compute_in=dtype)
    if name.startswith("cupy_") and function in dispatch.FUNCTIONS and dtype is None:
        return dispatch.call(function, inputs, {})
    if special is not None and dtype is None:
        return special_functions.call_with_loops(special, kernel.types, inputs)
    hint = "write it with NumPy's functions, or call it outside the fused function"
    raise missing(f"the CuPy kernel {name}", hint)


def _special_name(kernel: Any) -> str | None:
    """The name under which cupyx.scipy.special has a kernel: those of two elliptic integrals are not their own."""
    module = sys.modules.get("cupyx.scipy.special")
    return next((name for name, value in vars(module).items() if value is kernel), None) if module else None
