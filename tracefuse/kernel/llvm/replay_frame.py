"""The entry of calls that are replayed, on the CPU and on GPUs, in LLVM IR: it finds a record that fits and runs it.

A chain is an array of 64-bit words: the number of records, the function of Python for calls that none fits, words of
the target, and the records. The module defines `run_record`, which returns the results, or null: with an exception
set if the call has failed, and without one if no record fits after all and nothing has changed.

Must not know: plans.
"""

from __future__ import annotations

# drop_values: drops the values from one number to another. listed: the list of the results, from the words of their
# instruction: the count and the address of their numbers.
_TEXT = """
@PyTuple_Type = external global i8

declare ptr @PySequence_Tuple(ptr)
declare ptr @PyList_New(i64)
declare i32 @PyList_SetItem(ptr, i64, ptr)
declare void @PyErr_Clear()
declare ptr @PyObject_CallOneArg(ptr, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)

define internal void @drop_values(ptr %values, i64 %first, i64 %last) {{
start:
  br label %head
head:
  %k = phi i64 [ %first, %start ], [ %next, %back ]
  %more = icmp slt i64 %k, %last
  br i1 %more, label %one, label %end
one:
  %value = call ptr @pointer(ptr %values, i64 %k)
  %none = icmp eq ptr %value, null
  %next = add i64 %k, 1
  br i1 %none, label %back, label %drop
drop:
  call void @Py_DecRef(ptr %value)
  br label %back
back:
  br label %head
end:
  ret void
}}

define internal ptr @listed(ptr %words, ptr %values) {{
start:
  %count = call i64 @word(ptr %words, i64 1)
  %numbers = call ptr @pointer(ptr %words, i64 2)
  %list = call ptr @PyList_New(i64 %count)
  %none = icmp eq ptr %list, null
  br i1 %none, label %end, label %head
head:
  %k = phi i64 [ 0, %start ], [ %next, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %end
one:
  %number = call i64 @word(ptr %numbers, i64 %k)
  %place = getelementptr ptr, ptr %values, i64 %number
  %value = load ptr, ptr %place
  store ptr null, ptr %place
  %status = call i32 @PyList_SetItem(ptr %list, i64 %k, ptr %value)
  %next = add i64 %k, 1
  br label %head
end:
  ret ptr %list
}}

define internal ptr @replay_tuple(ptr %chain, ptr %arguments) {{
start:
  %count = call i64 @word(ptr %chain, i64 0)
  %end = add i64 %count, {first_record}
  br label %head
head:
  %k = phi i64 [ {first_record}, %start ], [ %next, %try ]
  %more = icmp slt i64 %k, %end
  br i1 %more, label %try, label %missed
try:
  %record = call ptr @pointer(ptr %chain, i64 %k)
  %fits = call i1 @fits(ptr %record, ptr %arguments)
  %next = add i64 %k, 1
  br i1 %fits, label %run, label %head
run:
  %result = call ptr @run_record(ptr %record, ptr %arguments, ptr %chain)
  %failed = icmp eq ptr %result, null
  br i1 %failed, label %examine, label %done
examine:
  %error = call ptr @PyErr_Occurred()
  %raised = icmp ne ptr %error, null
  br i1 %raised, label %done, label %missed
done:
  ret ptr %result
missed:
  %otherwise = call ptr @pointer(ptr %chain, i64 1)
  %answer = call ptr @PyObject_CallOneArg(ptr %otherwise, ptr %arguments)
  ret ptr %answer
}}

define ptr @{replay}(ptr %self, ptr %arguments) {{
start:
  %chain = call ptr @PyCapsule_GetPointer(ptr %self, ptr null)
  %is.tuple = call i1 @has_type(ptr %arguments, ptr @PyTuple_Type)
  br i1 %is.tuple, label %given, label %other
given:
  %direct = call ptr @replay_tuple(ptr %chain, ptr %arguments)
  ret ptr %direct
other:
  %copy = call ptr @PySequence_Tuple(ptr %arguments)
  %none = icmp eq ptr %copy, null
  br i1 %none, label %failed, label %copied
copied:
  %result = call ptr @replay_tuple(ptr %chain, ptr %copy)
  call void @Py_DecRef(ptr %copy)
  ret ptr %result
failed:
  ret ptr null
}}
"""


def frame_text(entry: str, first_record: int) -> str:
    """Return the text of the functions. entry: the symbol of the exported one, of the METH_O signature.

    first_record: the place of the first record in a chain.
    """
    return _TEXT.format(replay=entry, first_record=first_record)
