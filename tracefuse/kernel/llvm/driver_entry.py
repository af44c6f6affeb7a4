"""The outer functions of a loop driver's module: what Python calls, and what takes and releases the GIL.

A loop begins with the GIL held. After some work, `poll` releases it, and later takes it from time to time to let Python
handle signals.
"""

from __future__ import annotations

from tracefuse.kernel.llvm import entry_functions
from tracefuse.kernel.llvm.entry_functions import convert_arguments, define, refuse, text_constant
from tracefuse.kernel.llvm.statements import Emitter
from tracefuse.kernel.llvm.text_builder import LlvmValue
from tracefuse.kernel.loop_driver import LoopDriver

WORK_BETWEEN_POLLS = 1 << 20
"""The work, in elements, after which a driver lets Python handle signals."""
INTERRUPTED = -1
"""What `drive` returns if a signal handler raised."""

DECLARATIONS = {
    **entry_functions.DECLARATIONS,
    "PyErr_CheckSignals": "declare i32 @PyErr_CheckSignals()",
    "PyLong_FromLongLong": "declare ptr @PyLong_FromLongLong(i64)",
    "memmove": "declare ptr @memmove(ptr, ptr, i64) nounwind",
}

LOCK = f"""\
define internal void @release_lock(ptr %thread) noinline {{
start:
  %state = load ptr, ptr %thread
  %held = icmp eq ptr %state, null
  br i1 %held, label %release, label %done
release:
  %saved = call ptr @PyEval_SaveThread()
  store ptr %saved, ptr %thread
  br label %done
done:
  ret void
}}

define internal i64 @take_lock(ptr %thread, i64 %result) noinline {{
start:
  %state = load ptr, ptr %thread
  %held = icmp eq ptr %state, null
  br i1 %held, label %done, label %take
take:
  call void @PyEval_RestoreThread(ptr %state)
  store ptr null, ptr %thread
  br label %done
done:
  ret i64 %result
}}

define internal i64 @poll(ptr %thread) noinline {{
start:
  %state = load ptr, ptr %thread
  %held = icmp eq ptr %state, null
  br i1 %held, label %go_on, label %look
look:
  %same = call i64 @take_lock(ptr %thread, i64 0)
  %signals = call i32 @PyErr_CheckSignals()
  %fine = icmp eq i32 %signals, 0
  br i1 %fine, label %go_on, label %interrupted
go_on:
  call void @release_lock(ptr %thread)
  ret i64 {WORK_BETWEEN_POLLS}
interrupted:
  ret i64 {INTERRUPTED}
}}"""


def launch_text(driver: LoopDriver, emitter: Emitter) -> str:
    """Return the text of `launch`, which converts the arguments of Python and calls `drive`."""
    builder, count = emitter.builder, len(driver.parameters)
    text = text_constant("wrong_count", f"{driver.name} takes {count} arguments")
    refuse(builder, LlvmValue(builder, "%count", "i64").compare("ne", count), "PyExc_TypeError", "wrong_count")
    convert_arguments(driver.parameters, emitter, ())
    entry_functions.return_errors(builder)
    result = builder.emit("call i64 @drive(ptr %slots)", "i64", "result")
    builder.line(f"br {result.compare('eq', INTERRUPTED)}, label %interrupted, label %ended")
    builder.label("%interrupted")
    builder.line("ret ptr null")
    builder.label("%ended")
    number = builder.call("PyLong_FromLongLong", "ptr", [result])
    return f"{text}\n\n" + define("ptr", "launch", "ptr %self, ptr %arguments, i64 %count", builder, f"ret {number}")
