"""Tests tracebacks of errors: every frame is in the user's code."""

from __future__ import annotations

import os
import traceback
from typing import Any

import numpy as np
import pytest

from tracefuse import DataType, FusionDefinition, TracefuseError, fuse, xp
from tracefuse.errors import InternalError

X = np.ones((3, 4), np.float32)


def shown(call: Any) -> tuple[BaseException, list[str]]:
    """The error, and its frames as file:function."""
    try:
        call()
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        return error, [f"{os.path.basename(f.filename)}:{f.name}" for f in frames][1:]
    raise AssertionError("no error")


def inner(x: Any) -> Any:
    return np.sum(x, axis=7)


def test_only_the_users_frames_are_shown() -> None:
    error, frames = shown(lambda: fuse(lambda x: inner(x) + 1)(X))
    assert isinstance(error, TracefuseError)
    assert frames == ["test_source.py:<lambda>", "test_source.py:<lambda>", "test_source.py:inner"]
    assert error.__cause__ is None
    assert error.__context__ is None or error.__suppress_context__


def test_frames_between_two_of_the_users_are_hidden_too() -> None:
    nested = fuse(lambda x: fuse(inner)(x) * 2)
    assert shown(lambda: nested(X))[1] == ["test_source.py:<lambda>", "test_source.py:<lambda>", "test_source.py:inner"]


def test_the_users_own_errors_keep_their_cause_and_show_no_other_frames() -> None:
    def raising(x: Any) -> Any:
        try:
            return {}["missing"]
        except KeyError as error:
            raise ValueError("mine") from error

    error, frames = shown(lambda: fuse(raising)(X))
    assert frames == ["test_source.py:<lambda>", "test_source.py:raising"]
    assert isinstance(error.__cause__, KeyError)


def test_calls_that_were_compiled_before_hide_frames_too() -> None:
    f = fuse(lambda x, y: x + y)
    f(X, X)
    assert shown(lambda: f(X, X[:2]))[1] == ["test_source.py:<lambda>"]


def test_methods_questions_definitions_and_the_namespace_hide_frames() -> None:
    class Model:
        @fuse
        def run(self, x: Any) -> Any:
            return inner(x)

    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], dtype=DataType.Float)
        fd.add_output(fd.ops.neg(x))
    assert shown(lambda: Model().run(X))[1] == ["test_source.py:<lambda>", "test_source.py:run", "test_source.py:inner"]
    assert shown(lambda: fuse(inner).segments(X))[1] == ["test_source.py:<lambda>", "test_source.py:inner"]
    assert shown(lambda: fd.execute([X]))[1] == ["test_source.py:<lambda>"]
    assert shown(lambda: xp.sum(X, axis=7))[1] == ["test_source.py:<lambda>"]


def test_a_bug_of_tracefuse_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **keywords: Any) -> Any:
        raise InternalError("two layers disagree")

    monkeypatch.setattr("tracefuse.frontend.fuse.compile_fusion", refuse)
    frames = shown(lambda: fuse(lambda x: x + 1)(X))[1]
    assert "fuse.py:__call__" in frames
    assert frames[-1] == "test_source.py:refuse"
