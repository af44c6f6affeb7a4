"""Calls of C functions in loop drivers, whose addresses are arguments of the driver."""

from __future__ import annotations

from collections.abc import Callable

from tracefuse.kernel.llvm.scalar_ops import register_type
from tracefuse.kernel.llvm.statements import Emitter
from tracefuse.kernel.llvm.text_builder import LlvmValue
from tracefuse.kernel.loop_driver import CallFunction, LoadedNumber

WORK_OF_CALL = 32
"""The work of a function of C, in elements, for the times at which a driver lets Python handle signals."""


def emit_call(call: CallFunction, emitter: Emitter, pointer_of: Callable[[str], str]) -> None:
    """Emits a call. pointer_of: returns the value of a pointer, by name."""
    builder, arguments = emitter.builder, list[LlvmValue]()
    for argument in call.arguments:
        match argument:
            case str():
                arguments.append(LlvmValue(builder, pointer_of(argument), "ptr"))
            case LoadedNumber(pointer, dtype):
                type_ = register_type(dtype)
                arguments.append(builder.emit(f"load {type_}, ptr {pointer_of(pointer)}", type_))
            case _:
                arguments.append(emitter.expression(argument))
    address = builder.emit(f"inttoptr {emitter.index(call.function)} to ptr", "ptr", "function")
    listed = ", ".join(map(str, arguments))
    if call.result is None:
        builder.line(f"call void {address.text}({listed})")
    else:
        result = builder.emit(f"call double {address.text}({listed})", "double", "result")
        builder.line(f"store {result}, ptr {pointer_of(call.result)}")
