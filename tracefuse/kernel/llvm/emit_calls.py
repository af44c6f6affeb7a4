"""Calls of C functions and of Python in loop drivers, whose addresses are arguments of the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tracefuse.kernel.llvm.entry_functions import slot
from tracefuse.kernel.llvm.scalar_ops import register_type
from tracefuse.kernel.llvm.shared_functions import KEEP_LOCK_BELOW
from tracefuse.kernel.llvm.statements import Emitter
from tracefuse.kernel.llvm.text_builder import LlvmValue
from tracefuse.kernel.loop_driver import CallFunction, CallInnerLoop, CallPython, LoadedNumber, RequireNumber

WORK_OF_CALL = 32
"""The work of a function of C, in elements, for the times at which a driver lets Python handle signals."""

Call: TypeAlias = CallFunction | CallInnerLoop | CallPython | RequireNumber


def work_of(call: Call) -> int:
    """Returns the work of a call, in elements."""
    if isinstance(call, CallFunction):
        return WORK_OF_CALL
    return KEEP_LOCK_BELOW if isinstance(call, CallInnerLoop) else 0


def emit_call(call: Call, emitter: Emitter, pointer_of: Callable[[str], str]) -> None:
    """Emits a call. pointer_of: returns the value of a pointer, by name."""
    match call:
        case CallFunction():
            _emit_function(call, emitter, pointer_of)
        case CallInnerLoop():
            _emit_inner_loop(call, emitter, pointer_of)
        case CallPython():
            _emit_python(call, emitter, pointer_of)
        case RequireNumber():
            _emit_required_number(call, emitter, pointer_of)


def _emit_function(call: CallFunction, emitter: Emitter, pointer_of: Callable[[str], str]) -> None:
    """Emits a call of a function of C."""
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


def _emit_inner_loop(call: CallInnerLoop, emitter: Emitter, pointer_of: Callable[[str], str]) -> None:
    """Emits a call of an inner loop, whose pointers and integers are passed in memory."""
    builder = emitter.builder
    pointers = [LlvmValue(builder, pointer_of(name), "ptr") for name in call.arguments]
    integers = ([emitter.index(one) for one in numbers] for numbers in (call.extents, call.strides))
    hints = ("arguments", "extents", "strides")
    tables = [_table(emitter, hint, values) for hint, values in zip(hints, (pointers, *integers), strict=True)]
    function, data = (
        builder.emit(f"inttoptr {emitter.index(address)} to ptr", "ptr", "function").text
        for address in (call.function, call.data)
    )
    builder.line(f"call void {function}({', '.join(tables)}, ptr {data})")


def _table(emitter: Emitter, hint: str, values: Sequence[LlvmValue]) -> str:
    """Emits the stores of pointers and integers to a table on the stack; returns the table as an argument."""
    builder = emitter.builder
    table = builder.name(hint)
    emitter.entry.append(f"  {table} = alloca [{len(values)} x i64], align 16")
    for position, value in enumerate(values):
        builder.line(f"store {value}, {slot(builder, table, position)}")
    return f"ptr {table}"


def _emit_python(call: CallPython, emitter: Emitter, pointer_of: Callable[[str], str]) -> None:
    """Emits a call of Python, and a branch to `interrupted` for an exception."""
    builder = emitter.builder
    values = [
        LlvmValue(builder, pointer_of(one), "ptr") if isinstance(one, str) else emitter.index(one)
        for one in call.arguments
    ]
    function = builder.emit(f"inttoptr {emitter.index(call.function)} to ptr", "ptr", "function")
    operands = f"{function}, {_table(emitter, 'arguments', values)}, i64 {len(values)}, ptr %thread"
    returns, fine = builder.emit(f"call i1 @tracefuse_call_python({operands})", "i1"), builder.name("fine")
    builder.line(f"br {returns}, label {fine}, label %interrupted")
    builder.label(fine)


def _emit_required_number(required: RequireNumber, emitter: Emitter, pointer_of: Callable[[str], str]) -> None:
    """Emits a branch to `failed` for NaN."""
    builder = emitter.builder
    type_ = register_type(required.dtype.real)
    number = builder.emit(f"load {type_}, ptr {pointer_of(required.pointer)}", type_)
    is_nan, fine = builder.emit(f"fcmp uno {number}, {number.text}", "i1"), builder.name("fine")
    builder.line(f"br {is_nan}, label %failed, label {fine}")
    builder.label(fine)
