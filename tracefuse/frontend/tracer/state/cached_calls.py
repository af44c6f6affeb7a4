"""Functions of the user with a cache of `functools`, in a trace.

The cache belongs to the program: a call with plain arguments is one of the wrapper itself, with the function and the
entries of the program, and what it returns is state that every call reads there again. A result that was changed in
place, or an entry that was dropped, is seen at the next call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracefuse import source
from tracefuse.errors import TraceError
from tracefuse.frontend.tracer.captured import routes
from tracefuse.frontend.tracer.captured.captures import Place
from tracefuse.frontend.tracer.python_code.installed_packages import is_of_library
from tracefuse.frontend.tracer.record.recorder import current
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize, plain_key
from tracefuse.frontend.tracer.values.traced import Traced

if TYPE_CHECKING:
    from tracefuse.frontend.tracer.state.overlays import Overlays


def is_cached(value: Any) -> bool:
    """Whether a value is a function of the user with a cache."""
    is_wrapper = type(value).__module__ == "functools" and hasattr(value, "cache_parameters")
    return is_wrapper and not is_of_library(value.__module__)


def cached_twin(wrapper: Any, overlays: Overlays) -> Callable[..., Any]:
    """Returns what a trace sees in place of a function with a cache."""

    @functools.wraps(wrapper)
    def call(*arguments: Any, **keywords: Any) -> Any:
        positional = tuple(_plain(argument, overlays) for argument in arguments)
        named = tuple((name, _plain(argument, overlays)) for name, argument in keywords.items())
        types = tuple(type(argument) for argument in (*positional, *(argument for _, argument in named)))
        read = functools.partial(_result_of, positional, named, types)
        result = read(wrapper)
        where = overlays.line()
        place = Place(wrapper.__qualname__, routes.to(wrapper), wrapper, where)
        return overlays.read(result, place.derived(f"{{}}({_text(positional, named)})", read, result, where))

    for name in ("cache_clear", "cache_info"):
        setattr(call, name, functools.partial(_refuse, f"{wrapper.__qualname__}.{name}()"))
    return call


def _result_of(
    positional: tuple[Any, ...], named: tuple[tuple[str, Any], ...], types: tuple[type, ...], wrapper: Any
) -> Any:  # fmt: skip
    """The result of the wrapper for arguments. (`types` separates equal arguments of different types, as 1 and 1.0.)"""
    enclosing = current.set(None)  # the function belongs to the program; it records nothing
    try:
        return wrapper(*positional, **dict(named))
    finally:
        current.reset(enclosing)


def _plain(argument: Any, overlays: Overlays) -> Any:
    """An argument as the program passes it: the original of an overlay, the number of a traced number."""
    if isinstance(argument, Traced) and argument.weak is None:
        hash(argument)  # raises for an array
        scalar: Any = argument
        return scalar.number_now()
    if isinstance(argument, (SymbolicSize, Traced)) or type(argument) is tuple:
        argument = plain_key(argument)
    known = overlays.original(argument)
    if known is None:
        return argument
    original, place = known
    overlays.reads.add_pair(place, Place(place.path, routes.to(original), original, place.where))
    return original


def _text(positional: tuple[Any, ...], named: tuple[tuple[str, Any], ...]) -> str:
    texts = [*map(repr, positional), *(f"{name}={argument!r}" for name, argument in named)]
    return ", ".join(texts).replace("{", "{{").replace("}", "}}")


def _refuse(name: str) -> Any:
    raise TraceError(
        f"{name} while a function is traced: later calls would not run it",
        hint="call it outside of the fused function", where=source.user_line(), runs_function=True,
    )  # fmt: skip
