"""Calls of `fd` and `fd.ops`: binding arguments to parameters, converting them, and rolling back failed calls.

A call that raises leaves the definition as it was, so a session can continue after an error.
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


class CallSignature:
    """The signature of one call. name: as the user writes it. kinds: for parameters whose name usually means another
    kind."""

    def __init__(self, name: str, signature: Signature, kinds: Mapping[str, Kind] | None = None) -> None:
        self.name, self.signature = name, signature
        special = kinds or {}
        self.kinds = {n: special[n] if n in special else kind_of(name, n) for n in signature.parameters}

    @property
    def text(self) -> str:
        """The call as an error message shows it."""
        plain = [p.replace(annotation=Parameter.empty) for p in self.signature.parameters.values()]
        return f"{self.name}{Signature(plain)}"

    def bind(self, recording: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> inspect.BoundArguments:
        """Binds arguments to parameters and converts each. Raises TraceError for arguments the call does not take."""
        try:
            bound = self.signature.bind(*arguments, **keywords)
        except TypeError as error:
            raise TraceError(
                f"{self.name}: {self._explain(error, arguments)}", hint=f"the signature is {self.text}"
            ) from None
        parameters = self.signature.parameters
        for name, value in bound.arguments.items():
            if parameters[name].kind is Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(
                    v if v is None else self.kinds[name].check(recording, self.name, f"argument {k}", v)
                    for k, v in enumerate(value, len(arguments) - len(value))
                )
            elif value is not parameters[name].default:
                bound.arguments[name] = self.kinds[name].check(recording, self.name, name, value)
        return bound

    def _explain(self, error: TypeError, arguments: Sequence[Any]) -> str:
        text = str(error)
        if text != "too many positional arguments":
            return text
        positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        most = sum(p.kind in positional for p in self.signature.parameters.values())
        return f"takes {most} argument{'s' * (most != 1)} by position, got {len(arguments)}"


def run(
    call: CallSignature,
    recording: Any,
    function: Callable[..., Any],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> Any:
    """Calls function with the arguments as `call` converts them; on an error, restores the recording."""
    builder = recording.require_builder()
    mark = builder.snapshot()
    try:
        bound = call.bind(recording, arguments, keywords)
        return function(*bound.args, **bound.kwargs)
    except BaseException as error:
        builder.take_back(mark)
        recording.forget_from(builder.next_number)
        if isinstance(error, TracefuseError):
            error.within(call.name)
        raise


def reads(function: Function) -> Function:
    """Decorates a method that records nothing: its arguments are converted by the kinds of its parameters."""
    call = _method_signature(function)

    @source.hides_own_frames
    @functools.wraps(function)
    def read(self: Any, *arguments: Any, **keywords: Any) -> Any:
        bound = call.bind(self.recording, arguments, keywords)
        return function(self, *bound.args, **bound.kwargs)

    return cast("Function", read)


def records(function: Function) -> Function:
    """Decorates a recording method of a definition, of its operations or of its handles.

    Arguments are converted by the kinds of the parameters. Errors name the method and the user's line and hide
    tracefuse's frames. An object with such methods has an attribute `recording`.
    """
    call = _method_signature(function)

    @source.hides_own_frames
    @functools.wraps(function)
    def recorded(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return run(call, self.recording, functools.partial(function, self), arguments, keywords)

    return cast("Function", recorded)


def _method_signature(function: Callable[..., Any]) -> CallSignature:
    whole = inspect.signature(function)
    return CallSignature(function.__name__, whole.replace(parameters=list(whole.parameters.values())[1:]))


def make_operation(call: CallSignature, recording: Any, function: Callable[..., Any], doc: str) -> Callable[..., Any]:
    """Returns `function` as a recording call, as `records` does for a method."""

    def recorded(*arguments: Any, **keywords: Any) -> Any:
        return run(call, recording, function, arguments, keywords)

    recorded.__name__, recorded.__doc__ = call.name, doc
    recorded.__signature__ = call.signature  # type: ignore[attr-defined]
    return source.hides_own_frames(recorded)
