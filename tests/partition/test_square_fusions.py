"""Tests fusions of square arrays, where extents do not distinguish loops."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from segments import Verdict, no
from tests.session.samples import times
from tests.ways import backend_of, run_whole
from tracefuse import config, fuse
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.reference import evaluate
from tracefuse.partition.segmentation import segment_fusion
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes
from tracefuse.schedule.merge_rule import FusionRule


def drawn(seed: int, *, exact: bool = True) -> Fusion:
    """A fusion of one square array: reductions over either axis, movement, and what is made of them.

    exact: small whole numbers stay whole numbers that float32 holds.
    """
    choose = random.Random(seed)
    reductions = ["sum", "max"] if exact else ["sum", "max", "mean", "var"]
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        arrays: list[Any] = [fd.ops.add(x, fd.ops.permute(x, [1, 0]))] if choose.randrange(2) else [x]
        reduced: list[Any] = []
        for _ in range(choose.randint(3, 12 if exact else 16)):
            one, kind = choose.choice(arrays), choose.randrange(7 if exact else 8)
            if kind == 0:
                arrays.append(fd.ops.add(one, choose.choice(arrays)))
            elif kind == 1:
                arrays.append(fd.ops.permute(one, [1, 0]))
            elif kind == 2:
                reduced.append(getattr(fd.ops, choose.choice(reductions))(one, [choose.randrange(2)], keepdim=True))
            elif kind == 3 and reduced:
                arrays.append(fd.ops.sub(one, choose.choice(reduced)))
            elif kind == 4 and reduced:
                arrays.append(fd.ops.add(one, fd.ops.permute(choose.choice(reduced), [1, 0])))
            elif kind == 5:
                arrays.append(fd.ops.flip(one, [choose.randrange(2)]))
            elif kind == 6:
                flat = fd.ops.reshape(one, [x.size(0) * x.size(1)])
                arrays.append(fd.ops.reshape(flat, [x.size(0), x.size(1)]))
            elif kind == 7:
                arrays.append(fd.ops.exp(one))
        made = [*arrays[1:], *reduced] or [fd.ops.neg(x)]
        for output in choose.sample(made, min(len(made), choose.randint(1, 4))):
            fd.add_output(output)
    return fd.fusion


@pytest.mark.parametrize("exact", [True, False])
def test_what_merges_pair_by_pair_is_accepted_as_a_whole(exact: bool) -> None:
    """With and without the passes: those leave no op that nothing needs, which is a result of its own to the rule."""
    for seed in range(times(80)):
        fusion = drawn(seed, exact=exact)
        for one in (fusion, run_passes(FUSION_PASSES, fusion, config.resolve())):
            for part in segment_fusion(one, strict=True).segments:
                assert part.rule.whole, f"seed {seed}: {part.rule.whole}"


@pytest.mark.parametrize("target", ["interpreter", "interpreter-cuda"])
def test_each_result_is_read_along_its_own_loops(target: str) -> None:
    x = np.arange(9, dtype=np.float32).reshape(3, 3) % 5
    for seed in range(times(30)):
        fusion = drawn(seed)
        for own, wanted in zip(run_whole(fusion, [x], backend_of(target)), evaluate(fusion, [x]), strict=True):
            np.testing.assert_array_equal(own, wanted, err_msg=f"seed {seed}")


def test_a_group_that_is_refused_as_a_whole_is_split_and_explain_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    accepts = FusionRule.accepts

    def at_most_two(self: FusionRule, steps: tuple[int, ...]) -> Verdict:
        return accepts(self, steps) if len(steps) <= 2 else no("more than two steps", count=len(steps))

    monkeypatch.setattr(FusionRule, "accepts", at_most_two)

    @fuse
    def softmax(x: Any) -> Any:
        e = np.exp(x - x.max(axis=-1, keepdims=True))
        return e / e.sum(axis=-1, keepdims=True)

    x = np.arange(12, dtype=np.float32).reshape(3, 4) % 5
    np.testing.assert_allclose(softmax(x), evaluate(softmax.definition(x).fusion, [x])[0], rtol=1e-6)
    text = str(softmax.explain(x))
    assert "merging them leads to a group that is refused as a whole: more than two steps (count=" in text


def test_what_no_kernel_can_hold_once_it_is_written_out_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = FusionRule.whole.func

    def few_steps(self: FusionRule) -> Verdict:
        return whole(self) if len(self.nodes) <= 5 else no("more than five steps", count=len(self.nodes))

    monkeypatch.setattr(FusionRule, "whole", property(few_steps))

    @fuse
    def normalized(x: Any) -> Any:
        return np.exp(x) * 2 - np.var(np.exp(x) * 2, axis=-1, keepdims=True)

    x = np.arange(12, dtype=np.float32).reshape(3, 4) % 5
    doubled = np.exp(x) * 2
    np.testing.assert_allclose(normalized(x), doubled - doubled.var(axis=-1, keepdims=True), rtol=1e-5)
    text = str(normalized.explain(x))
    assert "decomposed, the merged segment does not fit one kernel: more than five steps (count=" in text


def test_extents_that_are_equal_by_another_segment_alone_divide_a_segment() -> None:
    def pooled(x: Any) -> Any:
        x = x[:, 3:, 3:, None] * 2
        n, rows, columns, channels = x.shape
        tiles = x[:, : rows // 3 * 3, : columns // 2 * 2].reshape(n, rows // 3, 3, columns // 2, 2, channels)
        means = tiles.mean(axis=2)
        return means.reshape(-1, channels) - means.mean(), means.T.reshape(-1)[::2]

    fused = fuse(pooled)
    for shape in ((3, 9, 10), (2, 12, 8)):
        x = np.random.default_rng(0).random(shape)
        for result, expected in zip(fused(x), pooled(x), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-14, atol=1e-14)
