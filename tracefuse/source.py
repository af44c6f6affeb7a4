"""The user's source line of an operation, and tracebacks that end there.

The user's line, such as `file.py:12`, is that of the innermost frame outside of tracefuse and NumPy. Public functions
remove tracefuse's frames from tracebacks, so that the last frame shown is the user's.
"""

from __future__ import annotations

import dis
import functools
import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType, FunctionType, TracebackType
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from tracefuse import config
from tracefuse.caches import CLEAR_CACHES, BoundedTable, Cache, register
from tracefuse.errors import InternalError, OptionError, TraceError, TracefuseError
from tracefuse.generated_code import is_generated

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)

_TRACEFUSE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_NUMPY = os.path.dirname(os.path.abspath(np.__file__)) + os.sep
# Libraries whose functions call back into the tracer, or ask it for its elements.
_LIBRARIES = tuple(
    f"{os.sep}site-packages{os.sep}{name}{os.sep}" for name in ("jax", "cupy", "cupyx", "scipy", "torch")
)

MOST_FILES, MOST_LINES = 4096, 16384
"""File names and user lines that are cached; the oldest are evicted first."""
_internal: BoundedTable[str, bool] = BoundedTable(MOST_FILES)
register(Cache(
    "source._internal", "whether a file belongs to tracefuse or a library", "file name", f"{MOST_FILES}, the oldest go",
    cleared_by=CLEAR_CACHES, clear=_internal.clear,
))  # fmt: skip

ALL_FRAMES = 4
"""The level of the option `debug` at which errors keep tracefuse's frames."""


def is_internal(filename: str) -> bool:
    """Whether a file belongs to tracefuse, NumPy (whose wrappers call the tracer) or a library that calls back."""
    if is_generated(filename):
        return True
    known = _internal.get(filename)
    if known is None:
        # NumPy compiles its dispatchers under "<__array_function__ internals>".
        known = filename.startswith((_TRACEFUSE, _NUMPY, "<__array_function__"))
        known = known or any(library in filename for library in _LIBRARIES)
        _internal[filename] = known
    return known


def user_frame() -> FrameType | None:
    """The innermost frame of the user's code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_line() -> str | None:
    """`file.py:12` of the innermost frame of the user's code, or of the line that `on_behalf_of` names inside of it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_internal(frame.f_code.co_filename):
        if frame.f_code is _CODE_ON_BEHALF:
            named: str = frame.f_locals["line"]
            return named
        frame = frame.f_back
    return None if frame is None else _line_at(frame.f_code.co_filename, frame.f_lineno)


def _line_at(path: str, number: int) -> str:
    line = f"{_shown(path)}:{number}"
    _files[line] = path
    return line


def on_behalf_of(line: str, function: Callable[..., Result], *args: Any) -> Result:
    """Calls a function, in which `user_line` is `line`: that of code which ran earlier."""
    return function(*args)


_CODE_ON_BEHALF = on_behalf_of.__code__


def innermost_line(frames: Iterable[tuple[str, int]]) -> str | None:
    """`file.py:12` of the first of frames, innermost first, that is the user's code. frames: path and line of each."""
    return next((_line_at(path, number) for path, number in frames if not is_internal(path)), None)


_files: BoundedTable[str, str] = BoundedTable(MOST_LINES)
"""The path of the file of each line that `user_line` returned; the last one if two files have one name."""
register(Cache(
    "source._files", "the path of the file of a user line that messages quote", "`file.py:12`",
    f"{MOST_LINES}, the oldest go", cleared_by=CLEAR_CACHES, clear=_files.clear,
))  # fmt: skip


def text_at(line: str) -> str:
    """The source of a line that `user_line` returned, without indentation; empty if its file cannot be read."""
    return linecache.getline(_files.get(line, ""), int(line.rpartition(":")[2])).strip()


def file_name(frame: FrameType) -> str:
    """The file name of a frame, as messages show it."""
    return _shown(frame.f_code.co_filename)


def line_of(code: CodeType) -> str:
    """`file.py:12` of the line where `code` begins."""
    return line_in(code, code.co_firstlineno)


def line_in(code: CodeType, number: int) -> str:
    """`file.py:12` of a line of `code`."""
    return f"{_shown(code.co_filename)}:{number}"


_OLD_CELL = re.compile(r"<ipython-input-(\d+)-\w+>")
_CELL_FOLDER = re.compile(r"ipykernel_\d+$")


def _shown(filename: str) -> str:
    """A file name without folders; for a notebook cell its execution count, if IPython knows it."""
    if "ipy" not in filename:  # no cell of IPython
        return filename if filename.startswith("<") else os.path.basename(filename)
    folder, name = os.path.split(filename)
    old = _OLD_CELL.fullmatch(filename)
    if old is not None:
        return f"cell {old.group(1)}"
    if not _CELL_FOLDER.search(folder):
        return filename if filename.startswith("<") else name
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    compiler = getattr(get_shell() if callable(get_shell) else None, "compile", None)
    number = getattr(compiler, "_filename_map", {}).get(filename)
    return "cell" if number is None else f"cell {number}"


def local_name(value: Any) -> str | None:
    """The name of the local variable in the user's innermost frame that is this object, if there is one."""
    frame = user_frame()
    if frame is None or frame.f_code.co_name == "<module>":
        return None
    return next((name for name, local in frame.f_locals.items() if local is value and name.isidentifier()), None)


def without_own_frames(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of tracefuse and of the libraries between it and the user."""
    frames = list(_entries(traceback))
    rest: TracebackType | None = None
    for entry in reversed(frames):
        if not is_internal(entry.tb_frame.f_code.co_filename):
            rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


_FORWARDING: set[CodeType] = set()


def _caller(frame: FrameType) -> FrameType:
    """The frame that called a function of tracefuse, past those that only forward the call."""
    while frame.f_back is not None and frame.f_code in _FORWARDING:
        frame = frame.f_back
    return frame


def is_called_by_user() -> bool:
    """Whether code of the user, or C code that it called, called the function that asks."""
    return not is_internal(_caller(sys._getframe(2)).f_code.co_filename)


def is_compared_by_user() -> bool:
    """Whether a comparison in code of the user, of objects in C, called the function that asks."""
    frame = _caller(sys._getframe(2))
    if is_internal(frame.f_code.co_filename):
        return False
    return frame.f_code.co_code[frame.f_lasti] in _COMPARISONS


_COMPARISONS = frozenset(dis.opmap[name] for name in ("COMPARE_OP", "CONTAINS_OP"))


def forwards(function: Function) -> Function:
    """Marks a function of tracefuse that only calls a function for the user, whose exceptions are the user's."""
    _FORWARDING.add(function.__code__)
    return function


def hide_own_frames(error: BaseException) -> None:
    """Removes tracefuse's frames from the traceback of an error about the user's code.

    A TracefuseError without a line gets the user's line. An InternalError and any other exception raised inside
    tracefuse are bugs and keep all frames; so does every error under `debug=4`. Call this where an error leaves
    tracefuse, followed by a bare `raise`, which adds no frame.
    """
    is_own_bug = _is_own_bug(error)
    # The message of an OptionError names the decorator or the variable.
    if isinstance(error, TracefuseError) and not is_own_bug and not isinstance(error, OptionError):
        error.locate(user_line())
    if not is_own_bug and config.resolve().debug < ALL_FRAMES:
        error.__traceback__ = without_own_frames(error.__traceback__)


def _is_own_bug(error: BaseException) -> bool:
    """Whether an exception is about tracefuse and not about the user's code."""
    if isinstance(error, TracefuseError):
        return isinstance(error, InternalError)
    codes = [entry.tb_frame.f_code for entry in _entries(error.__traceback__)]
    innermost_file = next((code.co_filename for code in reversed(codes) if code not in _FORWARDING), "")
    return innermost_file.startswith(_TRACEFUSE) or is_generated(innermost_file)


def _as_wrong_call(error: Exception, function: Callable[..., Any]) -> Exception:
    """A TraceError if the call itself failed, which leaves no frame of the function; else the error."""
    if not isinstance(error, TypeError) or error.__traceback__ is None or error.__traceback__.tb_next is not None:
        return error
    parameters = inspect.signature(function).parameters.values()
    plain = inspect.Signature([p.replace(annotation=p.empty) for p in parameters if p.name != "self"])
    return TraceError(str(error), hint=f"the signature is {function.__name__}{plain}")


Instead: TypeAlias = Callable[[Exception, str, tuple[Any, ...], dict[str, Any]], Exception | None]
"""Returns the error to raise instead of one of a method, given its name and its arguments; None to keep it."""


def hides_own_frames(function: Function, instead: Instead | None = None, name: str = "") -> Function:
    """Decorates a public function: its errors show only the user's frames, and wrong arguments raise TraceError."""

    @forwards
    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except Exception as error:
            wrong_call = _as_wrong_call(error, function)
            if wrong_call is not error:
                hide_own_frames(wrong_call)
                raise wrong_call from None
            hide_own_frames(error)
            other = None if instead is None else instead(error, name, arguments, keywords)
            if other is None:
                raise
        raise other  # outside of the handler, so that the error is no context of it

    return cast("Function", call)


def methods_hide_own_frames(cls: Class, instead: Instead | None = None) -> Class:
    """Decorates the public methods and operators of a class with `hides_own_frames`, except for attribute access."""
    for name, method in list(vars(cls).items()):
        is_special = name.startswith("__") and name.endswith("__")
        is_public = not name.startswith("_") or (is_special and name not in ("__init__", "__getattr__", "__repr__"))
        if isinstance(method, FunctionType) and is_public and not hasattr(method, "__wrapped__"):
            setattr(cls, name, hides_own_frames(method, instead, name))
        elif isinstance(method, property) and is_public and method.fget and name not in ("__jax_array__", "__class__"):
            setattr(cls, name, property(hides_own_frames(method.fget), method.fset, method.fdel, method.__doc__))
    return cls
