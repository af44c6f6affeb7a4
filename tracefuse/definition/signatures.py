"""Calls that record: their arguments are bound to parameters and read, and one that fails leaves nothing behind.

Knows: signatures, kinds of parameters, errors. Must not know: rows, what a call records.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, TypeVar, cast

from tracefuse import source
from tracefuse.definition.parameters import Kind, kind_of
from tracefuse.errors import TraceError, TracefuseError

Function = TypeVar("Function", bound=Callable[..., Any])


class Call:
    """The parameters of one call of a definition, `name` as the user writes it. kinds: of those of its parameters that
    mean something else than their name says."""

    def __init__(self, name: str, signature: Signature, kinds: Mapping[str, Kind] | None = None) -> None:
        self.name, self.signature = name, signature
        given = kinds or {}
        self.kinds = {n: given[n] if n in given else kind_of(name, n) for n in signature.parameters}

    @property
    def text(self) -> str:
        """How it is called."""
        plain = [p.replace(annotation=Parameter.empty) for p in self.signature.parameters.values()]
        return f"{self.name}{Signature(plain)}"

    def bound(self, fd: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> inspect.BoundArguments:
        """The arguments by parameter, each as its kind reads it; TraceError for what the call does not take."""
        try:
            bound = self.signature.bind(*arguments, **keywords)
        except TypeError as error:
            raise TraceError(f"{self.name}: {self._reason(error, arguments)}", hint=f"it is {self.text}") from None
        parameters = self.signature.parameters
        for name, value in bound.arguments.items():
            if parameters[name].kind is Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(
                    v if v is None else self.kinds[name].check(fd, self.name, f"argument {k}", v)
                    for k, v in enumerate(value, len(arguments) - len(value))
                )
            elif value is not parameters[name].default:
                bound.arguments[name] = self.kinds[name].check(fd, self.name, name, value)
        return bound

    def _reason(self, error: TypeError, arguments: Sequence[Any]) -> str:
        text = str(error)
        if text != "too many positional arguments":
            return text
        places = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        most = sum(p.kind in places for p in self.signature.parameters.values())
        return f"takes {most} argument{'s' * (most != 1)} by position, got {len(arguments)}"


def run(
    call: Call, fd: Any, function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> Any:
    """function(*arguments, **keywords) as `call` reads them; where it fails, the definition is what it was before."""
    builder = fd._record()
    mark = builder.snapshot()
    try:
        bound = call.bound(fd, arguments, keywords)
        return function(*bound.args, **bound.kwargs)
    except BaseException as error:
        builder.take_back(mark)
        fd.forget_from(builder.next_number)
        if isinstance(error, TracefuseError):
            error.within(call.name)
        raise


def reads(function: Function) -> Function:
    """A method of a definition that records nothing, whose arguments are read by the kinds of its parameters."""
    call = _call_of_method(function)

    @source.hides_own_frames
    @functools.wraps(function)
    def read(self: Any, *arguments: Any, **keywords: Any) -> Any:
        bound = call.bound(self, arguments, keywords)
        return function(self, *bound.args, **bound.kwargs)

    return cast("Function", read)


def records(function: Function) -> Function:
    """A method of a definition, of its operations or of its values, whose arguments are read by the kinds of its
    parameters; errors name it, have the user's line and show no frames of tracefuse."""
    call = _call_of_method(function)

    @source.hides_own_frames
    @functools.wraps(function)
    def recorded(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return run(call, getattr(self, "_fd", self), functools.partial(function, self), arguments, keywords)

    return cast("Function", recorded)


def _call_of_method(function: Callable[..., Any]) -> Call:
    whole = inspect.signature(function)
    return Call(function.__name__, whole.replace(parameters=list(whole.parameters.values())[1:]))


def operation(call: Call, fd: Any, function: Callable[..., Any], doc: str) -> Callable[..., Any]:
    """`function` as a call of the definition `fd`, as `records` makes one of a method."""

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        return run(call, fd, function, arguments, keywords)

    recorded.__name__, recorded.__doc__ = call.name, doc
    recorded.__signature__ = call.signature  # type: ignore[attr-defined]
    return source.hides_own_frames(recorded)
