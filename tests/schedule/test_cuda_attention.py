"""Attention on a GPU: the spellings that become one kernel, and its results by the interpreter, races included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.schedule.attention_lowering import Program, fusion_of, program
from tests.schedule.attention_spellings import (
    INFINITY,
    SPELLINGS,
    causal_added_infinity,
    causal_offset,
    causal_tril,
    causal_where,
    future_masked,
    no_maximum,
    positions,
    scale_after,
    scores,
    softmax,
)
from tracefuse import DataType, FusionDefinition, ShapeDtype, config, fuse, options
from tracefuse.kernel.cuda.cuda_compiler import CudaCompiler, target_of
from tracefuse.kernel.cuda.cuda_functions import CudaFunction
from tracefuse.kernel.cuda.emit_cuda import emit_cuda
from tracefuse.kernel.cuda.nvrtc import compile_with_log
from tracefuse.kernel.kernel_ir import Allocate, MultiplyTiles, walk_statements
from tracefuse.passes.attention_match import attentions_in
from tracefuse.passes.pipeline import FUSION_PASSES, run_passes
from tracefuse.schedule.score_conditions import visible_offset


def halves(*shape: int, seed: int = 0, dtype: Any = np.float16) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def factors(*stack: int, queries: int, keys: int, features: int = 16, dtype: Any = np.float16) -> tuple[Any, ...]:
    rows = (queries, keys, keys)
    return tuple(halves(*stack, n, features, seed=k, dtype=dtype) for k, n in enumerate(rows))


def check(split: Program, expected: list[Any], tolerance: float = 2e-3) -> Program:
    for result, reference in zip(split.run(), expected, strict=True):
        error = np.linalg.norm((result.astype(np.float64) - reference).ravel()) / np.linalg.norm(reference.ravel())
        assert error < tolerance
    return split


def wide(arrays: tuple[Any, ...]) -> list[Any]:
    return [a if a.dtype == np.bool_ else a.astype(np.float64) for a in arrays]


STACKS = [(f, (3,)) for f in SPELLINGS] + [(causal_where, ()), (causal_where, (2, 2))]


@pytest.mark.parametrize(("function", "stack"), STACKS, ids=lambda p: getattr(p, "__name__", None))
def test_every_spelling_of_attention_is_one_kernel(function: Callable[..., Any], stack: tuple[int, ...]) -> None:
    arrays = factors(*stack, queries=20, keys=37)
    split = check(program(fusion_of(function, *arrays), *arrays), [function(*wide(arrays))])
    assert [part.template for part in split.segmentation.segments].count("attention") == 1
    products = sum(node.op.kind == "library" for part in split.segmentation.segments for node in part.fusion.nodes)
    assert products == 2, "both products are in the kernel"


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys", "features"), [(1, 1, 16), (1, 70, 16), (66, 65, 32), (17, 33, 144), (130, 140, 16)]
)
def test_tiles_that_the_sizes_do_not_fill(queries: int, keys: int, features: int, causal: bool) -> None:
    arrays = factors(1, 2, queries=queries, keys=keys, features=features)
    function = causal_where if causal else scale_after
    check(program(fusion_of(function, *arrays), *arrays), [function(*wide(arrays))])


def added(query: Any, key: Any, value: Any, mask: Any) -> Any:
    logits = query @ np.swapaxes(key, -1, -2) + mask
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ value


@pytest.mark.parametrize(("keys", "features", "masked", "rows"), [
    (150, 112, False, 2 * 32), (128, 112, False, 2 * 32), (512, 112, False, 2 * 32), (128, 112, True, 32),
    (128, 96, True, 64), (150, 48, False, 2 * 64), (90, 64, False, 96), (70, 128, False, 80), (50, 128, False, 64),
])  # fmt: skip
def test_tiles_of_keys_fit_the_registers_and_short_sequences(keys: int, features: int, masked: bool, rows: int) -> None:
    arrays = factors(1, queries=70, keys=keys, features=features)
    arrays = (*arrays, halves(70, keys, seed=5)) if masked else arrays
    split = program(fusion_of(added if masked else scale_after, *arrays), *arrays)
    (part,) = split.attentions
    (kernel,) = split.lowered(part, list(arrays)).kernels
    tile = next(s.buffer for s in kernel.body if isinstance(s, Allocate) and s.buffer.name.startswith("keys"))
    assert tile.size == rows * (features + 8)


def of_heads_last(query: Any, key: Any, value: Any) -> Any:
    weights = softmax(np.einsum("blhd,bshd->bhls", query, key) * 0.25)
    return np.einsum("bhls,bshd->blhd", weights, value)


def row_maxima(query: Any, key: Any, value: Any) -> Any:
    logits = query @ np.swapaxes(key, -1, -2) * 4.0
    largest = logits.max(-1, keepdims=True)
    weights = np.exp(logits - largest)
    return (weights / weights.sum(-1, keepdims=True)) @ value, largest + np.log(weights.sum(-1, keepdims=True))


@pytest.mark.parametrize(("function", "queries", "keys", "features", "dtype"), [
    (scale_after, 97, 64, 128, np.float16), (causal_where, 97, 130, 64, ml_dtypes.bfloat16),
    (added, 65, 97, 128, np.float16), (of_heads_last, 97, 64, 64, np.float16), (row_maxima, 65, 130, 64, np.float16),
])  # fmt: skip
def test_groups_of_warps_compute_attention(
    function: Callable[..., Any], queries: int, keys: int, features: int, dtype: Any
) -> None:  # fmt: skip
    arrays = factors(1, queries=queries, keys=keys, features=features, dtype=dtype)
    if function is of_heads_last:
        arrays = tuple(np.ascontiguousarray(a[:, :, None].repeat(2, 2)) for a in arrays)
    if function is added:
        arrays = (*arrays, halves(queries, keys, seed=5))
    expected = function(*wide(arrays))
    tolerance = 2e-2 if dtype is ml_dtypes.bfloat16 else 4e-3
    results = list(expected) if isinstance(expected, tuple) else [expected]
    split = check(program(fusion_of(function, *arrays), *arrays), results, tolerance)
    (part,) = split.attentions
    (kernel,) = split.lowered(part, list(arrays)).kernels
    assert any(isinstance(s, MultiplyTiles) for s in walk_statements(kernel.body))
    if function is of_heads_last:  # launches of such kernels may be joined
        function_of_one = CudaFunction(kernel, None, b"", kernel.name, "sm_90")
        assert CudaCompiler("sm_90").compile_table(function_of_one).cubin
    if function in (of_heads_last, row_maxima, scale_after):
        return
    source, options = emit_cuda(kernel), ("--ptxas-options=-v",)
    _, log = compile_with_log(source, kernel.name, architecture=target_of([kernel], "sm_90"), options=options)
    assert "serialized" not in log
    assert " 0 bytes spill stores" in log


def test_small_tiles_give_the_same_results() -> None:
    arrays = (*factors(1, queries=70, keys=130, features=112), halves(70, 130, seed=5))
    check(program(fusion_of(added, *arrays), *arrays), [added(*wide(arrays))], 4e-3)


@pytest.mark.parametrize(("queries", "warps"), [(9, 1), (17, 2), (33, 4), (70, 5), (90, 6)])
def test_every_warp_of_a_block_has_queries(queries: int, warps: int) -> None:
    arrays = factors(2, queries=queries, keys=queries)
    split = check(program(fusion_of(scale_after, *arrays), *arrays), [scale_after(*wide(arrays))])
    (part,) = split.attentions
    assert [k.threads for k in split.lowered(part, list(arrays)).kernels] == [32 * warps]


def test_bfloat16_and_axes_of_heads_in_any_place() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        weights = softmax(np.einsum("blhd,bshd->bhls", q, k) * 0.25)
        return np.einsum("bhls,bshd->blhd", weights, v)

    arrays = tuple(halves(2, n, 3, 16, seed=k, dtype=ml_dtypes.bfloat16) for k, n in enumerate((20, 33, 33)))
    split = check(program(fusion_of(attend, *arrays), *arrays), [attend(*wide(arrays))], 2e-2)
    assert len(split.segmentation.segments) == 1, "no operand and no result is copied"


def test_keys_with_features_outside_are_copied_first() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return softmax(q @ k) @ v

    q, k, v = factors(2, queries=20, keys=33)
    arrays = (q, np.ascontiguousarray(k.swapaxes(-1, -2)), v)
    split = check(program(fusion_of(attend, *arrays), *arrays), [attend(*wide(arrays))])
    assert [part.template for part in split.segmentation.segments] == ["pointwise", "attention"]


def sdpfa(causal: bool, **more: Any) -> Any:
    """The fusion of `sdpfa_fwd` with its logarithms, and extra operands by name."""
    with FusionDefinition() as fd:
        half = [fd.define_tensor(shape=[-1] * 4, contiguity=[True] * 4, dtype=DataType.Half) for _ in range(3)]
        named = {}
        for name, array in more.items():
            flags = [None if extent == 1 else True for extent in array.shape]
            dtype = DataType.Bool if array.dtype == np.bool_ else DataType.Half
            shape = [1 if extent == 1 else -1 for extent in array.shape]
            named[name] = fd.define_tensor(shape=shape, contiguity=flags, dtype=dtype)
        output, log_sumexp, _, _ = fd.ops.sdpfa_fwd(*half, is_causal=causal, **named)
        fd.add_output(output)
        fd.add_output(log_sumexp)
    return run_passes(FUSION_PASSES, fd.fusion, config.resolve())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("extra", ["", "mask", "bias"])
def test_sdpfa_fwd_gives_output_and_logarithms_and_0_for_a_query_that_sees_nothing(extra: str, causal: bool) -> None:
    q, k, v = factors(2, 2, queries=20, keys=37, features=32)
    more: dict[str, Any] = {}
    if extra == "mask":
        more["mask"] = np.random.default_rng(1).random((2, 1, 20, 37)) < 0.5
        more["mask"][0, 0, 3] = False
    elif extra == "bias":
        more["bias"] = halves(1, 2, 20, 37, seed=9)
    x = scores(*wide((q, k))) / np.sqrt(32) + more.get("bias", 0)
    seen = more.get("mask", True) & (~np.array(causal) | (np.arange(37) <= np.arange(20)[:, None]))
    w = np.where(seen, np.exp(x), 0)
    total = w.sum(-1, keepdims=True)
    arrays = (q, k, v, *more.values())
    split = program(sdpfa(causal, **more), *arrays)
    assert [part.template for part in split.segmentation.segments] == ["attention"]
    output, log_sumexp = split.run()
    np.testing.assert_allclose(output, (w / np.where(total == 0, 1, total)) @ wide((v,))[0], atol=2e-3, rtol=2e-3)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(log_sumexp, np.log(total)[..., 0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("function", [causal_where, causal_tril, causal_added_infinity, future_masked, causal_offset])
def test_a_causal_mask_ends_the_loop_at_the_last_visible_key(function: Callable[..., Any]) -> None:
    arrays = factors(2, queries=20, keys=37)
    (part,) = program(fusion_of(function, *arrays), *arrays).attentions
    match = attentions_in(part.fusion)[0][0]
    offset = visible_offset(part.fusion, match.logits)
    assert (offset == 0) is (function is not causal_offset)
    assert offset is not None


def test_heads_that_are_repeated_for_groups_of_queries() -> None:
    def attend(q: Any, k: Any, v: Any) -> Any:
        return causal_where(q, np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1))

    q, (_, k, v) = halves(1, 4, 20, 16), factors(1, 2, queries=1, keys=20)
    split = check(program(fusion_of(attend, q, k, v), q, k, v), [attend(*wide((q, k, v)))])
    assert len(split.attentions) == 1


def weights_read(q: Any, k: Any, v: Any) -> Any:
    weights = softmax(scores(q, k))
    return weights @ v, weights


@pytest.mark.parametrize(
    ("function", "dtype", "features", "reason"),
    [
        (scale_after, np.float64, 16, "not all float32 or of one half type"),
        (scale_after, np.float32, 144, "144 features: a kernel takes multiples of 16 up to 128"),
        (scale_after, np.float16, 40, "40 features: a kernel takes multiples of 16 up to 256"),
        (weights_read, np.float16, 16, "the scores or the weights are read elsewhere"),
    ],
)
def test_explain_says_why_an_attention_is_computed_in_parts(
    function: Callable[..., Any], dtype: Any, features: int, reason: str
) -> None:
    array = ShapeDtype((2, 50, features), dtype)
    with options(target="cuda"):
        text = str(fuse(function).explain(array, array, array))
    assert reason in text
    assert "attention " not in text.split("why")[0]


@pytest.mark.parametrize(("queries", "keys", "features"), [(1, 70, 16), (66, 65, 32), (35, 40, 112)])
@pytest.mark.parametrize("function", [causal_where, added], ids=lambda f: f.__name__)
def test_attention_in_float32_has_its_precision(
    function: Callable[..., Any], queries: int, keys: int, features: int
) -> None:  # fmt: skip
    arrays = factors(2, queries=queries, keys=keys, features=features, dtype=np.float32)
    if function is added:
        arrays = (*arrays, halves(2, queries, keys, seed=9, dtype=np.float32))
    check(program(fusion_of(function, *arrays), *arrays), [function(*wide(arrays))], 1e-6)


def test_explain_names_an_attention() -> None:
    array = ShapeDtype((2, 50, 64), np.float16)
    with options(target="cuda"):
        explanation = fuse(causal_where).explain(array, array, array)
    assert explanation.templates == ("attention",)
    assert "attention" in str(explanation)


@pytest.mark.parametrize(("dtype", "shape"), [(ml_dtypes.bfloat16, "m16n8k16"), (np.float32, "m16n8k8")])
def test_the_kernel_compiles(dtype: Any, shape: str) -> None:
    arrays = factors(2, queries=70, keys=70, features=32, dtype=dtype)
    split = program(fusion_of(causal_where, *arrays), *arrays)
    (part,) = split.attentions
    source = emit_cuda(split.lowered(part, list(arrays)).kernels[0])
    assert f"mma.sync.aligned.{shape}" in source
    compile_with_log(source, "attention", architecture="sm_80")


# ---------------------------------------------------------------------------------------------------------------------
# gradients


def backward(causal: bool, *, forward: bool = False, dtype: DataType = DataType.Half) -> Any:
    """The fusion of `sdpfa_bwd`; forward: of both, in one definition."""
    with FusionDefinition() as fd:
        count = 4 if forward else 5
        half = [fd.define_tensor(shape=[-1] * 4, contiguity=[True] * 4, dtype=dtype) for _ in range(count)]
        if forward:
            output, log_sumexp, _, _ = fd.ops.sdpfa_fwd(*half[:3], is_causal=causal)
            fd.add_output(output)
        else:
            output = half[4]
            log_sumexp = fd.define_tensor(shape=[-1] * 3, contiguity=[True] * 3, dtype=DataType.Float)
        for grad in fd.ops.sdpfa_bwd(half[3], *half[:3], output, log_sumexp, is_causal=causal):
            fd.add_output(grad)
    return run_passes(FUSION_PASSES, fd.fusion, config.resolve())


def exact_gradients(q: Any, k: Any, v: Any, g: Any, causal: bool) -> tuple[list[Any], Any, Any]:
    """The gradients of query, key and value in float64, the output, and the logarithms of the sums."""
    x = scores(q, k) / np.sqrt(q.shape[-1])
    if causal:
        i, j = positions(q, k)
        x = np.where(j <= i, x, -INFINITY)
    log_sum = np.log(np.exp(x).sum(-1, keepdims=True))
    p = np.exp(x - log_sum)
    output = p @ v
    d = p * (scores(g, v) - (g * output).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    return [d @ k, d.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g], output, log_sum[..., 0]


def four(queries: int, keys: int, features: int, dtype: Any = np.float16) -> tuple[Any, ...]:
    rows = (queries, keys, keys, queries)
    return tuple(halves(1, 2, n, features, seed=k, dtype=dtype) for k, n in enumerate(rows))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys", "features"), [(20, 37, 144), (66, 70, 16)])
def test_gradients_are_two_kernels(queries: int, keys: int, features: int, causal: bool) -> None:
    arrays = four(queries, keys, features)
    expected, output, log_sum = exact_gradients(*wide(arrays), causal)
    given = (*arrays, output.astype(np.float16), log_sum.astype(np.float32))
    split = check(program(backward(causal), *given), expected)
    templates = [part.template for part in split.segmentation.segments]
    assert templates == ["reduction", "attention", "attention"], "the sums of rows, then one kernel a direction"


@pytest.mark.parametrize(("queries", "keys", "features", "causal"), [(20, 37, 80, False), (66, 70, 32, True)])
def test_gradients_in_float32_have_its_precision(queries: int, keys: int, features: int, causal: bool) -> None:
    arrays = four(queries, keys, features, np.float32)
    expected, output, log_sum = exact_gradients(*wide(arrays), causal)
    given = (*arrays, output.astype(np.float32), log_sum.astype(np.float32))
    split = check(program(backward(causal, dtype=DataType.Float), *given), expected, 2e-6)
    assert [part.template for part in split.segmentation.segments] == ["reduction", "attention", "attention"]


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 3), (3, 1)])
def test_gradients_with_one_query_or_one_key(queries: int, keys: int) -> None:
    arrays = four(queries, keys, 16)
    expected, output, log_sum = exact_gradients(*wide(arrays), False)
    split = program(backward(False), *arrays, output.astype(np.float16), log_sum.astype(np.float32))
    for result, reference in zip(split.run(), expected, strict=True):
        np.testing.assert_allclose(result, reference, atol=4e-3, rtol=4e-3)


def test_forward_and_backward_in_one_definition_store_no_scores() -> None:
    arrays = four(20, 37, 16)
    expected, output, _ = exact_gradients(*wide(arrays), True)
    split = check(program(backward(True, forward=True), *arrays), [output, *expected])
    assert [part.template for part in split.segmentation.segments].count("attention") == 3
    assert all(part.library is None for part in split.segmentation.segments)


def test_wide_heads_keep_the_library_for_gradients() -> None:
    arrays = four(20, 37, 272)
    given = (*arrays, arrays[0], np.zeros((1, 2, 20), np.float32))
    split = program(backward(False), *given)
    assert not split.attentions
    assert "272 features: a kernel takes multiples of 16 up to 256" in split.segmentation.divided_attentions.values()


def test_results_are_within_the_bounds_of_check_mode() -> None:
    arrays = four(20, 37, 16)
    _, output, log_sum = exact_gradients(*wide(arrays), True)
    for fusion, given in (
        (sdpfa(True), arrays[:3]),
        (fusion_of(no_maximum, *arrays[:3]), arrays[:3]),
        (backward(True), (*arrays, output.astype(np.float16), log_sum.astype(np.float32))),
    ):
        split = program(fusion, *given)
        values = split.values()
        for part in split.attentions:
            split.lowered(part, [values[n] for n in part.segment.original_inputs]).check()
