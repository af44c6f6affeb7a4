"""Choices by the sizes of a call segment the fusion once, after the last of them that changes it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tracefuse import fuse
from tracefuse.partition import segments_for_sizes
from tracefuse.partition.segmentation import Segmentation


def test_choices_that_change_the_fusion_take_one_segmentation(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Segmentation] = []
    segment = segments_for_sizes.segment_fusion

    def segmented(*arguments: Any, **named: Any) -> Segmentation:
        made.append(segment(*arguments, **named))
        return made[-1]

    def updated(a: Any, x: Any, places: Any) -> Any:
        x = x.copy()
        np.add.at(x, places, np.tanh(a @ a)[:3])
        scores = np.exp(a @ a.T / 8)
        return x, (scores / scores.sum(-1, keepdims=True)) @ a

    monkeypatch.setattr(segments_for_sizes, "segment_fusion", segmented)
    a, x, places = np.random.default_rng(0).random((64, 64), np.float32), np.zeros((9, 64), np.float32), [1, 2, 1]
    for found, expected in zip(fuse(updated)(a, x, places), updated(a, x, places), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    assert len(made) == 1
    assert {"product", "row_update"} <= {part.template for part in made[0].segments}
