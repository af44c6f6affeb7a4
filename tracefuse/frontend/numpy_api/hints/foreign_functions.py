"""What to write instead of functions of SciPy and JAX that take no traced arrays: code with the call's own arguments.

A template has `{x}`, `{y}` and `{z}` for the first three arguments of the call.
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

_LARGEST = "{x}.max(-1, keepdims=True)"
_OF_JAX = {
    "elu": "np.where({x} > 0, {x}, np.expm1({x}))",
    "erf": "scipy.special.erf({x})",
    "gelu": "0.5 * {x} * (1 + np.tanh(np.sqrt(2 / np.pi) * ({x} + 0.044715 * {x} ** 3)))",
    "leaky_relu": "np.where({x} >= 0, {x}, 0.01 * {x})",
    "log_sigmoid": "-np.logaddexp(0, -{x})",
    "log_softmax": f"{{x}} - {_LARGEST} - np.log(np.exp({{x}} - {_LARGEST}).sum(-1, keepdims=True))",
    "logsumexp": "np.log(np.exp({x} - {x}.max()).sum()) + {x}.max()",
    "relu": "np.maximum({x}, 0)",
    "relu6": "np.clip({x}, 0, 6)",
    "rsqrt": "1 / np.sqrt({x})",
    "select": "np.where({x}, {y}, {z})",
    "sigmoid": "1 / (1 + np.exp(-{x}))",
    "silu": "{x} / (1 + np.exp(-{x}))",
    "softmax": f"np.exp({{x}} - {_LARGEST}) / np.exp({{x}} - {_LARGEST}).sum(-1, keepdims=True)",
    "softplus": "np.logaddexp({x}, 0)",
    "stop_gradient": "{x}",
}
"""Functions of JAX, by name."""

_OF_TRACEFUSE = frozenset(
    ("scan", "fori_loop", "while_loop", "cond", "grad", "value_and_grad", "vjp", "jvp", "checkpoint")
)
"""Functions of JAX that tracefuse has with the same parameters."""

_SENTENCES = {
    "map": "write a Python loop over the rows, and np.stack of its results",
    "switch": "branch on the index with if, or nest tracefuse.cond",
    "jit": "call the function itself: the fused function records it",
    "vmap": "write the function for arrays with one more axis",
}
"""Functions of JAX whose replacement is not one expression."""


def library_of(function: Any) -> str:
    """The top-level package of a function, or of the object that a method belongs to."""
    owner = getattr(function, "__self__", None)
    modules = (
        getattr(candidate, "__module__", None) or type(candidate).__module__
        for candidate in (function, owner)
        if candidate is not None
    )
    return next((m.partition(".")[0] for m in modules if m and not m.startswith("builtins")), "")


def instead_of(call: ast.Call, function: Any) -> str | None:
    """The hint for a call of a function of SciPy or JAX; None for functions of other libraries."""
    library = library_of(function)
    if library not in ("scipy", "jax", "jaxlib"):
        return None
    text = ast.unparse(call.func)
    name = getattr(function, "__name__", text).rpartition(".")[2]
    if library == "scipy":
        return f"call {text} outside the fused function and pass its result in"
    return f"{_instead_of_jax(name, text, call)}{OR_JAX}"


OR_JAX = ", or name the frontend: @fuse(frontend='jax')"
"""The other replacement for a call of a function of JAX."""


def _instead_of_jax(name: str, text: str, call: ast.Call) -> str:
    template = _OF_JAX.get(name)
    if template is not None:
        return _with_arguments(template, call)
    if name in _OF_TRACEFUSE:
        return f"write {_renamed(call, f'tracefuse.{name}')}"
    if name in _SENTENCES:
        return _SENTENCES[name]
    return f"write np.{name}" if callable(getattr(np, name, None)) else f"write {text} with functions of np"


def formula_of_torch(name: str, call: ast.Call) -> str | None:
    """The hint for a function of torch by a formula, over the axis that the call names; None for other functions."""
    template = _OF_JAX.get(name)
    if template is None:
        return None
    axes = [keyword.value for keyword in call.keywords if keyword.arg == "dim"]
    axes += call.args[1:2] if "softmax" in name else []
    axis = ast.unparse(axes[0]) if axes else "-1"
    return f"write {_filled(template.replace('(-1,', f'({axis},'), ast.unparse(call.args[0]))}"


def _renamed(call: ast.Call, name: str) -> str:
    """The code of a call with another function; of `jax.grad(f)(x)` the first call has it."""
    first = call.func if isinstance(call.func, ast.Call) else call
    return name + ast.unparse(call).removeprefix(ast.unparse(first.func))


def _with_arguments(template: str, call: ast.Call) -> str:
    names = [ast.unparse(argument) for argument in call.args]
    return f"write {_filled(template, *names, *('x', 'y', 'z')[len(names) :])}"


def _filled(template: str, x: str, y: str = "y", z: str = "z") -> str:
    """A template with arguments, in parentheses where they are more than a name, a call or an element."""
    return template.format(x=_enclosed(x), y=_enclosed(y), z=_enclosed(z))


def _enclosed(text: str) -> str:
    simple = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)
    is_enclosed = text.startswith("(") and text.endswith(")")
    return text if is_enclosed or isinstance(ast.parse(text, mode="eval").body, simple) else f"({text})"
