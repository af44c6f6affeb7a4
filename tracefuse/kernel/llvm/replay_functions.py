"""What replays a call: a function in LLVM IR that runs what a call of a plan did before, for arguments of equal sizes.

For arguments of the same sizes, a call allocates the same shapes and launches the same kernels with the same integers.
So a record lists them, and the function tests the arguments against it, allocates, launches and releases without Python
code. Arguments that no record fits go to a function of Python, which runs the call and may add a record.

A record is an array of 64-bit words: the number of arguments, the addresses of what they have to be
(`kernel/llvm/replay_arguments.py`) and of instructions, the numbers of values and slots, the depth of the stack, and
the number of results.

Must not know: plans.
"""

from __future__ import annotations

from tracefuse.kernel.llvm.direct_calls import direct_text
from tracefuse.kernel.llvm.replay_arguments import arguments_text
from tracefuse.kernel.llvm.replay_arrays import arrays_text
from tracefuse.kernel.llvm.replay_copies import copies_text
from tracefuse.kernel.llvm.replay_frame import frame_text
from tracefuse.kernel.llvm.replay_spans import WORDS, spans_text

REPLAY = "tracefuse_replay"
"""The symbol of the function: of the METH_O signature, over a capsule of a chain of records."""

MOST_RECORDS = 8

FIRST_RECORD = 3
"""The place of the first record in a chain, behind its count, the function for other calls and that for arrays."""

ALLOCATE, LAUNCH, RELEASE, RETURN, COPY, APART = range(6)
"""Instructions and their words: value, descr, rank, address of extents, owners, shape, kind, address of strides or 0
for a contiguous array; launch record, slots,
their address, patches, their address; value; results, address of their values; those of
`kernel/llvm/replay_copies.py`; those of `kernel/llvm/replay_spans.py`. Where two arrays that have to be apart are not,
a call runs without a record.

A patch is a slot, a value, a kind and an offset: PATCH_ADDRESS, that many bytes on, PATCH_DOUBLE or PATCH_SINGLE of the
value. PATCH_FLAG is the address of a word of the call, in which kernels leave a number where an index is out of range.
"""

PATCH_ADDRESS, PATCH_DOUBLE, PATCH_SINGLE, PATCH_FLAG = range(4)

# run_record_for: runs the instructions and returns the list of the results, or alone the first one; null, with no
# exception, if an array cannot be made or an index is out of range.
_TEXT = """
define internal void @launch(ptr %words, ptr %values, ptr %slots, ptr %stack, ptr %flag) {{
start:
  %record = call ptr @pointer(ptr %words, i64 1)
  %count = call i64 @word(ptr %words, i64 2)
  %template = call ptr @pointer(ptr %words, i64 3)
  %patches = call i64 @word(ptr %words, i64 4)
  %patch.table = call ptr @pointer(ptr %words, i64 5)
  %bytes = shl i64 %count, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %slots, ptr %template, i64 %bytes, i1 false)
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %next, %back ]
  %more = icmp slt i64 %k, %patches
  br i1 %more, label %patch, label %run
patch:
  %entry = getelementptr [4 x i64], ptr %patch.table, i64 %k
  %number = call i64 @word(ptr %entry, i64 0)
  %value = call i64 @word(ptr %entry, i64 1)
  %kind = call i64 @word(ptr %entry, i64 2)
  %slot = getelementptr i64, ptr %slots, i64 %number
  %next = add i64 %k, 1
  %is.flag = icmp eq i64 %kind, {patch_flag}
  br i1 %is.flag, label %flag_, label %valued
flag_:
  store ptr %flag, ptr %slot
  br label %back
valued:
  %object = call ptr @pointer(ptr %values, i64 %value)
  %is.array = icmp eq i64 %kind, {patch_address}
  br i1 %is.array, label %array, label %number_
array:
  %data = call ptr @address_of(ptr %object)
  %offset = call i64 @word(ptr %entry, i64 3)
  %element = getelementptr i8, ptr %data, i64 %offset
  store ptr %element, ptr %slot
  br label %back
number_:
  %double = call double @PyFloat_AsDouble(ptr %object)
  %is.double = icmp eq i64 %kind, {patch_double}
  br i1 %is.double, label %wide, label %narrow
wide:
  store double %double, ptr %slot
  br label %back
narrow:
  %single = fptrunc double %double to float
  store float %single, ptr %slot
  br label %back
back:
  br label %head
run:
  %code = call ptr @pointer(ptr %record, i64 {code_field})
  %function = call ptr @pointer(ptr %record, i64 {function_field})
  %parallel_for = call ptr @pointer(ptr %record, i64 {parallel_field})
  call void @evaluate(ptr %code, ptr %slots, ptr %stack)
  %extent = call i64 @word(ptr %stack, i64 0)
  %work = call i64 @word(ptr %stack, i64 1)
  %done = call ptr @tracefuse_run(ptr %function, ptr %slots, i64 %extent, i64 %work, ptr %parallel_for)
  call void @Py_DecRef(ptr %done)
  ret void
}}

define internal ptr @run_record(ptr %record, ptr %arguments, ptr %chain) {{
  %results = call ptr @run_record_for(ptr %record, ptr %arguments, ptr %chain, i1 false)
  ret ptr %results
}}

define internal ptr @run_record_for(ptr %record, ptr %arguments, ptr %chain, i1 %alone) {{
start:
  %make = call ptr @pointer(ptr %chain, i64 2)
  %given = call i64 @word(ptr %record, i64 0)
  %code = call ptr @pointer(ptr %record, i64 2)
  %count = call i64 @word(ptr %record, i64 3)
  %most.slots = call i64 @word(ptr %record, i64 4)
  %depth = call i64 @word(ptr %record, i64 5)
  %values = alloca ptr, i64 %count, align 16
  %slots = alloca i64, i64 %most.slots, align 16
  %stack = alloca i64, i64 %depth, align 16
  %flag = alloca i64, align 16
  store i64 0, ptr %flag
  %bytes = shl i64 %count, 3
  call void @llvm.memset.p0.i64(ptr %values, i8 0, i64 %bytes, i1 false)
  br label %arguments.head
arguments.head:
  %k = phi i64 [ 0, %start ], [ %k.next, %argument ]
  %left = icmp slt i64 %k, %given
  br i1 %left, label %argument, label %head
argument:
  %object = call ptr @PyTuple_GetItem(ptr %arguments, i64 %k)
  %value.place = getelementptr ptr, ptr %values, i64 %k
  store ptr %object, ptr %value.place
  %k.next = add i64 %k, 1
  br label %arguments.head
head:
  %words = phi ptr [ %code, %arguments.head ], [ %after.allocation, %allocated ], [ %after.launch, %launched ],
    [ %after.release, %released ], [ %after.copy, %copied ], [ %after.test, %tested ]
  %operation = call i64 @word(ptr %words, i64 0)
  switch i64 %operation, label %end [
    i64 {allocate}, label %allocated_
    i64 {launch}, label %launched
    i64 {release}, label %released
    i64 {copy}, label %copied
    i64 {apart}, label %tested_
  ]
copied:
  call void @copy(ptr %words, ptr %values)
  %after.copy = getelementptr i64, ptr %words, i64 12
  br label %head
tested_:
  %apart = call i1 @are_apart(ptr %words, ptr %values)
  br i1 %apart, label %tested, label %failure
tested:
  %after.test = getelementptr i64, ptr %words, i64 {apart_words}
  br label %head
allocated_:
  %array = call ptr @new_array(ptr %words, ptr %make)
  %failed = icmp eq ptr %array, null
  br i1 %failed, label %failure, label %allocated
allocated:
  %number = call i64 @word(ptr %words, i64 1)
  %array.place = getelementptr ptr, ptr %values, i64 %number
  store ptr %array, ptr %array.place
  %after.allocation = getelementptr i64, ptr %words, i64 9
  br label %head
launched:
  call void @launch(ptr %words, ptr %values, ptr %slots, ptr %stack, ptr %flag)
  %after.launch = getelementptr i64, ptr %words, i64 6
  br label %head
released:
  %old.number = call i64 @word(ptr %words, i64 1)
  %old.place = getelementptr ptr, ptr %values, i64 %old.number
  %old = load ptr, ptr %old.place
  store ptr null, ptr %old.place
  call void @Py_DecRef(ptr %old)
  %after.release = getelementptr i64, ptr %words, i64 2
  br label %head
end:
  %number_flagged = load i64, ptr %flag
  %flagged = icmp ne i64 %number_flagged, 0
  br i1 %flagged, label %failure, label %complete
complete:
  br i1 %alone, label %first, label %several
first:
  %numbers = call ptr @pointer(ptr %words, i64 2)
  %first.number = call i64 @word(ptr %numbers, i64 0)
  %first.place = getelementptr ptr, ptr %values, i64 %first.number
  %first.value = load ptr, ptr %first.place
  store ptr null, ptr %first.place
  call void @drop_values(ptr %values, i64 %given, i64 %count)
  ret ptr %first.value
several:
  %list = call ptr @listed(ptr %words, ptr %values)
  %unlisted = icmp eq ptr %list, null
  br i1 %unlisted, label %failure, label %fine
fine:
  ret ptr %list
failure:
  call void @drop_values(ptr %values, i64 %given, i64 %count)
  call void @PyErr_Clear()
  ret ptr null
}}
"""


def replay_text(code_field: int, function_field: int, parallel_field: int) -> str:
    """Return the text of the function, for the module of the launch functions.

    code_field, function_field, parallel_field: places in a launch record.
    """
    return (
        arguments_text()
        + arrays_text()
        + copies_text()
        + spans_text()
        + frame_text(REPLAY, FIRST_RECORD)
        + direct_text(REPLAY, FIRST_RECORD)
        + _TEXT.format(
            patch_address=PATCH_ADDRESS,
            patch_double=PATCH_DOUBLE,
            patch_flag=PATCH_FLAG,
            allocate=ALLOCATE,
            launch=LAUNCH,
            release=RELEASE,
            copy=COPY,
            apart=APART,
            apart_words=WORDS,
            code_field=code_field,
            function_field=function_field,
            parallel_field=parallel_field,
        )
    )
