"""Settings under which XLA compiles what results are compared with in a third of the time.

Must not know: what is tested.
"""

from __future__ import annotations

import importlib.metadata
import os

OLDER_EMITTERS = "--xla_cpu_use_fusion_emitters=false"
"""Leaves out a second compiler of loops, which takes two fifths of the time of small functions."""

KNOWN_TO = ("0.10.",)
"""The versions of jaxlib that were tried with the switch. One that does not know it ends the process."""


def set_environment() -> None:
    """Sets the settings of this process and those that it starts, before any of them imports jax."""
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    if "XLA_FLAGS" not in os.environ and _version().startswith(KNOWN_TO):
        os.environ["XLA_FLAGS"] = OLDER_EMITTERS


def _version() -> str:
    try:
        return importlib.metadata.version("jaxlib")
    except importlib.metadata.PackageNotFoundError:
        return ""
