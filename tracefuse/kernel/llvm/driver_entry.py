"""The outer function of a loop driver's module: what Python calls.

A loop begins with the GIL held. After some work, `tracefuse_poll` releases it, and later takes it from time to time to
let Python handle signals (`kernel/llvm/shared_functions.py`).
"""

from __future__ import annotations

from tracefuse.kernel.llvm import entry_functions
from tracefuse.kernel.llvm.entry_functions import convert_arguments, define
from tracefuse.kernel.llvm.shared_functions import INTERRUPTED
from tracefuse.kernel.llvm.statements import Emitter
from tracefuse.kernel.loop_driver import LoopDriver

DECLARATIONS = {
    **entry_functions.DECLARATIONS,
    "PyLong_FromLongLong": "declare ptr @PyLong_FromLongLong(i64)",
    "memmove": "declare ptr @memmove(ptr, ptr, i64) nounwind",
}


def launch_text(driver: LoopDriver, emitter: Emitter) -> str:
    """Return the text of `launch`, which converts the arguments of Python and calls `drive`."""
    builder = emitter.builder
    constants = convert_arguments(driver.name, driver.parameters, emitter)
    result = builder.emit("call i64 @drive(ptr %slots)", "i64", "result")
    builder.line(f"br {result.compare('eq', INTERRUPTED)}, label %interrupted, label %ended")
    builder.label("%interrupted")
    builder.line("ret ptr null")
    builder.label("%ended")
    number = builder.call("PyLong_FromLongLong", "ptr", [result])
    return f"{constants}\n\n" + define(
        "ptr", "launch", "ptr %self, ptr %arguments, i64 %count", builder, f"ret {number}"
    )
