"""Code generation without LLVM's strength reduction of loops.

That pass chooses the induction variables of addresses. It takes a fifth of code generation, and up to a third with the
registers that its variables need, and the code is no faster: of 39 kernels, beside their versions with the pass in one
process, all ran within 3 percent but one, which ran faster without it.

LLVM reads the switch when it begins to generate a module's code. The switch belongs to the process, so it is set only
meanwhile: code that another library generates at that moment is right with and without the pass.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

SWITCH = "-disable-lsr"

VERSIONS = (20, 21, 22)
"""The versions of LLVM that have the switch. An unknown switch would end the process."""

_lock = threading.Lock()
_generating = 0
"""The threads that generate code."""


def is_left_out() -> bool:
    """Whether this version of LLVM leaves the pass out."""
    from llvmlite import binding

    return binding.llvm_version_info[0] in VERSIONS


@contextlib.contextmanager
def without_strength_reduction() -> Iterator[None]:
    """Code that is generated inside has loops as the passes left them; several threads may be inside."""
    if not is_left_out():
        yield
        return
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    """Sets the switch with the first thread and takes it back with the last."""
    global _generating
    from llvmlite import binding

    with _lock:
        before = _generating
        _generating += change
        if not (before and _generating):
            binding.set_option("", f"{SWITCH}={'true' if _generating else 'false'}")
