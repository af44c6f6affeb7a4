"""Programs of jax.numpy give what jax.jit gives.

Those that JAX compiles quickly are compared here, most by the reference implementation, which compiles nothing;
`bench/bench_jax_programs.py` compiles and compares all.
"""

from __future__ import annotations

import pytest

import tracefuse
from tracefuse import fuse

jax = pytest.importorskip("jax")
from tests.frontend import jax_programs, jax_science_programs  # noqa: E402
from tests.frontend.jax_program_table import PROGRAMS, compare  # noqa: E402

SUBJECTS = (jax_programs, jax_science_programs)
"""The modules that put their programs into the table."""

COMPILED = {"heat_equation", "root_by_newton", "custom_gradient", "causal_attention"}
EVALUATED = {
    "custom_tangent", "runge_kutta", "beam_search", "mixture_of_experts", "quantized_linear", "means_of_segments",
    "branches", "game_of_life", "recurrent_network", "rotary_positions", "k_means", "hamiltonian_step",
    "ten_steps_of_adam_by_scan", "gaussian_process",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(COMPILED | EVALUATED))
def test_a_program_gives_what_jax_gives(name: str) -> None:
    function, arguments = PROGRAMS[name]
    given = arguments()
    fused = fuse(function)
    with tracefuse.options(target="auto" if name in COMPILED else "reference"):
        result = fused(*given)
    compare(result, jax.jit(function)(*given))
    assert fused.cache_info().traces == 1
