"""A target: one object with everything needed to run segments on one kind of processor.

docs/adding_a_target.md describes how to add one.

Must not know: segments, plans.
"""

from __future__ import annotations

from segments.lazy_dataclasses import dataclass
from tracefuse.runtime.targets.array_device import ArrayDevice
from tracefuse.runtime.targets.array_library import ArrayLibrary
from tracefuse.runtime.targets.call_text import CallText
from tracefuse.runtime.targets.kernel_compiler import KernelCompiler
from tracefuse.schedule.template import TemplateSet


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """The parts of a target. name: its value of the option `target`.

    templates lower segments. compiler compiles and launches kernels. device holds arrays. library computes the ops
    that no kernel computes. calls writes the Python text of a call.
    """

    name: str
    templates: TemplateSet
    compiler: KernelCompiler
    device: ArrayDevice
    library: ArrayLibrary
    calls: CallText
