"""Settings under which XLA compiles what results are compared with in a third of the time.

Must not know: what is tested.
"""

from __future__ import annotations

import importlib.util
import mmap
import os
from pathlib import Path

LIBRARY = "libjax_common.so"
OLDER_EMITTERS = "xla_cpu_use_fusion_emitters"
"""A switch that, set to false, leaves out a second compiler of loops, which takes half the time of small functions."""


def set_environment() -> None:
    """Sets the settings of this process and those that it starts, before any of them imports jax."""
    os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    if "XLA_FLAGS" not in os.environ and has_switch(OLDER_EMITTERS):
        os.environ["XLA_FLAGS"] = f"--{OLDER_EMITTERS}=false"


def has_switch(name: str) -> bool:
    """Whether the installed jax has a switch of XLA: one that it does not know would end the process."""
    package = importlib.util.find_spec("jaxlib")
    library = Path(package.origin).with_name(LIBRARY) if package is not None and package.origin else None
    if library is None or not library.exists():
        return False
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(name.encode()) >= 0
