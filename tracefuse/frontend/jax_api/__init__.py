"""Functions of jax.numpy as fusions: traced by JAX, recorded from the jaxpr."""
