"""What to write instead of the methods that tensors of other libraries have and NumPy's arrays lack.

A template has `{x}` for the array and `{0}` for all arguments of the call, as the user wrote them.
"""

from __future__ import annotations

import ast
from types import FrameType
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import NoAttributeError
from tracefuse.frontend.numpy_api.hints.foreign_functions import formula_of_torch
from tracefuse.frontend.numpy_api.hints.replacements import expression_at

_ALREADY_PLACED = "leave it out: the fused function runs where its arguments are"
_TYPES = {
    "float": "np.float32", "double": "np.float64", "half": "np.float16", "long": "np.int64", "int": "np.int32",
    "short": "np.int16", "bool": "bool",
}  # fmt: skip
_ELEMENTWISE = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "exp", "expm1", "floor", "isfinite", "isinf", "isnan", "log",
    "log10", "log1p", "log2", "maximum", "minimum", "sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc",
)  # fmt: skip
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}
TEMPLATES = {
    **{name: f"write {{x}}.astype({dtype})" for name, dtype in _TYPES.items()},
    **{name: f"write np.{name}({{x}}{{more}})" for name in _ELEMENTWISE},
    **dict.fromkeys(("cpu", "cuda", "to", "to_device", "pin_memory"), _ALREADY_PLACED),
    **dict.fromkeys(("detach", "numpy", "values", "to_numpy", "block_until_ready", "contiguous"), "write {x}"),
    **dict.fromkeys(("iloc", "loc", "iat"), "index the array itself, as in {x}[0]"),
    **dict.fromkeys(("map", "apply", "applymap"), "call the function on the array, with np.where for its cases"),
    **{f"{name}_": f"write np.{name}({{x}}, out={{x}})" for name in _ELEMENTWISE if name not in ("maximum", "minimum")},
    **{f"{name}_": f"write {{x}} {sign}= {{0}}" for name, sign in _SIGNS.items()},
    **dict.fromkeys(("fill_", "copy_"), "write {x}[...] = {0}"),
    "append": "write np.append({x}, {0})",
    "bmm": "write {x} @ {0}",
    "clamp": "write np.clip({x}, {0})",
    "clamp_": "write np.clip({x}, {0}, out={x})",
    "clone": "write {x}.copy()",
    "cat": "write np.concatenate([{x}, {0}])",
    "dim": "write {x}.ndim",
    "expand": "write np.broadcast_to({x}, ({0}))",
    "extend": "write np.append({x}, {0})",
    "flip": "write np.flip({x}, ({0}))",
    "get": "return the array and call get() on the result",
    "matmul": "write {x} @ {0}",
    "mm": "write {x} @ {0}",
    "mv": "write {x} @ {0}",
    "norm": "write np.linalg.norm({x})",
    "numel": "write {x}.size",
    "permute": "write np.transpose({x}, ({0}))",
    "pow": "write {x} ** {0}",
    "relu": "write np.maximum({x}, 0)",
    "rsqrt": "write 1 / np.sqrt({x})",
    "sigmoid": "write 1 / (1 + np.exp(-{x}))",
    "t": "write {x}.T",
    "tile": "write np.tile({x}, ({0}))",
    "tofile": "return the array and write it outside",
    "unsqueeze": "write np.expand_dims({x}, {0})",
    "zero_": "write {x}[...] = 0",
}
"""Methods and attributes of tensors of PyTorch, JAX and CuPy, of lists, and of columns of pandas, by name."""


_OF_TORCH = {
    "cat": "concatenate", "concat": "concatenate", "clamp": "clip", "mm": "matmul", "bmm": "matmul", "mv": "matmul",
    "pow": "power", "div": "divide", "mul": "multiply", "sub": "subtract", "abs": "abs", "permute": "transpose",
    "unsqueeze": "expand_dims",
}  # fmt: skip
"""Functions of NumPy that take the arguments of functions of torch with other names."""
_GENERAL = "use the function of np or of tracefuse.xp"
_OF_TORCH_KEYWORDS = {"dim": "axis", "keepdim": "keepdims", "input": "a"}


def instead_of_torch(function: Any) -> str:
    """The hint for a function of torch that the user's line calls with a traced array."""
    frame, name = source.user_frame(), getattr(function, "__name__", "")
    call = None if frame is None else expression_at(frame, frame.f_lasti)
    name = _OF_TORCH.get(name, name)
    if not isinstance(call, ast.Call) or not call.args or not name:
        return _GENERAL
    if callable(getattr(np, name, None)):
        keywords = [f"{_OF_TORCH_KEYWORDS.get(k.arg or '', k.arg)}={ast.unparse(k.value)}" for k in call.keywords]
        return f"write np.{name}({', '.join([*map(ast.unparse, call.args), *keywords])})"
    if name not in TEMPLATES:
        return formula_of_torch(name, call) or _GENERAL
    rest = ", ".join(map(ast.unparse, call.args[1:]))
    return TEMPLATES[name].replace("{x}", ast.unparse(call.args[0])).replace("{0}", rest).replace("{more}", "")


def no_attribute(name: str) -> NoAttributeError:
    """Returns the error for an attribute that a traced array lacks, with what to write for it in the user's line."""
    frame, template = source.user_frame(), TEMPLATES.get(name)
    hint = None if template is None or frame is None else _filled(template, name, frame)
    return NoAttributeError(f"a traced array has no attribute {name!r}", hint=hint, where=source.user_line())


def _filled(template: str, name: str, frame: FrameType) -> str:
    """A template with the array and the arguments that the user's line has; general names where it is no such line."""
    array, arguments = "x", "..."
    owner = expression_at(frame, frame.f_lasti)
    if isinstance(owner, ast.Attribute) and owner.attr == name:
        array = ast.unparse(owner.value)
        arguments = _arguments(ast.unparse(owner), frame) or arguments
    more = "" if arguments == "..." else f", {arguments}"
    return template.replace("{x}", array).replace("{0}", arguments).replace("{more}", more)


def _arguments(callee: str, frame: FrameType) -> str | None:
    """The positional arguments of the call of an attribute that follows the instruction of a frame, as text."""
    positions = list(frame.f_code.co_positions())
    line = positions[frame.f_lasti // 2][0]
    for instruction in range(frame.f_lasti // 2 + 1, len(positions)):
        if positions[instruction][0] != line:
            return None
        node = expression_at(frame, 2 * instruction)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == callee:
            return ", ".join(map(ast.unparse, node.args)) or None
    return None
