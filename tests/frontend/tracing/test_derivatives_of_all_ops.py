"""Every op has a derivative that is tested, or is known to have none."""

from __future__ import annotations

import tracefuse as tf
from tests.frontend.gradient_cases import OF_OPS, SCIPY, SMOOTH, function_of
from tracefuse.ir.control_flow import ControlFlow
from tracefuse.ir.derivatives import FLAT
from tracefuse.ops import REGISTRY


def test_every_op_has_a_derivative_that_is_tested_or_is_known_to_have_none() -> None:
    without = {name for name, op in REGISTRY.items() if op.derivative is None and not isinstance(op, ControlFlow)}
    assert without == {name for names in WITHOUT_RULE.values() for name in names.split()}
    recorded: set[str] = set()
    for expression in SMOOTH + SCIPY + OF_OPS:
        function, arrays = function_of(expression)
        found = tf.fuse(function, frontend="numpy").definition(*arrays)
        for definition in [found] if isinstance(found, tf.FusionDefinition) else found:
            recorded.update(node.op.name for node in definition.recording.fusion.nodes)
    flat = {name for name, op in REGISTRY.items() if op.derivative is FLAT}
    of_jax = {"host_primitive", "jax_primitive"}  # recorded for functions of jax.numpy, whose tests differentiate them
    assert REGISTRY.keys() - without - flat - recorded - of_jax == set()


WITHOUT_RULE = {
    "results are integers": "integer_power logical_right_shift left_shift right_shift gcd bitwise_and "
    "bitwise_or bitwise_xor bitwise_not iota extent random_bits fresh_seed bits_of_float32 bits_of_float64 "
    "scipy_ndimage_label scipy_ndimage_binary_closing scipy_ndimage_binary_dilation scipy_ndimage_binary_erosion "
    "scipy_ndimage_binary_opening",
    "the operand is an integer": "float32_of_bits float64_of_bits random_draw random_shuffle random_start",
    "recorded by passes or definitions alone": "permuted_matmul grouped_mm",
    "ranks exchange it, and a derivative would exchange the opposite": "all_gather all_reduce all_to_all "
    "broadcast_from coalesced_exchanges reduce_scatter send_receive",
    "edges of bins depend on the data": "histogram histogram2d histogram_bin_edges histogramdd",
    "any function": "sampled_call",
    "not written": "scipy_linalg_lu_factor scipy_linalg_lu_solve scipy_linalg_solve_banded "
    "scipy_linalg_solveh_banded scipy_linalg_toeplitz scipy_ndimage_distance_transform_edt "
    "scipy_ndimage_grey_closing scipy_ndimage_grey_dilation scipy_ndimage_grey_erosion scipy_ndimage_grey_opening "
    "scipy_ndimage_map_coordinates scipy_ndimage_maximum_filter scipy_ndimage_maximum_filter1d "
    "scipy_ndimage_median_filter scipy_ndimage_minimum_filter scipy_ndimage_minimum_filter1d "
    "scipy_ndimage_percentile_filter scipy_ndimage_rank_filter scipy_ndimage_rotate scipy_ndimage_shift "
    "scipy_signal_convolve2d scipy_signal_correlate2d scipy_signal_filtfilt scipy_signal_medfilt "
    "scipy_signal_resample scipy_signal_savgol_filter scipy_signal_sosfiltfilt",
}
"""The ops without a derivative, by the reason."""
