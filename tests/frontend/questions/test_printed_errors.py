"""Errors of the function that its handlers print."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse


def test_a_handler_prints_the_error_that_it_catches_at_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    @fuse(target="reference")
    def checked(x: Any) -> Any:
        try:
            if x.sum() > 50:
                raise ValueError(f"a sum of {x.sum():.1f}")
        except ValueError as error:
            print("skipped:", error)
            return x * 0
        return x

    results = [checked(np.full(3, value)).tolist() for value in (1.0, 100.0, 200.0, 1.0)]
    assert results == [[1.0] * 3, [0.0] * 3, [0.0] * 3, [1.0] * 3]
    assert capsys.readouterr().out == "skipped: a sum of 300.0\nskipped: a sum of 600.0\n"
