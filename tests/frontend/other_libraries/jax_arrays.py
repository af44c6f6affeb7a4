"""JAX where it is installed, and arrays of NumPy that functions of jax.numpy take."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax")
jnp, lax = jax.numpy, jax.lax
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(3, 4)).astype(np.float32)
W = RANDOM.normal(size=(4, 5)).astype(np.float32)
KEY = np.array([0, 7], np.uint32)
