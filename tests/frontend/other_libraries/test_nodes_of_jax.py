"""Instances of classes of the user that are pytree nodes: of JAX, in functions that JAX traces, and in loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tracefuse as tf
from tracefuse.frontend.tracer.state import shadow_nodes

FORCE = jnp.ones(3)


class Moving:
    """What the classes have in common: methods that read captured state and create instances."""

    def moved(self) -> Any:
        return self.remade(self.x + self.v * FORCE, self.v * 0.9)  # type: ignore[attr-defined]

    def remade(self, x: Any, v: Any) -> Any:
        return type(self)(x, v)  # type: ignore[call-arg]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Body(Moving):
    x: Any
    v: Any


@jax.tree_util.register_pytree_node_class
class NodeWithMethods(Moving):
    def __init__(self, x: Any, v: Any, name: str = "node") -> None:
        self.x, self.v, self.name = x, v, name

    def tree_flatten(self) -> Any:
        return (self.x, self.v), self.name

    @classmethod
    def tree_unflatten(cls, name: str, children: Any) -> Any:
        return cls(*children, name)


class NodeInSlots(Moving):
    __slots__ = ("v", "x")

    def __init__(self, x: Any, v: Any) -> None:
        self.x, self.v = x, v


jax.tree_util.register_pytree_with_keys(
    NodeInSlots, lambda one: (((jax.tree_util.GetAttrKey("x"), one.x), ("v", one.v)), None),
    lambda _, children: NodeInSlots(*children),
)  # fmt: skip

CAPTURED: Any = None


def in_loops(given: Any) -> Any:
    kind = type(given)
    last, rows = lax.scan(lambda one, _: (one.moved(), kind(one.x.sum(), one.v)), given, None, length=3)
    chosen = lax.cond(last.x[0] > 0, lambda one: one.moved(), lambda one: one, last)
    return rows, lax.while_loop(lambda one: one.x.sum() < 60, lambda one: one.remade(one.x * 2, one.v), chosen)


def transformed(given: Any) -> Any:
    slope = jax.grad(lambda one: (one.moved().x ** 2).sum())(given)
    mapped = jax.vmap(lambda row: CAPTURED.remade(row, row).moved())(given.x[None])
    summed = jax.tree.map(lambda a, b: a + b, given, CAPTURED)
    return slope, mapped, summed, jax.jit(lambda one: one.moved())(summed), [jax.tree.leaves(CAPTURED)[0]]


@pytest.mark.parametrize(
    ("function", "kind"),
    [(in_loops, Body), (transformed, Body), (transformed, NodeWithMethods), (transformed, NodeInSlots)],
)
def test_nodes_are_carried_transformed_and_returned(kind: Any, function: Callable[..., Any]) -> None:
    """And their methods read the state of each call."""
    global CAPTURED, FORCE
    fused = tf.fuse(function, frontend="jax")
    for force in (1.0, 2.0):
        FORCE, CAPTURED = jnp.full(3, force), kind(jnp.full(3, force), jnp.arange(3.0))
        given = kind(jnp.arange(1.0, 4.0), jnp.ones(3))
        with tf.options(target="reference"):
            result = fused(given)
        expected = function(given)
        assert jax.tree.structure(result) == jax.tree.structure(expected)
        for one, two in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-5)
    assert fused.cache_info().traces == 1
    assert len(shadow_nodes._free[kind]) == 1  # JAX keeps one shadow class, however many traces there were


def test_errors_of_jax_in_a_function_that_jax_traces_are_its_own() -> None:
    with pytest.raises(TypeError, match="carry input and carry output must have equal types"):
        tf.fuse(lambda x: lax.scan(lambda c, _: (Body(c.x.astype(int), c.v), None), Body(x, x), None, length=3))(
            jnp.ones(3)
        )
    assert len(shadow_nodes._free[Body]) == 1


@dataclasses.dataclass
class State(Moving):
    x: Any
    v: Any


@pytest.mark.parametrize(
    "function",
    [
        lambda one: tf.scan(lambda c, _: (c.moved(), None), one, None, length=3)[0].moved().x,
        lambda one: tf.fori_loop(0, 2, lambda _, c: c.moved(), one).x,
        lambda one: tf.cond(one.x.sum() > 0, lambda c: c.moved(), lambda c: c, one).moved().x,
        lambda one: tf.vjp(lambda c: c.moved(), one)[1](one)[0].moved().x,
    ],
    ids=["scan", "fori_loop", "cond", "vjp"],
)
def test_methods_of_carried_instances_read_the_state_of_each_call(function: Callable[..., Any]) -> None:
    global FORCE
    fused = tf.fuse(function)
    for force in (1.0, 3.0):
        FORCE = np.full(3, force)
        with tf.options(target="reference"):
            np.testing.assert_allclose(fused(State(np.ones(3), np.ones(3))), function(State(np.ones(3), np.ones(3))))


def test_changes_of_an_argument_that_is_a_node_are_the_callers() -> None:
    def function(node: Any) -> Any:
        node.x = node.x * 2
        return node.v + 1

    node = NodeWithMethods(np.ones(3), np.ones(3))
    with tf.options(target="reference"):
        tf.fuse(function)(node)
    assert node.x.tolist() == [2, 2, 2]
