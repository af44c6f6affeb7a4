"""Code of a kernel that is compiled quickly and used at once, until the optimized code replaces it.

LLVM takes most of the time of a first call, and without its passes a fifth of that. So a kernel with little work is
compiled without them first. Its `chunk`, whose address launches and loop drivers keep, jumps to the address in a cell:
at first to that code, and from the moment when a background thread stores the address of the optimized code there, to
that. The jump takes .3 ns.

Both give the same bits, so it does not matter which one runs, or if one launch runs both on its threads. Kernels for
which LLVM may choose the order of a sum, or approximate, are compiled optimized at once, and so are those whose first
launch has much work, since a launch that has begun cannot be accelerated.
"""

from __future__ import annotations

import re
import threading
import weakref
from typing import Protocol

from tracefuse.kernel.cache import disk_cache
from tracefuse.kernel.cache.disk_cache import DiskCache
from tracefuse.kernel.llvm import background_compilation
from tracefuse.kernel.llvm.machine_code import OPTIMIZED, UNOPTIMIZED, get_machine

CELL = "tracefuse_current"
"""The symbol of the cell, 8 bytes."""

MOST_WORK = 1 << 17
"""The work of a launch, in elements, up to which quickly compiled code may run it.

It runs one to eight times as long, with a geometric mean of two: up to 10 ns for an element where the text has 20 kB,
of which the optimized code takes 15 to 30 ms longer to compile. Both grow with the length of the text.
"""

_ENTRY = "define void @chunk(ptr %arguments, i64 %begin, i64 %end)"
_FIRST = "tracefuse_first"
_JUMP = f"""
@{CELL} = global ptr @{_FIRST}, align 8

{_ENTRY} {{
start:
  %code = load atomic ptr, ptr @{CELL} monotonic, align 8
  musttail call void %code(ptr %arguments, i64 %begin, i64 %end)
  ret void
}}
"""
# Flags by which LLVM may give other bits after its passes than without them. Not `nsz`: it leaves open which of two
# zeros is their maximum, but LLVM chooses by the order of the operands, which the text gives.
_LICENCE = re.compile(r"(?<![%@\w.])(?:reassoc|arcp|afn|fast) ")


def is_used(source: str, work: int | None) -> bool:
    """Return whether a kernel is compiled quickly first.

    source: its LLVM text. work: of the first launch, in elements; None to compile it optimized at once.
    """
    if work is None or work > MOST_WORK or get_machine().optimization != OPTIMIZED:
        return False
    return background_compilation.is_possible() and _LICENCE.search(source) is None


def compiled(source: str) -> bytes:
    """Return the object file of a kernel that is compiled quickly. It exports `chunk` and the cell."""
    text = source.replace(_ENTRY, _ENTRY.replace("void @chunk", f"internal void @{_FIRST}"), 1) + _JUMP
    return get_machine().compile(text, optimization=UNOPTIMIZED)


class Replaceable(Protocol):
    """A linked module that can go on with other machine code."""

    def replace_code(self, code: bytes) -> None:
        """Link an object file, and run it from the next call of the entry on."""
        ...


class Replacement:
    """A background job: the optimized code of a text, and the modules that wait for it.

    A module without other references is dropped, and a job without modules does nothing.
    """

    def __init__(self, source: str, key: str, disk: DiskCache | None) -> None:
        self._source, self._key, self._disk = source, key, disk
        self._modules: list[weakref.ref[Replaceable]] = []
        self._code: bytes | None = None
        self._is_waiting = self._has_failed = False
        self._lock = threading.Lock()

    def add(self, module: Replaceable) -> None:
        """Let a module have the optimized code: now if it is there, else as soon as it is."""
        with self._lock:
            if self._code is not None:
                module.replace_code(self._code)
                return
            self._modules.append(weakref.ref(module))
            if self._is_waiting or self._has_failed:
                return
            self._is_waiting = True
        background_compilation.add(self)

    def run(self) -> None:
        """Compile the code, or load what another process has stored; let the modules run it, and store it."""
        with self._lock:
            self._is_waiting = False
            self._modules = [module for module in self._modules if module() is not None]
            if not self._modules:
                return
        try:
            if disk_cache.load_and_use(self._disk, self._key, self._replace) is None:
                code = get_machine().compile(self._source, optimization=OPTIMIZED)
                self._replace(code)
                if self._disk is not None:
                    self._disk.store(self._key, code, makes_folder=False)
        finally:
            self._has_failed = self._code is None

    def _replace(self, code: bytes) -> bytes:
        with self._lock:
            for reference in self._modules:
                module = reference()
                if module is not None:
                    module.replace_code(code)
            self._modules, self._code = [], code
        return code
