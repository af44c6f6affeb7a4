"""Functions that the entry functions of all kernels and loop drivers call, in LLVM IR: compiled once, with the pool.

They read the arguments of Python, run a grid on this thread or on the worker pool, and release and take the GIL. In the
module of each kernel they would take a third of its compile time.

The offset of an array's data pointer is checked by `kernel/llvm/cpu_functions.py` before the first compile.
"""

from __future__ import annotations

# The last word of an object's header is its type; the data pointer of an array follows the header.
HEADER_BYTES = object.__basicsize__
# Work, in elements, below which the GIL is kept, and below which the calling thread runs the whole grid.
KEEP_LOCK_BELOW = 8_192
SERIAL_BELOW = 100_000
# The minimum work of a chunk of the grid, in elements.
CHUNK_WORK = 16_384

WORK_BETWEEN_POLLS = 1 << 20
"""The work, in elements, after which a driver lets Python handle signals."""
INTERRUPTED = -1
"""What `drive` returns if a signal handler, or a function of Python that it called, raised."""

ADDRESS, INTEGER, FLOAT, SINGLE, BOOL = "aifsb"
"""How `tracefuse_convert` converts an argument: to an address, 64 bits of an integer, a double, a float, a byte."""

DECLARATIONS = {
    "tracefuse_convert": "declare i1 @tracefuse_convert(ptr, i64, ptr, ptr, i64, ptr)",
    "tracefuse_run": "declare ptr @tracefuse_run(ptr, ptr, i64, i64, ptr)",
    "tracefuse_run_released": "declare void @tracefuse_run_released(ptr, ptr, i64, i64, ptr, ptr)",
    "tracefuse_take_lock": "declare i64 @tracefuse_take_lock(ptr, i64)",
    # It writes no array, so that a step's elements may stay in registers.
    "tracefuse_poll": "declare i64 @tracefuse_poll(ptr) memory(argmem: readwrite, inaccessiblemem: readwrite)",
    "tracefuse_call_python": "declare i1 @tracefuse_call_python(ptr, ptr, i64, ptr)",
}
"""The functions, by symbol. Comments in the text below describe them."""

# tracefuse_convert: converts the arguments of a METH_FASTCALL function into 8-byte slots, each by its kind in a string
# that a zero ends. Returns false, with an exception set, if an argument is wrong or if there are not %expected of them.
# tracefuse_run: runs a grid of `extent` iterations: on this thread with the GIL if there is little work, else without
# it, on the worker pool if there is much. Returns None.
# tracefuse_run_released: runs a grid on the worker pool. Like the two below it takes the address of a driver's thread
# state, which is null while the driver has the GIL.
# tracefuse_take_lock: takes the GIL unless the driver has it, and returns its second argument.
# tracefuse_poll: lets Python handle signals; returns the work until the next poll, or INTERRUPTED. The first poll of a
# driver only releases the GIL.
# tracefuse_call_python: calls an object of Python with integers from an array, with the GIL, which the driver then has.
# Returns false, with an exception set, if the object raises.
_TEXT = """
@PyExc_TypeError = external global ptr
@_Py_NoneStruct = external global i8
@tracefuse_array_type = external global i8
@wrong_count = private constant [23 x i8] c"%s takes %zd arguments\\00"

declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsUnsignedLongLongMask(ptr)
declare double @PyFloat_AsDouble(ptr)
declare i32 @PyObject_IsTrue(ptr)
declare i32 @PyType_IsSubtype(ptr, ptr)
declare ptr @PyErr_Occurred()
declare ptr @PyErr_Format(ptr, ptr, ...)
declare i32 @PyErr_CheckSignals()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)

define i1 @tracefuse_convert(ptr %arguments, i64 %count, ptr %slots, ptr %kinds, i64 %expected, ptr %name) {{
start:
  %right = icmp eq i64 %count, %expected
  br i1 %right, label %head, label %wrong
wrong:
  %exception = load ptr, ptr @PyExc_TypeError
  %none = call ptr (ptr, ptr, ...) @PyErr_Format(ptr %exception, ptr @wrong_count, ptr %name, i64 %expected)
  ret i1 false
head:
  %k = phi i64 [ 0, %start ], [ %next, %back ]
  %place = getelementptr i8, ptr %kinds, i64 %k
  %kind = load i8, ptr %place
  %argument = getelementptr ptr, ptr %arguments, i64 %k
  %slot = getelementptr i64, ptr %slots, i64 %k
  switch i8 %kind, label %end [
    i8 {address}, label %array
    i8 {integer}, label %integer
    i8 {float}, label %float
    i8 {single}, label %single
    i8 {bool}, label %bool
  ], !prof !0
array:
  %object = load ptr, ptr %argument
  %header = getelementptr i8, ptr %object, i64 {type_offset}
  %type = load ptr, ptr %header
  %exact = icmp eq ptr %type, @tracefuse_array_type
  br i1 %exact, label %data, label %other
other:
  %answer = call i32 @PyType_IsSubtype(ptr %type, ptr @tracefuse_array_type)
  %derived = icmp ne i32 %answer, 0
  br i1 %derived, label %data, label %number
data:
  %field = getelementptr i8, ptr %object, i64 {data_offset}
  %address = load ptr, ptr %field
  store ptr %address, ptr %slot
  br label %back
number:
  %given = call ptr @PyLong_AsVoidPtr(ptr %object)
  store ptr %given, ptr %slot
  br label %back
integer:
  %whole = load ptr, ptr %argument
  %bits = call i64 @PyLong_AsUnsignedLongLongMask(ptr %whole)
  store i64 %bits, ptr %slot
  br label %back
float:
  %real = load ptr, ptr %argument
  %double = call double @PyFloat_AsDouble(ptr %real)
  store double %double, ptr %slot
  br label %back
single:
  %exact_number = load ptr, ptr %argument
  %wide = call double @PyFloat_AsDouble(ptr %exact_number)
  %narrow = fptrunc double %wide to float
  store float %narrow, ptr %slot
  br label %back
bool:
  %condition = load ptr, ptr %argument
  %true = call i32 @PyObject_IsTrue(ptr %condition)
  %holds = icmp ne i32 %true, 0
  %byte = zext i1 %holds to i8
  store i8 %byte, ptr %slot
  br label %back
back:
  %next = add i64 %k, 1
  br label %head
end:
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  ret i1 %fine
}}

define internal void @run_on_pool(ptr %chunk, ptr %slots, i64 %extent, i64 %work, ptr %parallel_for) {{
  %chunks = sdiv i64 %work, {chunk_work}
  %each = sdiv i64 %extent, %chunks
  %grain = add i64 %each, 1
  call void %parallel_for(ptr %chunk, ptr %slots, i64 %extent, i64 %grain)
  ret void
}}

define ptr @tracefuse_run(ptr %chunk, ptr %slots, i64 %extent, i64 %work, ptr %parallel_for) {{
start:
  %small = icmp slt i64 %work, {keep_lock_below}
  br i1 %small, label %here, label %released
here:
  call void %chunk(ptr %slots, i64 0, i64 %extent)
  br label %done
released:
  %state = call ptr @PyEval_SaveThread()
  %medium = icmp slt i64 %work, {serial_below}
  br i1 %medium, label %serial, label %parallel
serial:
  call void %chunk(ptr %slots, i64 0, i64 %extent)
  br label %restore
parallel:
  call void @run_on_pool(ptr %chunk, ptr %slots, i64 %extent, i64 %work, ptr %parallel_for)
  br label %restore
restore:
  call void @PyEval_RestoreThread(ptr %state)
  br label %done
done:
  call void @Py_IncRef(ptr @_Py_NoneStruct)
  ret ptr @_Py_NoneStruct
}}

define internal void @release_lock(ptr %thread) {{
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

define void @tracefuse_run_released(
    ptr %chunk, ptr %slots, i64 %extent, i64 %work, ptr %parallel_for, ptr %thread
) {{
  call void @release_lock(ptr %thread)
  call void @run_on_pool(ptr %chunk, ptr %slots, i64 %extent, i64 %work, ptr %parallel_for)
  ret void
}}

define i64 @tracefuse_take_lock(ptr %thread, i64 %result) {{
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

define i64 @tracefuse_poll(ptr %thread) {{
start:
  %state = load ptr, ptr %thread
  %held = icmp eq ptr %state, null
  br i1 %held, label %go_on, label %look
look:
  %same = call i64 @tracefuse_take_lock(ptr %thread, i64 0)
  %signals = call i32 @PyErr_CheckSignals()
  %fine = icmp eq i32 %signals, 0
  br i1 %fine, label %go_on, label %interrupted
go_on:
  call void @release_lock(ptr %thread)
  ret i64 {poll_after}
interrupted:
  ret i64 {interrupted}
}}

define i1 @tracefuse_call_python(ptr %callable, ptr %values, i64 %count, ptr %thread) {{
start:
  %same = call i64 @tracefuse_take_lock(ptr %thread, i64 0)
  %size = shl i64 %count, 3
  %arguments = alloca i8, i64 %size, align 16
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %next, %convert ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %convert, label %ready
convert:
  %value.place = getelementptr i64, ptr %values, i64 %k
  %value = load i64, ptr %value.place
  %number = call ptr @PyLong_FromLongLong(i64 %value)
  %place = getelementptr ptr, ptr %arguments, i64 %k
  store ptr %number, ptr %place
  %next = add i64 %k, 1
  br label %head
ready:
  %result = call ptr @PyObject_Vectorcall(ptr %callable, ptr %arguments, i64 %count, ptr null)
  br label %dropping
dropping:
  %j = phi i64 [ 0, %ready ], [ %after, %drop ]
  %left = icmp slt i64 %j, %count
  br i1 %left, label %drop, label %dropped
drop:
  %old.place = getelementptr ptr, ptr %arguments, i64 %j
  %old = load ptr, ptr %old.place
  call void @Py_DecRef(ptr %old)
  %after = add i64 %j, 1
  br label %dropping
dropped:
  %raised = icmp eq ptr %result, null
  br i1 %raised, label %failed, label %fine
fine:
  call void @Py_DecRef(ptr %result)
  ret i1 true
failed:
  ret i1 false
}}

; most arguments are arrays
!0 = !{{!"branch_weights", i32 1, i32 100, i32 10, i32 1, i32 1, i32 1}}
"""


def shared_text() -> str:
    """Return the text of the functions, for a module that the symbol `tracefuse_array_type` is linked with."""
    return _TEXT.format(
        address=ord(ADDRESS),
        integer=ord(INTEGER),
        float=ord(FLOAT),
        single=ord(SINGLE),
        bool=ord(BOOL),
        type_offset=HEADER_BYTES - 8,
        data_offset=HEADER_BYTES,
        keep_lock_below=KEEP_LOCK_BELOW,
        serial_below=SERIAL_BELOW,
        chunk_work=CHUNK_WORK,
        poll_after=WORK_BETWEEN_POLLS,
        interrupted=INTERRUPTED,
    )
