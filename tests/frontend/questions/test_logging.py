"""Functions that log: every call logs what the plain function logs."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracefuse import fuse

logger = logging.getLogger("tests.of_logging")


class Holder:
    def __init__(self) -> None:
        self.log = logging.getLogger("tests.of_logging.holder")

    def centred(self, x: Any) -> Any:
        self.log.warning("mean %.2f of %s", x.mean(), x.shape)
        return x - x.mean()


def shown(x: Any) -> Any:
    count = (x > 0).sum()
    logger.info("positive: %d of %d", count, x.size)
    logger.debug("all of %s", x)
    logger.error(f"largest {x.max():.3f}")
    logger.log(logging.INFO, x[0])
    return x * 2


def logged(function: Callable[..., Any], caplog: pytest.LogCaptureFixture, *arguments: Any) -> tuple[Any, list[Any]]:
    caplog.clear()
    result = function(*arguments)
    return result, [(r.name, r.levelno, r.getMessage(), r.funcName, r.lineno) for r in caplog.records]


@pytest.mark.parametrize("function", [shown, Holder().centred])
def test_every_call_logs_what_the_plain_function_logs(function: Any, caplog: pytest.LogCaptureFixture) -> None:
    fused = fuse(function)
    with caplog.at_level(logging.INFO):
        for size in (3, 4, 5):
            x = np.arange(size) - 1.5
            result, lines = logged(fused, caplog, x)
            expected, right = logged(function, caplog, x)
            assert np.array_equal(result, expected)
            assert lines == right
    assert fused.cache_info().traces == 1


def test_a_level_that_is_not_enabled_costs_no_line_and_is_compared(caplog: pytest.LogCaptureFixture) -> None:
    fused, x = fuse(shown), np.arange(4.0)
    for level in (logging.CRITICAL, logging.INFO, logging.CRITICAL):
        with caplog.at_level(level):
            assert logged(fused, caplog, x)[1] == logged(shown, caplog, x)[1]


def test_an_exception_is_logged_with_its_type(caplog: pytest.LogCaptureFixture) -> None:
    def guarded(x: Any) -> Any:
        try:
            return np.linalg.cholesky(-np.eye(3)) @ x
        except np.linalg.LinAlgError:
            logger.exception("no factor")
        return x

    logged(fuse(guarded), caplog, np.ones(3))
    (record,) = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is np.linalg.LinAlgError


def into_a_text(x: Any) -> list[str]:
    text, log = io.StringIO(), logging.getLogger("tests.into_a_text")
    handler = logging.StreamHandler(text)
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    log.info("mean %.2f", x.mean())
    log.removeHandler(handler)
    return text.getvalue().splitlines()


def test_a_function_that_configures_logging_runs_as_it_is() -> None:
    fused = fuse(into_a_text)
    with pytest.warns(UserWarning, match="lines are logged after it has changed: from there on, calls run the func"):
        assert fused(np.ones(3)) == ["mean 1.00"]
    assert fused(np.arange(3.0) * 2) == ["mean 2.00"]


def test_lines_that_the_function_redirects_are_in_its_text() -> None:
    def redirected(x: Any) -> list[str]:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            print("sum", float(x.sum()))
        return text.getvalue().splitlines()

    fused = fuse(redirected, target="reference")
    for size in (3, 4):
        assert fused(np.ones(size)) == redirected(np.ones(size))
