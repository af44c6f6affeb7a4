"""What Python calls to launch any kernel or loop driver: two functions in LLVM IR, compiled once, with the pool.

Each is a C function with the METH_FASTCALL signature. Its `self` is a capsule around a record of one kernel: how to
convert the arguments, the address of its `chunk`, and a short program that computes the extent of the grid, the work
and the addresses that must be aligned from the converted arguments. In the module of each kernel this code would take a
fifth of the compile time of short kernels.

The programs run on a stack of 64-bit integers, and an instruction is a pair of an operation and its operand. Integers
of extents do not overflow (`Emitter.index`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from tracefuse import dtypes
from tracefuse.errors import InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.llvm import shared_functions
from tracefuse.kernel.llvm.replay_functions import replay_text
from tracefuse.kernel.loop_driver import LoopDriver

LAUNCH, LAUNCH_DRIVER = "tracefuse_launch", "tracefuse_launch_driver"
"""The symbols of the two functions."""

UNKNOWN_WORK = 1 << 62
"""The work of a kernel that does not state it."""

_METH_FASTCALL = 0x80

_FIELDS = ("kinds", "expected", "name", "code", "depth", "function", "parallel_for")
"""The 8-byte fields of a record, in order. function: the address of `chunk` or of a driver's `drive`."""

_END, _CONSTANT, _SLOT, _BINARY = range(4)
_OPERATIONS = ("add", "sub", "mul", "floordiv", "mod", "truncdiv", "truncmod", "minimum", "maximum", "or")
"""Operations on the two values on top of the stack; numbered from _BINARY on."""


_NOT_ALIGNED = "%s needs its outputs aligned to cache lines"


class LaunchFacts(NamedTuple):
    """What a record says besides addresses. kinds: of the arguments, see `shared_functions`.

    code: the program that leaves extent, work and the bits of addresses on a stack of `depth` values.
    """

    kinds: str
    code: tuple[int, ...] = ()
    depth: int = 0


class MethodDefinition(ctypes.Structure):
    """PyMethodDef of Python's C interface."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


class LaunchRecord:
    """A record in memory, which a function object keeps. entry: the address of LAUNCH or LAUNCH_DRIVER.

    function: the address of `chunk` or of a driver's `drive`; owner: keeps its machine code.
    """

    def __init__(
        self, facts: LaunchFacts, name: str, function: int, parallel_for: int, entry: int, owner: object
    ) -> None:
        self.owner, self.facts = owner, facts
        self._kinds, self._name = (ctypes.create_string_buffer(text.encode()) for text in (facts.kinds, name))
        self._code = (ctypes.c_int64 * max(len(facts.code), 1))(*facts.code)
        kinds, name_address, code = (ctypes.addressof(buffer) for buffer in (self._kinds, self._name, self._code))
        fields = (kinds, len(facts.kinds), name_address, code, facts.depth, function, parallel_for)
        self._fields = (ctypes.c_int64 * len(_FIELDS))(*fields)
        self._definition = MethodDefinition(name.encode(), entry, _METH_FASTCALL, None)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._fields)

    @property
    def definition(self) -> MethodDefinition:
        """The definition of a C function for Python."""
        return self._definition


def function_object(record: LaunchRecord) -> Callable[..., Any]:
    """Return a function object of Python that launches what a record describes, and keeps it."""
    return object_over(record.address, record.definition, record)


def object_over(address: int, definition: MethodDefinition, owner: object) -> Callable[..., Any]:
    """Return a function object whose `self` is a capsule of an address, and which keeps the owner of both.

    Python reads the definition of a function while it frees it. By then the garbage collector may have emptied the
    owner and freed its definition. So the function has a copy, in a tuple, which the collector does not empty.
    """
    make_capsule, make = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCFunction_NewEx
    make_capsule.restype = make.restype = ctypes.py_object
    make_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    capsule, kept = make_capsule(address, None, None), bytearray(definition)
    function: Callable[..., Any] = make(ctypes.addressof(ctypes.c_char.from_buffer(kept)), capsule, (owner, kept))
    return function


def owner_of(function: object) -> object:
    """Return the owner that `object_over` got for a function, None for other objects."""
    module: Any = getattr(function, "__module__", None)  # Python's name for what such a function keeps
    return module[0] if type(module) is tuple else None


def record_of(function: Callable[..., Any]) -> LaunchRecord:
    """Return the record of a function object."""
    record = owner_of(function)
    assert isinstance(record, LaunchRecord)
    return record


def kind_of(parameter: ir.Buffer | ir.Variable) -> str:
    """Return how the argument of a parameter is converted."""
    if isinstance(parameter, ir.Buffer):
        return shared_functions.ADDRESS
    if parameter.dtype.kind == "bool":
        return shared_functions.BOOL
    if parameter.dtype.is_integer:
        return shared_functions.INTEGER
    return shared_functions.SINGLE if parameter.dtype is dtypes.float32 else shared_functions.FLOAT


def facts_of(kernel: ir.Kernel, streamed: Collection[str] = ()) -> LaunchFacts:
    """Return the facts of a kernel. streamed: the buffers with non-temporal stores, aligned to cache lines.

    Raises InternalError for an extent or a work that the programs cannot compute.
    """
    slots = {parameter.name: number for number, parameter in enumerate(kernel.parameters)}
    program = _Program(kernel.name, slots)
    program.value(kernel.grid[0].extent if kernel.grid else ir.Constant(1, dtypes.int64))
    program.value(ir.Constant(UNKNOWN_WORK, dtypes.int64) if kernel.work is None else kernel.work)
    program.emit(_CONSTANT, 0)
    for name in sorted(streamed):
        program.emit(_SLOT, slots[name])
        program.operation("or")
    kinds = "".join(map(kind_of, kernel.parameters))
    return LaunchFacts(kinds, (*program.code, _END, 0), program.most)


def driver_facts(driver: LoopDriver) -> LaunchFacts:
    """Return the facts of a loop driver."""
    return LaunchFacts("".join(map(kind_of, driver.parameters)))


class _Program:
    """Writes a program. most: the values on the stack at most."""

    def __init__(self, name: str, slots: dict[str, int]) -> None:
        self.name, self.slots, self.code, self.most, self._height = name, slots, list[int](), 0, 0

    def emit(self, operation: int, operand: int) -> None:
        """Append the instruction that pushes a value."""
        self.code += (operation, operand)
        self._height += 1
        self.most = max(self.most, self._height)

    def operation(self, name: str) -> None:
        """Append an operation on the two values on top."""
        self.code += (_BINARY + _OPERATIONS.index(name), 0)
        self._height -= 1

    def value(self, e: ir.Expression) -> None:
        """Append the instructions that push the value of an integer expression of parameters."""
        match e:
            case ir.Constant(int() as number):
                self.emit(_CONSTANT, number)
            case ir.Variable(name) if e.dtype.is_integer and name in self.slots:
                self.emit(_SLOT, self.slots[name])
            case ir.Cast(argument) if e.dtype is dtypes.int64:
                self.value(argument)
            case ir.Call("neg", (argument,)):
                self.emit(_CONSTANT, 0)
                self.value(argument)
                self.operation("sub")
            case ir.Call(name, (left, right)) if name in _OPERATIONS:
                self.value(left)
                self.value(right)
                self.operation(name)
            case _:
                raise InternalError(f"kernel IR: the grid of {self.name} has an extent that no launch computes: {e}")


def _binary_cases() -> str:
    """Return the blocks of the operations, and the switch to them."""
    divisions = ("floordiv", "mod", "truncdiv", "truncmod")
    texts = {
        **{name: f"%{name}.value = {name} i64 %a, %b" for name in ("add", "sub", "mul", "or")},
        **{name: f"%{name}.value = add i64 %{name}.result, 0" for name in divisions},
        "minimum": "%minimum.value = call i64 @llvm.smin.i64(i64 %a, i64 %b)",
        "maximum": "%maximum.value = call i64 @llvm.smax.i64(i64 %a, i64 %b)",
    }
    cases = "\n".join(f"    i64 {_BINARY + number}, label %{name}" for number, name in enumerate(_OPERATIONS))
    blocks = "\n".join(f"{name}:\n  {texts[name]}\n  br label %computed" for name in _OPERATIONS)
    sources = ", ".join(f"[ %{name}.value, %{name} ]" for name in _OPERATIONS)
    return (
        f"  switch i64 %operation, label %end [\n{cases}\n  ]\n{blocks}\n"
        f"computed:\n  %result = phi i64 {sources}\n  store i64 %result, ptr %first\n  br label %back"
    )


_FIELD = """  %{name}.place = getelementptr i8, ptr %record, i64 {offset}
  %{name} = load {type}, ptr %{name}.place
"""


def _fields(*names: str) -> str:
    types = dict.fromkeys(_FIELDS, "ptr") | {"expected": "i64", "depth": "i64"}
    return "".join(_FIELD.format(name=n, offset=8 * _FIELDS.index(n), type=types[n]) for n in names)


_OPENING = """start:
  %record = call ptr @PyCapsule_GetPointer(ptr %self, ptr null)
{fields}
  %slots = alloca i64, i64 %expected, align 16
  %fine = call i1 @tracefuse_convert(ptr %arguments, i64 %count, ptr %slots, ptr %kinds, i64 %expected, ptr %name)
  br i1 %fine, label %run, label %failed
failed:
  ret ptr null
run:"""
"""Reads the record and converts the arguments; what follows has them in %slots."""


# evaluate: runs a program. Divisions by zero give 0, as in kernels.
_TEXT = """
@PyExc_SystemError = external global ptr
@wrong_place = private constant [{message_size} x i8] c"{message}\\00"

declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare ptr @PyLong_FromLongLong(i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.smax.i64(i64, i64)

define internal void @evaluate(ptr %code, ptr %slots, ptr %stack) {{
start:
  br label %head
head:
  %place = phi ptr [ %code, %start ], [ %following, %back ]
  %top = phi ptr [ %stack, %start ], [ %after, %back ]
  %operation = load i64, ptr %place
  %operand.place = getelementptr i64, ptr %place, i64 1
  %operand = load i64, ptr %operand.place
  %following = getelementptr i64, ptr %place, i64 2
  %above = getelementptr i64, ptr %top, i64 1
  %second = getelementptr i64, ptr %top, i64 -1
  %first = getelementptr i64, ptr %top, i64 -2
  switch i64 %operation, label %binary [
    i64 {end}, label %end
    i64 {constant}, label %push
    i64 {slot}, label %argument
  ]
argument:
  %slot = getelementptr i64, ptr %slots, i64 %operand
  %value = load i64, ptr %slot
  br label %push
push:
  %pushed = phi i64 [ %operand, %head ], [ %value, %argument ]
  store i64 %pushed, ptr %top
  br label %back
binary:
  %a = load i64, ptr %first
  %b = load i64, ptr %second
  %zero = icmp eq i64 %b, 0
  %minus = icmp eq i64 %b, -1
  %unsafe = or i1 %zero, %minus
  %divisor = select i1 %unsafe, i64 1, i64 %b
  %quotient = sdiv i64 %a, %divisor
  %remainder = srem i64 %a, %divisor
  %negated = sub i64 0, %a
  %exact = icmp eq i64 %remainder, 0
  %signs = xor i64 %remainder, %divisor
  %differ = icmp slt i64 %signs, 0
  %inexact = xor i1 %exact, true
  %lower = and i1 %differ, %inexact
  %step = zext i1 %lower to i64
  %floored = sub i64 %quotient, %step
  %more = select i1 %lower, i64 %divisor, i64 0
  %positive = add i64 %remainder, %more
  %floordiv.some = select i1 %minus, i64 %negated, i64 %floored
  %truncdiv.some = select i1 %minus, i64 %negated, i64 %quotient
  %floordiv.result = select i1 %zero, i64 0, i64 %floordiv.some
  %truncdiv.result = select i1 %zero, i64 0, i64 %truncdiv.some
  %mod.result = select i1 %unsafe, i64 0, i64 %positive
  %truncmod.result = select i1 %unsafe, i64 0, i64 %remainder
{cases}
back:
  %after = phi ptr [ %above, %push ], [ %second, %computed ]
  br label %head
end:
  ret void
}}

define ptr @{launch}(ptr %self, ptr %arguments, i64 %count) {{
{convert_opening}
{run_fields}
  %stack = alloca i64, i64 %depth, align 16
  call void @evaluate(ptr %code, ptr %slots, ptr %stack)
  %work.place = getelementptr i64, ptr %stack, i64 1
  %addresses.place = getelementptr i64, ptr %stack, i64 2
  %extent = load i64, ptr %stack
  %work = load i64, ptr %work.place
  %addresses = load i64, ptr %addresses.place
  %bits = and i64 %addresses, {line_mask}
  %unaligned = icmp ne i64 %bits, 0
  %some = icmp ne i64 %extent, 0
  %wrong = and i1 %unaligned, %some
  br i1 %wrong, label %refused, label %aligned
refused:
  %exception = load ptr, ptr @PyExc_SystemError
  %none = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %exception, ptr @wrong_place, ptr %name)
  ret ptr null
aligned:
  %result = call ptr @tracefuse_run(ptr %function, ptr %slots, i64 %extent, i64 %work, ptr %parallel_for)
  ret ptr %result
}}

define ptr @{launch_driver}(ptr %self, ptr %arguments, i64 %count) {{
{driver_opening}
  %result = call i64 %function(ptr %slots)
  %interrupted = icmp eq i64 %result, {interrupted}
  br i1 %interrupted, label %failed, label %ended
ended:
  %number = call ptr @PyLong_FromLongLong(i64 %result)
  ret ptr %number
}}
"""


def launch_text() -> str:
    """Return the text of these functions, for the module of `shared_functions.shared_text`."""
    places = (_FIELDS.index(name) for name in ("code", "function", "parallel_for"))
    return replay_text(*places) + _TEXT.format(
        end=_END,
        constant=_CONSTANT,
        slot=_SLOT,
        cases=_binary_cases(),
        launch=LAUNCH,
        launch_driver=LAUNCH_DRIVER,
        convert_opening=_OPENING.format(fields=_fields("kinds", "expected", "name")),
        run_fields=_fields("code", "depth", "function", "parallel_for"),
        driver_opening=_OPENING.format(fields=_fields("kinds", "expected", "name", "function")),
        line_mask=ir.CACHE_LINE - 1,
        interrupted=shared_functions.INTERRUPTED,
        message=_NOT_ALIGNED,
        message_size=len(_NOT_ALIGNED) + 1,
    )
