"""The arrays of calls that are replayed on a GPU, in LLVM IR: whether an argument fits a record, and new arrays.

They are objects of another library, whose fields are read at places that the caller states, and new ones are made by
that library's functions. What an argument has to be is four words: of an array its type, its rank, the address of its
extents, and the remainder of its address by REMAINDER.

Must not know: plans.
"""

from __future__ import annotations

from typing import NamedTuple

REMAINDER = 16
"""Kernels read and write arrays by accesses of at most so many bytes; a record knows addresses modulo this."""

ALLOCATOR, NEW, ARRAY_TYPE, INITIALIZE = range(7, 11)
"""Words of a chain: functions that allocate bytes, that make an array without fields of a type, and that set them."""


class ArrayLayout(NamedTuple):
    """The places of fields: of an array the vector of extents, whether it is contiguous, type and memory; of a memory
    the address and the device.
    """

    extents: int
    contiguous: int
    dtype: int
    memory: int
    address: int
    device: int


# address_of: the address of the first element. is_on: whether an array is on a device. allocate: the arrays of an
# instruction; false, with an exception set, if one cannot be made.
_ARRAYS = """
define internal ptr @address_of(ptr %object) {{
  %memory.place = getelementptr i8, ptr %object, i64 {memory}
  %memory = load ptr, ptr %memory.place
  %place = getelementptr i8, ptr %memory, i64 {address}
  %address = load ptr, ptr %place
  ret ptr %address
}}

define internal i1 @fits_array(ptr %object, ptr %expected) {{
start:
  %right = call i1 @has_type(ptr %object, ptr @tracefuse_array_type)
  br i1 %right, label %fields, label %no
fields:
  %dtype.place = getelementptr i8, ptr %object, i64 {dtype}
  %dtype = load ptr, ptr %dtype.place
  %dtype.expected = call ptr @pointer(ptr %expected, i64 0)
  %same.dtype = icmp eq ptr %dtype, %dtype.expected
  %contiguous.place = getelementptr i8, ptr %object, i64 {contiguous}
  %contiguous = load i32, ptr %contiguous.place
  %is.contiguous = icmp ne i32 %contiguous, 0
  %extents.place = getelementptr i8, ptr %object, i64 {extents}
  %extents = call ptr @pointer(ptr %extents.place, i64 0)
  %first = call i64 @word(ptr %extents.place, i64 0)
  %end = call i64 @word(ptr %extents.place, i64 1)
  %bytes = sub i64 %end, %first
  %rank = call i64 @word(ptr %expected, i64 1)
  %rank.bytes = shl i64 %rank, 3
  %same.rank = icmp eq i64 %bytes, %rank.bytes
  %data = call ptr @address_of(ptr %object)
  %data.number = ptrtoint ptr %data to i64
  %remainder = and i64 %data.number, {remainder_mask}
  %remainder.expected = call i64 @word(ptr %expected, i64 3)
  %same.remainder = icmp eq i64 %remainder, %remainder.expected
  %one = and i1 %same.dtype, %is.contiguous
  %other = and i1 %same.rank, %same.remainder
  %all = and i1 %one, %other
  br i1 %all, label %sizes, label %no
sizes:
  %extents.expected = call ptr @pointer(ptr %expected, i64 2)
  %same.extents = call i1 @are_equal(ptr %extents, ptr %extents.expected, i64 %rank)
  ret i1 %same.extents
no:
  ret i1 false
}}

define internal i1 @is_on(ptr %object, i64 %device) {{
  %memory.place = getelementptr i8, ptr %object, i64 {memory}
  %memory = load ptr, ptr %memory.place
  %place = getelementptr i8, ptr %memory, i64 {device}
  %own = load i32, ptr %place
  %wide = sext i32 %own to i64
  %same = icmp eq i64 %wide, %device
  ret i1 %same
}}

define internal ptr @made(ptr %chain, ptr %entry, ptr %memory) {{
start:
  %new = call ptr @pointer(ptr %chain, i64 {new})
  %type = call ptr @pointer(ptr %chain, i64 {array_type})
  %array = call ptr @PyObject_CallOneArg(ptr %new, ptr %type)
  %none = icmp eq ptr %array, null
  br i1 %none, label %end, label %fill
fill:
  %given = alloca ptr, i64 4, align 16
  %shape = call ptr @pointer(ptr %entry, i64 1)
  %dtype = call ptr @pointer(ptr %entry, i64 2)
  %shape.place = getelementptr ptr, ptr %given, i64 1
  %dtype.place = getelementptr ptr, ptr %given, i64 2
  %memory.place = getelementptr ptr, ptr %given, i64 3
  store ptr %array, ptr %given
  store ptr %shape, ptr %shape.place
  store ptr %dtype, ptr %dtype.place
  store ptr %memory, ptr %memory.place
  %initialize = call ptr @pointer(ptr %chain, i64 {initialize})
  %answer = call ptr @PyObject_Vectorcall(ptr %initialize, ptr %given, i64 4, ptr null)
  %failed = icmp eq ptr %answer, null
  %dropped = select i1 %failed, ptr %array, ptr %answer
  call void @Py_DecRef(ptr %dropped)
  %kept = select i1 %failed, ptr null, ptr %array
  br label %end
end:
  %result = phi ptr [ null, %start ], [ %kept, %fill ]
  call void @Py_DecRef(ptr %memory)
  ret ptr %result
}}

define internal i1 @allocate(ptr %words, ptr %values, ptr %chain) {{
start:
  %count = call i64 @word(ptr %words, i64 1)
  %entries = call ptr @pointer(ptr %words, i64 2)
  %whole = call ptr @pointer(ptr %words, i64 3)
  %allocator = call ptr @pointer(ptr %chain, i64 {allocator})
  %apart = icmp eq ptr %whole, null
  br i1 %apart, label %head, label %together
together:
  %block = call ptr @PyObject_CallOneArg(ptr %allocator, ptr %whole)
  %none = icmp eq ptr %block, null
  br i1 %none, label %no, label %head
head:
  %shared = phi ptr [ null, %start ], [ %block, %together ], [ %shared, %keep ]
  %k = phi i64 [ 0, %start ], [ 0, %together ], [ %next, %keep ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %done
one:
  %entry = getelementptr [5 x i64], ptr %entries, i64 %k
  br i1 %apart, label %own, label %part
own:
  %bytes = call ptr @pointer(ptr %entry, i64 3)
  %own.memory = call ptr @PyObject_CallOneArg(ptr %allocator, ptr %bytes)
  br label %placed
part:
  %offset = call ptr @pointer(ptr %entry, i64 4)
  %part.memory = call ptr @PyNumber_Add(ptr %shared, ptr %offset)
  br label %placed
placed:
  %memory = phi ptr [ %own.memory, %own ], [ %part.memory, %part ]
  %missing = icmp eq ptr %memory, null
  br i1 %missing, label %failed, label %make
make:
  %array = call ptr @made(ptr %chain, ptr %entry, ptr %memory)
  %unmade = icmp eq ptr %array, null
  br i1 %unmade, label %failed, label %keep
keep:
  %number = call i64 @word(ptr %entry, i64 0)
  %place = getelementptr ptr, ptr %values, i64 %number
  store ptr %array, ptr %place
  %next = add i64 %k, 1
  br label %head
done:
  br i1 %apart, label %yes, label %drop
drop:
  call void @Py_DecRef(ptr %shared)
  br label %yes
failed:
  br i1 %apart, label %no, label %drop.failed
drop.failed:
  call void @Py_DecRef(ptr %shared)
  br label %no
yes:
  ret i1 true
no:
  ret i1 false
}}
"""


def device_arrays_text(layout: ArrayLayout) -> str:
    """Return the text of the functions for arrays with this layout."""
    words = {"new": NEW, "array_type": ARRAY_TYPE, "initialize": INITIALIZE, "allocator": ALLOCATOR}
    return _ARRAYS.format(**layout._asdict(), **words, remainder_mask=REMAINDER - 1)
