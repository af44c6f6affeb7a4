"""Attention as users write it: softmax(f(q @ k.T)) @ v with scales, masks and divisions in different places."""

from __future__ import annotations

from typing import Any

import numpy as np

INFINITY = np.inf


def scores(q: Any, k: Any) -> Any:
    return q @ k.swapaxes(-1, -2)


def positions(q: Any, k: Any) -> tuple[Any, Any]:
    return np.arange(q.shape[-2])[:, None], np.arange(k.shape[-2])[None, :]


def softmax(x: Any) -> Any:
    w = np.exp(x - x.max(-1, keepdims=True))
    return w / w.sum(-1, keepdims=True)


def scale_before(q: Any, k: Any, v: Any) -> Any:
    return softmax(scores(q * q.dtype.type(0.25), k)) @ v


def scale_after(q: Any, k: Any, v: Any) -> Any:
    return softmax(scores(q, k) / 4) @ v


def no_maximum(q: Any, k: Any, v: Any) -> Any:
    w = np.exp(scores(q, k) * 0.25)
    return (w / w.sum(-1, keepdims=True)) @ v


def divided_after(q: Any, k: Any, v: Any) -> Any:
    x = scores(q, k) * 0.25
    w = np.exp(x - x.max(-1, keepdims=True))
    return (w @ v) / w.sum(-1, keepdims=True)


def reciprocal(q: Any, k: Any, v: Any) -> Any:
    x = scores(q, k) * 0.25
    w = np.exp(x - x.max(-1)[..., None])
    return (w * (1 / w.sum(-1)[..., None])) @ v


def causal_where(q: Any, k: Any, v: Any) -> Any:
    i, j = positions(q, k)
    return softmax(np.where(j <= i, scores(q, k) * 0.25, -INFINITY)) @ v


def causal_tril(q: Any, k: Any, v: Any) -> Any:
    seen = np.tril(np.ones((q.shape[-2], k.shape[-2]), bool))
    return softmax(np.where(seen, scores(q, k), -INFINITY) * 0.25) @ v


def causal_added(q: Any, k: Any, v: Any) -> Any:
    i, j = positions(q, k)
    return softmax(scores(q, k) * 0.25 + np.where(j > i, q.dtype.type(-1e4), q.dtype.type(0))) @ v


def causal_added_infinity(q: Any, k: Any, v: Any) -> Any:
    i, j = positions(q, k)
    return softmax(scores(q, k) * 0.25 + np.where(j <= i, q.dtype.type(0), q.dtype.type(-INFINITY))) @ v


def future_masked(q: Any, k: Any, v: Any) -> Any:
    i, j = positions(q, k)
    return softmax(np.where(j > i, -INFINITY, scores(q, k))) @ v


def masked_then_bounded(q: Any, k: Any, v: Any) -> Any:
    i, j = positions(q, k)
    return softmax(np.maximum(np.where(j <= i, scores(q, k), -INFINITY), q.dtype.type(-2))) @ v


def causal_offset(q: Any, k: Any, v: Any) -> Any:
    i, j = positions(q, k)
    return softmax(np.where(i + (k.shape[-2] - q.shape[-2]) >= j, scores(q, k), -INFINITY)) @ v


def einsum(q: Any, k: Any, v: Any) -> Any:
    return np.einsum("...ls,...sd->...ld", softmax(np.einsum("...ld,...sd->...ls", q, k) * 0.25), v)


def in_float32(q: Any, k: Any, v: Any) -> Any:
    return (softmax(scores(q, k).astype(np.float32) * np.float32(0.25)).astype(q.dtype)) @ v


def capped(q: Any, k: Any, v: Any) -> Any:
    return softmax(np.tanh(scores(q, k) / 30) * 30) @ v


SPELLINGS = (
    scale_before, scale_after, no_maximum, divided_after, reciprocal, causal_where, causal_tril, causal_added,
    causal_added_infinity, future_masked, masked_then_bounded, causal_offset, einsum, in_float32, capped,
)  # fmt: skip
