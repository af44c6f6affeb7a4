"""Whether the arguments of a call are those of a record (`kernel/llvm/replay_functions.py`), in LLVM IR.

What an argument has to be is four words: of an array the address of its type, its rank and flags that it has to have,
the address of its extents, and that of its strides, or 0 for an array that has to be contiguous; of a float, zeros; of
an integer, 0, 1 and its value. The elements of an array have to be aligned. The fields of arrays are read at their
offsets.

Must not know: plans.
"""

from __future__ import annotations

import ctypes

import numpy as np

from tracefuse.kernel.llvm.shared_functions import HEADER_BYTES

_PLAIN, _ALIGNED, WRITABLE = 0x101, 0x100, 0x400
"""The flags that an array has to have: one that is contiguous, one with strides, and one that the call updates."""

FLAGS_SHIFT = 32
"""The place of further flags in the word of the rank."""


def reads_fields() -> bool:
    """Return whether arrays have the layout that the text reads: rank, extents, descr and flags behind the address."""
    for shape in ((3,), (2, 5)):
        array = np.zeros(shape, np.float32)
        fields = ctypes.cast(id(array) + HEADER_BYTES, ctypes.POINTER(ctypes.c_uint64 * 7)).contents
        sizes = ctypes.POINTER(ctypes.c_int64 * len(shape))
        extents, strides = (tuple(ctypes.cast(fields[k], sizes).contents) for k in (2, 3))
        found = (fields[1] & 0xFFFFFFFF, extents, strides, fields[5], fields[6] & 0xFFFFFFFF)
        if found != (len(shape), shape, array.strides, id(array.dtype), array.flags.num):
            return False
    return True


# word, pointer: an element of an array of words. fits: whether a tuple is the arguments of a record; the module defines
# `fits_array` for its arrays.
_WORDS = """
@PyFloat_Type = external global i8
@PyLong_Type = external global i8

declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyLong_AsLongLong(ptr)

define internal i64 @word(ptr %words, i64 %k) {{
  %place = getelementptr i64, ptr %words, i64 %k
  %value = load i64, ptr %place
  ret i64 %value
}}

define internal ptr @pointer(ptr %words, i64 %k) {{
  %place = getelementptr ptr, ptr %words, i64 %k
  %value = load ptr, ptr %place
  ret ptr %value
}}

define internal i1 @has_type(ptr %object, ptr %type) {{
  %place = getelementptr i8, ptr %object, i64 {type_offset}
  %own = load ptr, ptr %place
  %same = icmp eq ptr %own, %type
  ret i1 %same
}}

define internal i1 @are_equal(ptr %words, ptr %expected, i64 %count) {{
start:
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %next, %compare ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %compare, label %yes
compare:
  %one = call i64 @word(ptr %words, i64 %k)
  %other = call i64 @word(ptr %expected, i64 %k)
  %same = icmp eq i64 %one, %other
  %next = add i64 %k, 1
  br i1 %same, label %head, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal i1 @fits_number(ptr %object, ptr %expected) {{
start:
  %is.integer = call i64 @word(ptr %expected, i64 1)
  %wants.float = icmp eq i64 %is.integer, 0
  br i1 %wants.float, label %float, label %integer
float:
  %is.float = call i1 @has_type(ptr %object, ptr @PyFloat_Type)
  ret i1 %is.float
integer:
  %right = call i1 @has_type(ptr %object, ptr @PyLong_Type)
  br i1 %right, label %compare, label %no
compare:
  %value = call i64 @PyLong_AsLongLong(ptr %object)
  %value.expected = call i64 @word(ptr %expected, i64 2)
  %same = icmp eq i64 %value, %value.expected
  %large = icmp eq i64 %value, -1
  br i1 %large, label %clear, label %compared
clear:
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  call void @PyErr_Clear()
  %both = and i1 %same, %fine
  ret i1 %both
compared:
  ret i1 %same
no:
  ret i1 false
}}

define internal i1 @fits(ptr %record, ptr %arguments) {{
start:
  %expected = call i64 @word(ptr %record, i64 0)
  %size = call i64 @PyTuple_Size(ptr %arguments)
  %right = icmp eq i64 %size, %expected
  %table = call ptr @pointer(ptr %record, i64 1)
  br i1 %right, label %head, label %no
head:
  %k = phi i64 [ 0, %start ], [ %next, %tested ]
  %more = icmp slt i64 %k, %expected
  br i1 %more, label %test, label %yes
test:
  %object = call ptr @PyTuple_GetItem(ptr %arguments, i64 %k)
  %place = getelementptr [4 x i64], ptr %table, i64 %k
  %descr = load i64, ptr %place
  %is.number = icmp eq i64 %descr, 0
  br i1 %is.number, label %number, label %array
number:
  %right.number = call i1 @fits_number(ptr %object, ptr %place)
  br label %tested
array:
  %is.array = call i1 @fits_array(ptr %object, ptr %place)
  br label %tested
tested:
  %fine = phi i1 [ %right.number, %number ], [ %is.array, %array ]
  %next = add i64 %k, 1
  br i1 %fine, label %head, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}
"""


_ARRAY = """
define internal i1 @fits_array(ptr %object, ptr %expected) {{
start:
  %right = call i1 @has_type(ptr %object, ptr @tracefuse_array_type)
  br i1 %right, label %fields, label %no
fields:
  %descr.place = getelementptr i8, ptr %object, i64 {descr_offset}
  %descr = load ptr, ptr %descr.place
  %descr.expected = call ptr @pointer(ptr %expected, i64 0)
  %same.descr = icmp eq ptr %descr, %descr.expected
  %flags.place = getelementptr i8, ptr %object, i64 {flags_offset}
  %flags = load i32, ptr %flags.place
  %strides.expected = call ptr @pointer(ptr %expected, i64 3)
  %any.strides = icmp eq ptr %strides.expected, null
  %usual = select i1 %any.strides, i32 {plain}, i32 {aligned}
  %second.word = call i64 @word(ptr %expected, i64 1)
  %more.word = lshr i64 %second.word, {flags_shift}
  %more = trunc i64 %more.word to i32
  %mask = or i32 %usual, %more
  %plain = and i32 %flags, %mask
  %is.plain = icmp eq i32 %plain, %mask
  %rank.place = getelementptr i8, ptr %object, i64 {rank_offset}
  %rank.short = load i32, ptr %rank.place
  %rank = sext i32 %rank.short to i64
  %rank.expected = and i64 %second.word, {rank_mask}
  %same.rank = icmp eq i64 %rank, %rank.expected
  %both = and i1 %same.descr, %is.plain
  %all = and i1 %both, %same.rank
  br i1 %all, label %sizes, label %no
sizes:
  %extents.place = getelementptr i8, ptr %object, i64 {extents_offset}
  %extents = load ptr, ptr %extents.place
  %extents.expected = call ptr @pointer(ptr %expected, i64 2)
  %same.extents = call i1 @are_equal(ptr %extents, ptr %extents.expected, i64 %rank)
  br i1 %same.extents, label %layout, label %no
layout:
  br i1 %any.strides, label %yes, label %strided
strided:
  %strides.place = getelementptr i8, ptr %object, i64 {strides_offset}
  %strides = load ptr, ptr %strides.place
  %same.strides = call i1 @are_equal(ptr %strides, ptr %strides.expected, i64 %rank)
  ret i1 %same.strides
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal ptr @address_of(ptr %object) {{
  %place = getelementptr i8, ptr %object, i64 {data_offset}
  %address = load ptr, ptr %place
  ret ptr %address
}}
"""


def words_text() -> str:
    """Return the functions that do not depend on what arrays look like."""
    return _WORDS.format(type_offset=HEADER_BYTES - 8)


def arguments_text() -> str:
    """Return the text of the functions, for the module of `kernel/llvm/replay_functions.py`."""
    return words_text() + _ARRAY.format(
        data_offset=HEADER_BYTES,
        rank_offset=HEADER_BYTES + 8,
        extents_offset=HEADER_BYTES + 16,
        descr_offset=HEADER_BYTES + 40,
        flags_offset=HEADER_BYTES + 48,
        strides_offset=HEADER_BYTES + 24,
        plain=_PLAIN,
        aligned=_ALIGNED,
        flags_shift=FLAGS_SHIFT,
        rank_mask=(1 << FLAGS_SHIFT) - 1,
    )
