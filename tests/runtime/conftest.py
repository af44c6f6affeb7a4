"""Fixtures of the tests of the runtime."""

from __future__ import annotations

import pytest


@pytest.fixture
def slices_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops over slices run on threads, whatever their size."""
    monkeypatch.setattr("tracefuse.runtime.targets.array_device.SMALL_LOOP", 0)
