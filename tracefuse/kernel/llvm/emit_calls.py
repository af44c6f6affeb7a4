"""Calls of C functions in loop drivers, whose addresses are arguments of the driver."""

from __future__ import annotations

from collections.abc import Callable

from tracefuse.kernel.llvm.entry_functions import slot
from tracefuse.kernel.llvm.scalar_ops import register_type
from tracefuse.kernel.llvm.statements import Emitter
from tracefuse.kernel.llvm.text_builder import LlvmValue
from tracefuse.kernel.loop_driver import CallFunction, CallInnerLoop, LoadedNumber, RequireNumber

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


def emit_inner_loop(call: CallInnerLoop, emitter: Emitter, pointer_of: Callable[[str], str]) -> None:
    """Emits a call of an inner loop, whose pointers and integers are passed in memory."""
    builder, tables = emitter.builder, list[str]()
    pointers = [LlvmValue(builder, pointer_of(name), "ptr") for name in call.arguments]
    integers = ([emitter.index(one) for one in numbers] for numbers in (call.extents, call.strides))
    for hint, values in zip(("arguments", "extents", "strides"), (pointers, *integers), strict=True):
        table = builder.name(hint)
        emitter.entry.append(f"  {table} = alloca [{len(values)} x i64], align 16")
        for position, value in enumerate(values):
            builder.line(f"store {value}, {slot(builder, table, position)}")
        tables.append(f"ptr {table}")
    function, data = (
        builder.emit(f"inttoptr {emitter.index(address)} to ptr", "ptr", "function").text
        for address in (call.function, call.data)
    )
    builder.line(f"call void {function}({', '.join(tables)}, ptr {data})")


def emit_required_number(required: RequireNumber, emitter: Emitter, pointer_of: Callable[[str], str]) -> None:
    """Emits a branch to `failed` for NaN."""
    builder = emitter.builder
    type_ = register_type(required.dtype.real)
    number = builder.emit(f"load {type_}, ptr {pointer_of(required.pointer)}", type_)
    is_nan, fine = builder.emit(f"fcmp uno {number}, {number.text}", "i1"), builder.name("fine")
    builder.line(f"br {is_nan}, label %failed, label {fine}")
    builder.label(fine)
