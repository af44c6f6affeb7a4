"""SciPy's functions while a function is traced: twins that record, in the clone that a trace runs.

SciPy is never imported here. If the program imported one of its modules, the functions in it are replaced by their
twins, which call the original if no argument is traced.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tracefuse.caches import memoized
from tracefuse.errors import UnsupportedError
from tracefuse.frontend.numpy_api.algebra import norms
from tracefuse.frontend.numpy_api.formulas import special_functions
from tracefuse.frontend.numpy_api.library_calls.sampled_functions import record_library_call
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import call_whole, implementation_of
from tracefuse.frontend.tracer.array_ops.state_calls import NOT_OF_STATE, call_on_state
from tracefuse.frontend.tracer.array_ops.traced_ops import located
from tracefuse.frontend.tracer.effects.caught_errors import handler_around
from tracefuse.frontend.tracer.libraries.stage_calls import call_between_stages, call_or_refuse
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import holds_traced
from tracefuse.ops.scipy_functions import PATHS, op_of


def _lu_factor(a: Any, **more: Any) -> Any:
    return call_whole(op_of("linalg.lu_factor"), "scipy.linalg.lu_factor", {"a": a, **more})


def _cho_factor(a: Any, lower: bool = False, **more: Any) -> Any:
    parameters = {"a": a, "lower": bool(lower), **more}
    return call_whole(op_of("linalg.cho_factor"), "scipy.linalg.cho_factor", parameters), lower


def _cho_solve(c_and_lower: Any, b: Any, **more: Any) -> Any:
    factor, lower = c_and_lower
    parameters = {"c": factor, "lower": bool(lower), "b": b, **more}
    return call_whole(op_of("linalg.cho_solve"), "scipy.linalg.cho_solve", parameters)


def _lu_solve(lu_and_piv: Any, b: Any, trans: int = 0, **more: Any) -> Any:
    factors, pivots = lu_and_piv
    parameters = {"lu": factors, "piv": pivots, "b": b, "trans": trans, **more}
    return call_whole(op_of("linalg.lu_solve"), "scipy.linalg.lu_solve", parameters)


def _rotate(input: Any, angle: Any, axes: Any = (1, 0), reshape: bool = False, **more: Any) -> Any:
    parameters = {"input": input, "angle": angle, "axes": axes, "reshape": False, **more}
    return call_whole(op_of("ndimage.rotate"), "scipy.ndimage.rotate", parameters)


def _label(input: Any, structure: Any = None, **more: Any) -> Any:
    parameters = {"input": input, "structure": structure, **more}
    labels, count = call_whole(op_of("ndimage.label"), "scipy.ndimage.label", parameters)
    return labels, count.recorder.python_number(count, "int")


def _norm(a: Any, ord: Any = None, axis: Any = None, keepdims: bool = False, check_finite: bool = True) -> Any:
    return norms.norm(a, ord, axis, keepdims)


_OWN: dict[str, Callable[..., Any]] = {
    "special.softmax": special_functions.softmax, "special.log_softmax": special_functions.log_softmax,
    "special.logsumexp": special_functions.logsumexp, "special.softplus": special_functions.softplus,
    "linalg.lu_factor": _lu_factor, "linalg.cho_factor": _cho_factor,
    "linalg.cho_solve": _cho_solve, "linalg.lu_solve": _lu_solve, "linalg.norm": _norm, "ndimage.rotate": _rotate,
    "ndimage.label": _label,
}  # fmt: skip
"""Functions whose arguments or results are not those of their op."""


_BEYOND_OP = {"signal.lfilter": ("zi", None), "signal.sosfilt": ("zi", None), "ndimage.rotate": ("reshape", False)}
"""Parameters that change the results of a function, with the values for which the op has a shape rule."""


def _is_beyond_op(path: str, function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Whether a parameter has a value that gives results for which the op has no shape rule."""
    if path not in _BEYOND_OP:
        return False
    name, known = _BEYOND_OP[path]
    bound = inspect.signature(function).bind(*arguments, **keywords)
    bound.apply_defaults()
    return bound.arguments[name] is not known


@memoized("what records functions of SciPy", key="path and function", most=512)
def _twin(path: str, function: Any) -> Callable[..., Any]:
    """Returns what records a function of SciPy; made at its first call."""
    recording: list[Callable[..., Any]] = []

    def call(*arguments: Any, **keywords: Any) -> Any:
        if not (holds_traced((arguments, keywords)) or any(isinstance(v, SymbolicSize) for v in keywords.values())):
            return function(*arguments, **keywords)
        result = call_on_state(function, arguments, keywords)
        if result is not NOT_OF_STATE:
            return result
        if path.startswith("linalg.") and handler_around() == "try":
            with suppress(UnsupportedError):
                return call_between_stages(function, f"scipy.{path}", arguments, keywords)
        if _is_beyond_op(path, function, arguments, keywords):
            return located(record_library_call)(f"scipy.{path}", arguments, keywords)
        if not recording:
            recording.append(located(_OWN[path] if path in _OWN else implementation_of(op_of(path), function)))
        try:
            return recording[0](*arguments, **keywords)
        except UnsupportedError as refusal:
            return call_or_refuse(function, f"scipy.{path}", arguments, keywords, refusal)

    call.__name__, call.__doc__, call.__wrapped__ = function.__name__, function.__doc__, function  # type: ignore[attr-defined]
    return call


def recording_functions(root: str) -> dict[int, Callable[..., Any]]:
    """Returns the twins of the functions of the imported modules below `root`, "scipy" or "cupyx.scipy", by id."""
    twins = {}
    for name, paths in _PATHS_BY_MODULE.items():
        module = sys.modules.get(f"{root}.{name}")
        for path, attribute in paths if module is not None else ():
            function = getattr(module, attribute, None)
            if function is not None:
                twins[id(function)] = _twin(path, function)
    return twins


def _paths_by_module() -> dict[str, list[tuple[str, str]]]:
    paths: dict[str, list[tuple[str, str]]] = {}
    for path in (*PATHS, *_OWN):
        module, _, name = path.rpartition(".")
        paths.setdefault(module, []).append((path, name))
    return paths


_PATHS_BY_MODULE = _paths_by_module()
"""The paths of the functions, each with its name in the module; modules without the root."""


def module_names(root: str) -> tuple[str, ...]:
    """Returns the names of the modules below `root` whose functions have twins, and those that lead to them."""
    return (root.partition(".")[0], root, *(f"{root}.{module}" for module in _PATHS_BY_MODULE))
