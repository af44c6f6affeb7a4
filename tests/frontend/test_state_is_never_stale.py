"""Random functions over random captured state, which changes in every way between calls: always NumPy's value."""

from __future__ import annotations

import pytest
from random_state import check_program


@pytest.mark.parametrize("seed", range(40))
def test_every_call_gives_the_value_for_the_state_at_that_call(seed: int) -> None:
    check_program(seed)
