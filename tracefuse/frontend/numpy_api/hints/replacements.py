"""Hints for calls that do not accept a traced array: what to write instead.

Some functions ignore NumPy's protocols (np.asarray_chkfinite, `dot` of another array, SciPy's functions): they ask a
traced array for numbers, which raises. Others take arrays of their own library only (cupy.concatenate). The name of
the function comes from the user's source at the running line, which is parsed only once an error needs explaining.
"""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
import os
import re
from collections.abc import Iterator
from types import CodeType, FrameType, TracebackType
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.errors import TraceError, TracefuseError, UnsupportedError
from tracefuse.frontend.numpy_api.hints import foreign_functions, refusals
from tracefuse.frontend.tracer.values.nested_lists import leaves_of
from tracefuse.frontend.tracer.values.traced import Traced

GENERAL = "use the array's own methods, a function of np or of tracefuse.xp"
_ALREADY = "a traced array is an array: use it as it is, x.copy() or x.astype(dtype); lists of arrays go to np.stack"
_FUNCTIONS = {
    **dict.fromkeys(
        ("asarray", "array", "asanyarray", "asarray_chkfinite", "ascontiguousarray", "asfortranarray", "require"),
        _ALREADY,
    ),
    **dict.fromkeys(
        ("vectorize", "frompyfunc", "fromfunction", "nditer", "nested_iters"), refusals.OF_ARRAYS
    ),
    "asmatrix": "use @ on arrays", "matrix": "use @ on arrays", "bmat": "use np.block",
    "broadcast": "use np.broadcast_arrays(a, b)",
    "full": "write np.full_like(x, value, shape=shape) or tracefuse.xp.full(shape, value)",
    "mask_indices": "use np.where(mask, x, other)",
    **dict.fromkeys(("poly1d", "Polynomial"), "write np.polyval(p.coef[::-1], x) for p(x), with p = p.convert()"),
    "take": "write tracefuse.xp.take(array, index, axis=axis), which looks at the index too",
}  # fmt: skip

_MATH = {"pow": "power", "fsum": "sum"}
"""Functions of `math` that have another name in NumPy."""


IN_BODY = (
    "a body is recorded once, for all steps: choose with tracefuse.cond(c, f, g, *operands) or np.where(c, a, b), "
    "and repeat with tracefuse.while_loop(cond_fun, body_fun, init_val)"
)
"""The hint for a question about a value inside the body of a loop or a branch."""


def is_operator_of_jax(code: CodeType) -> bool:
    """Whether the code is JAX's of its operators, which defer to operands that they do not know."""
    return code.co_name == "deferring_binary_op" or code.co_filename.endswith("array_methods.py")


def expression_at(frame: FrameType, instruction: int) -> ast.expr | None:
    """Returns the expression that an instruction of a frame evaluates; None if the source is not available."""
    position = next(itertools.islice(frame.f_code.co_positions(), instruction // 2, None), None)
    if position is None or None in position:
        return None
    first, last, start, end = position
    lines = [linecache.getline(frame.f_code.co_filename, k, frame.f_globals) for k in range(first, last + 1)]  # type: ignore[arg-type, operator]
    if not all(lines):
        return None
    encoded = [line.encode() for line in lines]  # columns count bytes
    encoded[-1] = encoded[-1][:end]
    encoded[0] = encoded[0][start:]
    try:
        return ast.parse(f"({b''.join(encoded).decode()})", mode="eval").body
    except (SyntaxError, UnicodeDecodeError):
        return None


def value_of(node: ast.expr, frame: FrameType) -> Any:
    """Evaluates a name or a chain of attributes in a frame; None for any other expression."""
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals, frame.f_builtins):
            if node.id in names:
                return names[node.id]
    if isinstance(node, ast.Attribute):
        owner = value_of(node.value, frame)
        return None if owner is None else getattr(owner, node.attr, None)
    return None


def of_number(message: str, instead: str) -> tuple[str, str]:
    """Returns (what, hint) for a call that asks a traced array for a Python number; names functions of `math`."""
    frame = source.user_frame()
    node = None if frame is None else expression_at(frame, frame.f_lasti)
    if frame is None or not isinstance(node, ast.Call):
        return message, instead
    function = value_of(node.func, frame)
    name = _MATH.get(getattr(function, "__name__", ""), getattr(function, "__name__", ""))
    if getattr(function, "__module__", None) != "math" or not callable(getattr(np, name, None)):
        return message, instead
    return f"{ast.unparse(node.func)}()", f"write np.{name}"


ONE_ARRAY = "a traced array"


def of_elements() -> tuple[str, str, str]:
    """Returns (what, hint, of which) for the user's line that asks a traced array for its elements."""
    frame = source.user_frame()
    node = None if frame is None else expression_at(frame, frame.f_lasti)
    if frame is not None and isinstance(node, ast.Call):
        of_list = _of_list(node, frame)
        if of_list is not None:
            return of_list
    return *_of_one_array(), ONE_ARRAY


def _of_list(call: ast.Call, frame: FrameType) -> tuple[str, str, str] | None:
    """(what, hint, of which) if an argument of a function of NumPy is a list that holds traced values."""
    text = ast.unparse(call.func)
    if not callable(getattr(np, text.rpartition(".")[2], None)) or text.rpartition(".")[2] in _FUNCTIONS:
        return None
    for position, argument in enumerate(call.args):
        if _holds_traced(value_of(argument, frame)):
            arguments = [ast.unparse(operand) for operand in call.args]
            arguments[position] = f"np.array({arguments[position]})"
            arguments += [ast.unparse(operand) for operand in call.keywords]
            return f"{text}()", f"write {text}({', '.join(arguments)})", "a list that holds traced values"
    return None


def _holds_traced(value: Any) -> bool:
    """Whether a list or a tuple, or one inside of it, holds a traced value."""
    return isinstance(value, (list, tuple)) and any(isinstance(entry, Traced) for entry in leaves_of(value))


def of_jax() -> tuple[str, str]:
    """Returns (what, hint) for the user's line that gives a traced array to a function of JAX."""
    frame = source.user_frame()
    node = None if frame is None else expression_at(frame, frame.f_lasti)
    if frame is not None and isinstance(node, ast.Call):
        called = _called(node)
        hint = foreign_functions.instead_of(node, value_of(called, frame))
        if hint is not None:
            return f"{ast.unparse(called)}()", hint
    return "a jax.numpy function", f"use the function of np or of tracefuse.xp{foreign_functions.OR_JAX}"


def _called(call: ast.Call) -> ast.expr:
    """The function of a call; of np.vectorize(f)(x) and jax.grad(f)(x) the first one."""
    return call.func.func if isinstance(call.func, ast.Call) else call.func


def _instead_of_an_index(node: ast.Subscript, frame: FrameType) -> str:
    """What to write for an index of traced elements into an array that is not traced."""
    if getattr(getattr(value_of(node.value, frame), "dtype", None), "kind", "O") not in "biufc":
        return "return the index, and read the array outside of the fused function"  # such as texts
    is_single = not isinstance(node.slice, (ast.Tuple, ast.Slice))
    arguments = f"{ast.unparse(node.slice)}, axis=0" if is_single else "index, axis"
    return f"write tracefuse.xp.take({ast.unparse(node.value)}, {arguments})"


def _of_one_array() -> tuple[str, str]:
    """Returns (what, hint) for the user's line that asks a traced array for its elements."""
    frame = source.user_frame()
    node = None if frame is None else expression_at(frame, frame.f_lasti)
    if frame is None or node is None:
        return "np.asarray()", GENERAL
    if isinstance(node, ast.Subscript):
        if dis.opname[frame.f_code.co_code[frame.f_lasti]].startswith("STORE"):
            target = ast.unparse(node.value)
            hint = (
                f"begin with {target} = np.zeros_like(x, shape={target}.shape), of a traced array x, and assign to it"
            )
            return "filling a NumPy array with elements", hint
        return "indexing a NumPy array by elements", _instead_of_an_index(node, frame)
    if not isinstance(node, ast.Call):
        return "np.asarray()", GENERAL
    called = _called(node)
    function, text = value_of(called, frame), ast.unparse(called)
    foreign = foreign_functions.instead_of(node, function)
    if foreign is not None:
        return f"{text}()", foreign
    if isinstance(function, type) and issubclass(function, np.generic):
        return f"{text}()", f"write x.astype({text})"
    owner = value_of(node.func.value, frame) if isinstance(node.func, ast.Attribute) else None
    if isinstance(owner, np.ndarray) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        known = callable(getattr(np, name, None))
        return f"{text}()", f"write np.{name}({ast.unparse(node.func.value)}, ...)" if known else GENERAL
    module = getattr(function, "__module__", None) or getattr(getattr(function, "__self__", None), "__module__", "")
    if str(module).startswith(("numpy.random", "cupy.random")) or ".random." in f".{text}":
        return f"{text}()", "sample outside the fused function and pass the numbers in"
    if ".ma." in text:
        return f"{text}()", "keep the data and the mask as two arrays, and use np.where"
    name = text.rpartition(".")[2]
    return f"{text}()", _FUNCTIONS.get(name) or refusals.INSTEAD.get(name, GENERAL)


_OWN_NAMES = {"Tracer": "numpy.ndarray", "SymbolicSize": "int", "TracedNumber": "float"}
"""The classes of traced values in the texts of Python's errors, and the classes that users know."""
# Libraries of Python name a class with its module, and have errors of their own for it.
_OWN_NAME = re.compile(rf"(?<![\w.])({'|'.join(_OWN_NAMES)})\b")


def of_python(error: BaseException) -> TracefuseError | None:
    """Returns the error to raise instead of one of C code that met a traced value; None for others.

    Its text names the class of a traced value, or an output that is no array.
    """
    text = str(error)
    is_output = text == "output must be an array"
    if type(error) is not TypeError or not (is_output or _OWN_NAME.search(text)):
        return None
    entry = _user_entry(error)
    node = None if entry is None else expression_at(entry.tb_frame, entry.tb_lasti)
    hint = "give numbers and arrays of numbers"
    if is_output and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        # A method of a scalar or an array of NumPy that was made outside: C code, which asks for no protocol.
        given = [node.func.value, *node.args, *node.keywords]
        text, hint = "out= is a traced array", f"write np.{node.func.attr}({', '.join(map(ast.unparse, given))})"
    elif "bytes-like" in text:
        text, hint = "a traced array has no bytes", "return the array and read its bytes outside the fused function"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size":
        axis = ", ".join(map(ast.unparse, node.args))
        hint = f"write {ast.unparse(node.func.value)}.shape[{axis}]" if axis else f"write {ast.unparse(node.func)}"
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.from_numpy":
        text, hint = "a traced array is no array of NumPy", f"write {', '.join(map(ast.unparse, node.args))}"
    text = _OWN_NAME.sub(lambda match: _OWN_NAMES[match[0]], text)
    start = f"{ast.unparse(node.func)}(): " if isinstance(node, ast.Call) else ""
    refusal = TraceError(f"{start}{text}", hint=hint, where=_line_of(entry), runs_function=True)
    if "'jaxlib." in text:
        refusal.given_to = "jax"
    return refusal


def replaced_by_library(error: BaseException) -> TracefuseError | None:
    """Returns the error of a traced value that code of a library met and raised another one for; None for others."""
    entries = list(_entries(error))
    if isinstance(error, TracefuseError) or not entries or not _is_of_package(entries[-1].tb_frame):
        return None
    cause = error.__cause__ or error.__context__
    if not isinstance(cause, (TraceError, UnsupportedError)):
        return None
    cause.__cause__, cause.__suppress_context__ = None, True
    return cause


def _is_of_package(frame: FrameType) -> bool:
    return any(f"{os.sep}{folder}{os.sep}" in frame.f_code.co_filename for folder in ("site-packages", "dist-packages"))


def _entries(error: BaseException) -> Iterator[TracebackType]:
    entry = error.__traceback__
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _user_entry(error: BaseException) -> TracebackType | None:
    """The innermost entry of code of the user in the traceback of an error."""
    inside = [entry for entry in _entries(error) if not source.is_internal(entry.tb_frame.f_code.co_filename)]
    return inside[-1] if inside else None


def _line_of(entry: TracebackType | None) -> str | None:
    return None if entry is None else f"{source.file_name(entry.tb_frame)}:{entry.tb_lineno}"


def of_library(error: BaseException) -> TracefuseError | None:
    """Returns the error to raise instead of one that a library raised on a traced array; None for others."""
    return replaced_by_library(error) or _of_array_library(error) or of_python(error)


def _of_array_library(error: BaseException) -> TracefuseError | None:
    """The error instead of one of CuPy or JAX; None for others."""
    if isinstance(error, TracefuseError) and not isinstance(error, (TraceError, UnsupportedError)):
        return None
    entry = _user_entry(error)
    node = None if entry is None else expression_at(entry.tb_frame, entry.tb_lasti)
    if entry is None or not isinstance(node, ast.Call) or not _may_be_traced(node, entry.tb_frame):
        return None
    function, function_text = value_of(node.func, entry.tb_frame), ast.unparse(node.func)
    module = str(getattr(function, "__module__", None) or type(function).__module__)
    where = _line_of(entry)
    if module.startswith("jax") and not isinstance(error, TracefuseError):
        hint = foreign_functions.instead_of(node, function)
        refusal = UnsupportedError(f"{function_text}() only takes JAX arrays", hint=hint, where=where)
        refusal.given_to = "jax"
        return refusal
    name = function_text.rpartition(".")[2]
    if not module.startswith("cupy") or type(function).__name__ == "ufunc":
        return None
    records = callable(getattr(np, name, None)) and name not in refusals.INSTEAD
    hint = f"write np.{name}, which records" if records else refusals.INSTEAD.get(name, GENERAL)
    reason = error.message if isinstance(error, TracefuseError) else str(error)
    return UnsupportedError(f"{function_text} only takes CuPy arrays ({reason})", hint=hint, where=where)


def _may_be_traced(call: ast.Call, frame: FrameType) -> bool:
    """Whether an argument is traced, or is an expression whose value is unknown here."""
    waiting: list[ast.expr] = [*call.args, *(keyword.value for keyword in call.keywords)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.List, ast.Tuple)):
            waiting += node.elts
        elif isinstance(node, (ast.Name, ast.Attribute)):
            value = value_of(node, frame)
            entries = value if isinstance(value, (list, tuple)) else (value,)
            if any(isinstance(entry, Traced) for entry in entries):
                return True
        elif not isinstance(node, ast.Constant):
            return True
    return False
