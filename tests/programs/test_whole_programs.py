"""A sample of the whole programs of tests/programs; `python -m tests.programs.run` runs all of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.programs.run import FIELDS, Outcome, Side, judged, load, run_calls
from tracefuse.errors import InternalError, UnsupportedError

CALLS = ((0, "C"), (1, "strided"), (0, "Fortran"), (1, "C"))

SAMPLE = {
    "agent_programs": ("Flock.tick",),
    "buffer_programs": ("Editor.apply", "evaluate_rpn"),
    "course_programs": ("described_network", "Tally.merge"),
    "estimation_programs": ("resample_particles",),
    "exercise_programs": ("horner", "run_codes"),
    "filter_programs": ("unsharp", "guided"),
    "finance_programs": ("brownian_paths", "max_drawdown"),
    "geometry_programs": ("circumcircles", "crossing_number"),
    "handbook_programs": ("boundary_flux", "Document.edit", "travel"),
    "idiom_programs": ("occupied_voxels", "permutation_p_value", "valid_mean"),
    "image_programs": ("convolve2d", "downsample"),
    "matrix_programs": ("kabsch", "ridge"),
    "network_programs": ("AnyOptimizer.update", "boosted", "differentiate"),
    "optimizer_programs": ("make_decayed",),
    "programs_of_assignment": ("relu_in_place", "life", "fill_missing", "sobel_x"),
    "programs_of_creation": ("causal_attention", "positional_encoding", "checkerboard"),
    "programs_of_scalars": ("normal_pdf", "morton"),
    "programs_of_state": ("apply_config",),
    "programs_of_views": ("zero_border", "interleave"),
    "sampling_programs": ("bootstrap_interval", "latin_hypercube"),
    "sequence_programs": ("kmer_profile",),
    "signal_programs": ("band_pass", "envelope_and_frequency"),
    "statistics_programs": ("pearson",),
    "update_programs": ("clean", "deposit"),
}
"""Programs that compile quickly, of every field that has some."""


@pytest.mark.filterwarnings("ignore")  # programs overflow and divide by zero as users' do
@pytest.mark.parametrize(("field", "name"), [(field, name) for field, names in SAMPLE.items() for name in names])
def test_a_program_runs_unchanged(field: str, name: str) -> None:
    position = [case.name for case in load(field, "listed").CASES].index(name)
    with np.errstate(all="ignore"):
        outcome = run_calls(Side(field, position, True), Side(field, position, False), CALLS, lambda _: None)
    assert (outcome.kind, outcome.reason) == ("unchanged ok", "")


def test_a_program_that_computes_something_else_is_reported() -> None:
    wrong, right = (Side("programs_of_assignment", k, False) for k in (3, 3))
    wrong.function = lambda x: np.maximum(x, 0)
    outcome = run_calls(wrong, right, CALLS, lambda _: None)
    assert (outcome.kind, outcome.call) == ("value differs", 1)
    assert outcome.reason.startswith("arguments[0]: values [")


def test_errors_are_judged_by_their_kind() -> None:
    assert judged(None, None) is None
    assert judged(IndexError("x"), IndexError("y")) is None
    assert judged(None, ValueError("y")) == ("value differs", "no error, NumPy raises ValueError: y")
    assert judged(UnsupportedError("no"), None) == ("refused", "UnsupportedError: no")
    assert judged(InternalError("bug"), None) == ("internal error", "InternalError: bug")
    assert judged(KeyError("k"), None) == ("internal error", "KeyError: 'k'")


def test_every_field_has_programs_and_no_name_twice() -> None:
    names = [case.name for field in FIELDS for case in load(field, "listed").CASES]
    assert len(names) == len(set(names)) >= 420
    assert Outcome("running").call == 0
