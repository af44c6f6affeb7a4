"""The new arrays of calls that are replayed (`kernel/llvm/replay_functions.py`), in LLVM IR.

They are views of owners from the cache of freed buffers (`runtime/devices/cpu_memory.py`): an owner that nothing but
its entry refers to is free. Where none is, a function of Python makes the array.

Must not know: plans.
"""

from __future__ import annotations

import ctypes
from typing import Any

from tracefuse.kernel.llvm.shared_functions import HEADER_BYTES

MOST_OWNERS = 64
"""The owners of a size that are examined before Python looks for one."""

_NEW_FROM_DESCR, _SET_BASE_OBJECT = 94, 282
"""Places in the table of NumPy's C interface, which are stable."""

_CARRAY = 0x501
"""The flags of a new array: contiguous, aligned, writable."""

_ALIGNMENT = 64


def array_functions() -> dict[str, int]:
    """Return the addresses of NumPy's functions that the text calls, by symbol."""
    from numpy._core import multiarray

    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule: Any = multiarray._ARRAY_API
    table = ctypes.cast(get_pointer(capsule, None), ctypes.POINTER(ctypes.c_void_p))
    places = {"tracefuse_new_array": _NEW_FROM_DESCR, "tracefuse_set_base": _SET_BASE_OBJECT}
    return {symbol: table[place] or 0 for symbol, place in places.items()}


# free_owner: a free owner, null if none is; then the next call examines others. take: a view of an owner. new_array:
# null with an exception set if it cannot be made.
_TEXT = """
@rotate = private constant [7 x i8] c"rotate\\00"
@number = private constant [2 x i8] c"i\\00"

declare i64 @PySequence_Size(ptr)
declare ptr @PySequence_GetItem(ptr, i64)
declare ptr @PyObject_CallMethod(ptr, ptr, ptr, ...)
declare ptr @tracefuse_new_array(ptr, ptr, i32, ptr, ptr, ptr, i32, ptr)
declare i32 @tracefuse_set_base(ptr, ptr)

define internal ptr @free_owner(ptr %owners) {{
start:
  %none = icmp eq ptr %owners, null
  br i1 %none, label %no, label %count
count:
  %size = call i64 @PySequence_Size(ptr %owners)
  %most = call i64 @llvm.smin.i64(i64 %size, i64 {most_owners})
  br label %head
head:
  %k = phi i64 [ 0, %count ], [ %next, %examine ]
  %more = icmp slt i64 %k, %most
  br i1 %more, label %entry, label %full
full:
  %nothing = call ptr (ptr, ptr, ptr, ...)
    @PyObject_CallMethod(ptr %owners, ptr @rotate, ptr @number, i32 -{most_owners})
  call void @Py_DecRef(ptr %nothing)
  br label %no
entry:
  %pair = call ptr @PySequence_GetItem(ptr %owners, i64 %k)
  %missing = icmp eq ptr %pair, null
  br i1 %missing, label %no, label %examine
examine:
  %owner = call ptr @PyTuple_GetItem(ptr %pair, i64 0)
  call void @Py_DecRef(ptr %pair)
  %references = load i32, ptr %owner
  %free = icmp eq i32 %references, 1
  %next = add i64 %k, 1
  br i1 %free, label %yes, label %head
yes:
  ret ptr %owner
no:
  ret ptr null
}}

define internal ptr @take(ptr %owner, ptr %words) {{
start:
  %data.place = getelementptr i8, ptr %owner, i64 {data_offset}
  %data = load i64, ptr %data.place
  %above = add i64 %data, {alignment_less_one}
  %aligned = and i64 %above, -{alignment}
  %address = inttoptr i64 %aligned to ptr
  %descr = call ptr @pointer(ptr %words, i64 2)
  %rank = call i64 @word(ptr %words, i64 3)
  %rank.short = trunc i64 %rank to i32
  %extents = call ptr @pointer(ptr %words, i64 4)
  %strides = call ptr @pointer(ptr %words, i64 8)
  call void @Py_IncRef(ptr %descr)
  %array = call ptr @tracefuse_new_array(ptr @tracefuse_array_type, ptr %descr, i32 %rank.short, ptr %extents,
    ptr %strides, ptr %address, i32 {carray}, ptr null)
  %none = icmp eq ptr %array, null
  br i1 %none, label %failed, label %made
made:
  call void @Py_IncRef(ptr %owner)
  %status = call i32 @tracefuse_set_base(ptr %array, ptr %owner)
  %fine = icmp eq i32 %status, 0
  br i1 %fine, label %done, label %dropped
done:
  ret ptr %array
dropped:
  call void @Py_DecRef(ptr %array)
  br label %failed
failed:
  ret ptr null
}}

define internal ptr @new_array(ptr %words, ptr %make) {{
start:
  %owners = call ptr @pointer(ptr %words, i64 5)
  %owner = call ptr @free_owner(ptr %owners)
  %none = icmp eq ptr %owner, null
  br i1 %none, label %call, label %view
view:
  %array = call ptr @take(ptr %owner, ptr %words)
  ret ptr %array
call:
  call void @PyErr_Clear()
  %shape.place = getelementptr ptr, ptr %words, i64 6
  %made = call ptr @PyObject_Vectorcall(ptr %make, ptr %shape.place, i64 2, ptr null)
  ret ptr %made
}}
"""


def arrays_text() -> str:
    """Return the text of the functions, for the module of `kernel/llvm/replay_functions.py`."""
    return _TEXT.format(
        data_offset=HEADER_BYTES,
        carray=_CARRAY,
        alignment=_ALIGNMENT,
        alignment_less_one=_ALIGNMENT - 1,
        most_owners=MOST_OWNERS,
    )
