"""Models of flax, equinox and jax.numpy, as their users write them, with their arguments.

Each case is a loss of (parameters, inputs), which tests and scripts differentiate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import optax


class ModelCase(NamedTuple):
    """loss(parameters, *inputs) is a number; parameters and inputs are pytrees of arrays."""

    loss: Callable[..., Any]
    parameters: Any
    inputs: tuple[Any, ...]


KEY = jax.random.PRNGKey(0)


def normal(*shape: int, seed: int = 1) -> Any:
    return jax.random.normal(jax.random.PRNGKey(seed), shape)


def squares(apply: Callable[..., Any]) -> Callable[..., Any]:
    """The mean of squares of what a model returns, in float32."""
    return lambda parameters, *inputs: (apply(parameters, *inputs).astype(jnp.float32) ** 2).mean()


class Perceptron(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        for width in (32, 32):
            x = nn.gelu(nn.Dense(width)(x))
        return nn.Dense(8)(x)


def flax_perceptron() -> ModelCase:
    model, x = Perceptron(), normal(16, 12)
    return ModelCase(squares(model.apply), model.init(KEY, x), (x,))


def equinox_perceptron() -> ModelCase:
    model = eqx.nn.MLP(12, 8, 32, 2, key=KEY)
    parameters, static = eqx.partition(model, eqx.is_array)
    return ModelCase(squares(lambda p, x: jax.vmap(eqx.combine(p, static))(x)), parameters, (normal(16, 12),))


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        return nn.MultiHeadDotProductAttention(num_heads=4)(x, mask=mask)


def flax_attention() -> ModelCase:
    model, x = Attention(), normal(2, 10, 16)
    return ModelCase(squares(model.apply), model.init(KEY, x), (x,))


def equinox_attention() -> ModelCase:
    model = eqx.nn.MultiheadAttention(4, 16, key=KEY)
    parameters, static = eqx.partition(model, eqx.is_array)
    apply = squares(lambda p, x: jax.vmap(lambda row: eqx.combine(p, static)(row, row, row))(x))
    return ModelCase(apply, parameters, (normal(2, 10, 16),))


class TransformerBlock(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        h = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=4)(h, mask=nn.make_causal_mask(jnp.ones(x.shape[:2])))
        h = nn.gelu(nn.Dense(64)(nn.LayerNorm()(x)))
        return x + nn.Dense(x.shape[-1])(h)


def flax_transformer_block() -> ModelCase:
    model, x = TransformerBlock(), normal(2, 10, 16)
    return ModelCase(squares(model.apply), model.init(KEY, x), (x,))


class EquinoxBlock(eqx.Module):
    norms: list[eqx.nn.LayerNorm]
    attention: eqx.nn.MultiheadAttention
    perceptron: eqx.nn.MLP

    def __init__(self, width: int, key: Any) -> None:
        first, second = jax.random.split(key)
        self.norms = [eqx.nn.LayerNorm(width) for _ in range(2)]
        self.attention = eqx.nn.MultiheadAttention(4, width, key=first)
        self.perceptron = eqx.nn.MLP(width, width, 4 * width, 1, jax.nn.gelu, key=second)

    def __call__(self, x: Any) -> Any:
        h = jax.vmap(self.norms[0])(x)
        x = x + self.attention(h, h, h, mask=jnp.tril(jnp.ones((len(x), len(x)), bool)))
        return x + jax.vmap(self.perceptron)(jax.vmap(self.norms[1])(x))


def equinox_transformer_block() -> ModelCase:
    parameters, static = eqx.partition(EquinoxBlock(16, KEY), eqx.is_array)
    apply = squares(lambda p, x: jax.vmap(eqx.combine(p, static))(x))
    return ModelCase(apply, parameters, (normal(2, 10, 16),))


class LanguageModel(nn.Module):
    vocabulary: int = 50
    width: int = 16

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(self.vocabulary, self.width)(tokens)
        x = x + self.param("positions", nn.initializers.normal(0.02), (tokens.shape[1], self.width))
        for _ in range(2):
            x = TransformerBlock()(x)
        return nn.Dense(self.vocabulary)(nn.LayerNorm()(x))


def language_model(length: int = 12, batch: int = 4) -> ModelCase:
    model = LanguageModel()
    tokens = jax.random.randint(jax.random.PRNGKey(2), (batch, length + 1), 0, model.vocabulary)
    parameters = model.init(KEY, tokens[:, :-1])

    def loss(parameters: Any, tokens: Any) -> Any:
        logits = model.apply(parameters, tokens[:, :-1]).astype(jnp.float32)
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    return ModelCase(loss, parameters, (tokens,))


def _rms(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def _rotated(x: Any) -> Any:
    """Rotary positions: pairs of features turn by an angle that grows with the position."""
    half = x.shape[-1] // 2
    angle = jnp.arange(x.shape[1])[:, None] * 10000.0 ** (-jnp.arange(half) / half)
    sin, cos = (f(angle)[None, :, None].astype(x.dtype) for f in (jnp.sin, jnp.cos))
    one, two = x[..., :half], x[..., half:]
    return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], -1)


def _llama(p: dict[str, Any], x: Any) -> Any:
    length = x.shape[1]
    h = _rms(x, p["norm"])
    q, k, v = (jnp.einsum("btd,dhe->bthe", h, p[name]) for name in ("q", "k", "v"))
    k, v = (jnp.repeat(one, q.shape[2] // k.shape[2], axis=2) for one in (_rotated(k), v))
    scores = jnp.einsum("bthe,bshe->bhts", _rotated(q), k).astype(jnp.float32) / q.shape[-1] ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhts,bshe->bthe", jax.nn.softmax(scores).astype(x.dtype), v)
    x = x + jnp.einsum("bthe,hed->btd", mixed, p["out"])
    h = _rms(x, p["norm2"])
    return x + (jax.nn.silu(h @ p["gate"]) * (h @ p["up"])) @ p["down"]


def llama_block() -> ModelCase:
    shapes = {"q": (16, 4, 8), "k": (16, 2, 8), "v": (16, 2, 8), "out": (4, 8, 16), "gate": (16, 48), "up": (16, 48)}
    shapes["down"] = (48, 16)
    parameters = {name: normal(*shape, seed=k) / 4 for k, (name, shape) in enumerate(shapes.items())}
    parameters |= {"norm": jnp.ones(16), "norm2": jnp.ones(16)}
    return ModelCase(squares(_llama), parameters, (normal(2, 10, 16),))


class ResidualBlock(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        h = nn.relu(nn.GroupNorm(4)(nn.Conv(8, (3, 3))(x)))
        h = nn.GroupNorm(4)(nn.Conv(8, (3, 3))(h))
        return nn.relu(h + nn.Conv(8, (1, 1))(x)).mean((1, 2))


def resnet_block() -> ModelCase:
    model, x = ResidualBlock(), normal(2, 9, 9, 4)
    return ModelCase(squares(model.apply), model.init(KEY, x), (x,))


CASES: dict[str, Callable[[], ModelCase]] = {
    "flax perceptron": flax_perceptron, "equinox perceptron": equinox_perceptron, "flax attention": flax_attention,
    "equinox attention": equinox_attention, "flax transformer block": flax_transformer_block,
    "equinox transformer block": equinox_transformer_block, "language model": language_model,
    "llama block": llama_block, "resnet block": resnet_block,
}  # fmt: skip


def in_halves(tree: Any) -> Any:
    """The pytree with its floating-point arrays in bfloat16."""
    return jax.tree.map(lambda x: x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


OPTIMIZER = optax.adamw(1e-2)


def training_step(case: ModelCase) -> Callable[..., Any]:
    """A step of AdamW: (parameters, state of the optimizer, *inputs) to both and the loss."""
    loss_of = case.loss  # `case` holds the first parameters, too

    def step(parameters: Any, state: Any, *inputs: Any) -> tuple[Any, Any, Any]:
        loss, gradient = jax.value_and_grad(loss_of)(parameters, *inputs)
        updates, state = OPTIMIZER.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, loss

    return step
