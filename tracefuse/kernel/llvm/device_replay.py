"""What replays a call that launches kernels on a GPU: a function in LLVM IR over a chain of records.

It does what `kernel/llvm/replay_functions.py` does on the CPU. `kernel/llvm/device_arrays.py` reads and makes arrays.

Must not know: plans.
"""

from __future__ import annotations

from tracefuse.caches import memoized
from tracefuse.kernel.cache.disk_cache import DiskCache, hashed, load_or_make
from tracefuse.kernel.llvm.device_arrays import ArrayLayout, device_arrays_text
from tracefuse.kernel.llvm.machine_code import LinkedCode, get_machine
from tracefuse.kernel.llvm.replay_arguments import words_text
from tracefuse.kernel.llvm.replay_frame import frame_text
from tracefuse.kernel.llvm.replay_spans import WORDS, spans_text

REPLAY = "tracefuse_replay_on_device"

ALLOCATE, LAUNCH, RELEASE, RETURN, APART = range(5)
"""Instructions and their words: number of arrays, address of their entries, bytes of their allocation (null if each has
its own); function, blocks in x, y, z, threads, bytes of shared memory, number of parameters, address of their places,
bytes of slots, address of their contents, patches, their address; value; results, address of their values; those of
`kernel/llvm/replay_spans.py`.

The entry of an array is its value and the objects shape, dtype, bytes, offset in the allocation. A patch is the place
of a slot, a value, a kind and an offset: PATCH_ADDRESS, that many bytes on, PATCH_DOUBLE or PATCH_SINGLE of the value.
"""

PATCH_ADDRESS, PATCH_DOUBLE, PATCH_SINGLE = range(3)

STREAM, POINTER, CURRENT_DEVICE, DEVICE, FAILED = range(2, 7)
FIRST_RECORD = 11
"""Words of a chain: the functions that return the current stream and the current device (null if there is only one),
and the function that raises for an error of a launch, or returns where the call begins again in Python; POINTER is the
name of an attribute of streams, DEVICE the number of the device. Between them and the first record are those of
`kernel/llvm/device_arrays.py`.
"""

_DECLARATIONS = """
declare ptr @PyErr_Occurred()
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyNumber_Add(ptr, ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyCapsule_GetPointer(ptr, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_DecRef(ptr)
@tracefuse_array_type = external global i8
declare i32 @tracefuse_launch_kernel(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)
"""

# launch: the error of a launch. run_record: see `kernel/llvm/replay_frame.py`; the launch releases the GIL, since it
# waits for the GPU where the queue of a stream is full.
_RUN = """
define internal i32 @launch(ptr %words, ptr %values, ptr %slots, ptr %parameters, ptr %stream) {{
start:
  %bytes = call i64 @word(ptr %words, i64 9)
  %contents = call ptr @pointer(ptr %words, i64 10)
  %patches = call i64 @word(ptr %words, i64 11)
  %patch.table = call ptr @pointer(ptr %words, i64 12)
  call void @llvm.memcpy.p0.p0.i64(ptr %slots, ptr %contents, i64 %bytes, i1 false)
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %next, %back ]
  %more = icmp slt i64 %k, %patches
  br i1 %more, label %patch, label %places
patch:
  %entry = getelementptr [4 x i64], ptr %patch.table, i64 %k
  %slot.place = call i64 @word(ptr %entry, i64 0)
  %value = call i64 @word(ptr %entry, i64 1)
  %kind = call i64 @word(ptr %entry, i64 2)
  %slot = getelementptr i8, ptr %slots, i64 %slot.place
  %object = call ptr @pointer(ptr %values, i64 %value)
  %next = add i64 %k, 1
  %is.array = icmp eq i64 %kind, {patch_address}
  br i1 %is.array, label %array, label %number
array:
  %data = call ptr @address_of(ptr %object)
  %offset = call i64 @word(ptr %entry, i64 3)
  %element = getelementptr i8, ptr %data, i64 %offset
  store ptr %element, ptr %slot
  br label %back
number:
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
places:
  %count = call i64 @word(ptr %words, i64 7)
  %place.table = call ptr @pointer(ptr %words, i64 8)
  br label %place.head
place.head:
  %n = phi i64 [ 0, %places ], [ %n.next, %place ]
  %left = icmp slt i64 %n, %count
  br i1 %left, label %place, label %run
place:
  %at = call i64 @word(ptr %place.table, i64 %n)
  %parameter = getelementptr i8, ptr %slots, i64 %at
  %parameter.place = getelementptr ptr, ptr %parameters, i64 %n
  store ptr %parameter, ptr %parameter.place
  %n.next = add i64 %n, 1
  br label %place.head
run:
  %function = call ptr @pointer(ptr %words, i64 1)
{numbers}
  %state = call ptr @PyEval_SaveThread()
  %error = call i32 @tracefuse_launch_kernel(ptr %function, i32 %x, i32 %y, i32 %z, i32 %threads, i32 1, i32 1,
    i32 %memory, ptr %stream, ptr %parameters, ptr null)
  call void @PyEval_RestoreThread(ptr %state)
  ret i32 %error
}}

define internal ptr @stream_of(ptr %chain, ptr %object) {{
start:
  %name = call ptr @pointer(ptr %chain, i64 {pointer})
  %number = call ptr @PyObject_GetAttr(ptr %object, ptr %name)
  %stream = call ptr @PyLong_AsVoidPtr(ptr %number)
  call void @Py_DecRef(ptr %number)
  ret ptr %stream
}}

define internal i1 @is_here(ptr %chain, ptr %arguments, ptr %table, i64 %given) {{
start:
  %current = call ptr @pointer(ptr %chain, i64 {current_device})
  %single = icmp eq ptr %current, null
  br i1 %single, label %yes, label %several
several:
  %device = call i64 @word(ptr %chain, i64 {device_number})
  %number = call ptr @PyObject_CallNoArgs(ptr %current)
  %none = icmp eq ptr %number, null
  br i1 %none, label %no, label %compare
compare:
  %own = call i64 @PyLong_AsLongLong(ptr %number)
  call void @Py_DecRef(ptr %number)
  %same = icmp eq i64 %own, %device
  br i1 %same, label %head, label %no
head:
  %k = phi i64 [ 0, %compare ], [ %next, %back ]
  %more = icmp slt i64 %k, %given
  br i1 %more, label %one, label %yes
one:
  %entry = getelementptr [4 x i64], ptr %table, i64 %k
  %dtype = call i64 @word(ptr %entry, i64 0)
  %is.number = icmp eq i64 %dtype, 0
  br i1 %is.number, label %back, label %array
array:
  %object = call ptr @PyTuple_GetItem(ptr %arguments, i64 %k)
  %there = call i1 @is_on(ptr %object, i64 %device)
  br i1 %there, label %back, label %no
back:
  %next = add i64 %k, 1
  br label %head
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal ptr @run_record(ptr %record, ptr %arguments, ptr %chain) {{
start:
  %given = call i64 @word(ptr %record, i64 0)
  %table = call ptr @pointer(ptr %record, i64 1)
  %code = call ptr @pointer(ptr %record, i64 2)
  %count = call i64 @word(ptr %record, i64 3)
  %most.slots = call i64 @word(ptr %record, i64 4)
  %most.parameters = call i64 @word(ptr %record, i64 5)
  %values = alloca ptr, i64 %count, align 16
  %slots = alloca i8, i64 %most.slots, align 16
  %parameters = alloca ptr, i64 %most.parameters, align 16
  %bytes = shl i64 %count, 3
  call void @llvm.memset.p0.i64(ptr %values, i8 0, i64 %bytes, i1 false)
  %here = call i1 @is_here(ptr %chain, ptr %arguments, ptr %table, i64 %given)
  br i1 %here, label %arguments.head, label %failure
arguments.head:
  %k = phi i64 [ 0, %start ], [ %k.next, %argument ]
  %left = icmp slt i64 %k, %given
  br i1 %left, label %argument, label %find
argument:
  %object = call ptr @PyTuple_GetItem(ptr %arguments, i64 %k)
  %value.place = getelementptr ptr, ptr %values, i64 %k
  store ptr %object, ptr %value.place
  %k.next = add i64 %k, 1
  br label %arguments.head
find:
  %current.stream = call ptr @pointer(ptr %chain, i64 {stream_function})
  %stream.object = call ptr @PyObject_CallNoArgs(ptr %current.stream)
  %no.stream = icmp eq ptr %stream.object, null
  br i1 %no.stream, label %failure, label %found
found:
  %stream = call ptr @stream_of(ptr %chain, ptr %stream.object)
  br label %head
head:
  %words = phi ptr [ %code, %found ], [ %after.allocation, %allocated ], [ %after.launch, %launched ],
    [ %after.release, %released ], [ %after.test, %tested ]
  %operation = call i64 @word(ptr %words, i64 0)
  switch i64 %operation, label %end [
    i64 {allocate}, label %allocated_
    i64 {launch}, label %launched_
    i64 {release}, label %released
    i64 {apart}, label %tested_
  ]
tested_:
  %apart = call i1 @are_apart(ptr %words, ptr %values)
  br i1 %apart, label %tested, label %stopped
tested:
  %after.test = getelementptr i64, ptr %words, i64 {apart_words}
  br label %head
allocated_:
  %made = call i1 @allocate(ptr %words, ptr %values, ptr %chain)
  br i1 %made, label %allocated, label %stopped
allocated:
  %after.allocation = getelementptr i64, ptr %words, i64 4
  br label %head
launched_:
  %error = call i32 @launch(ptr %words, ptr %values, ptr %slots, ptr %parameters, ptr %stream)
  %fine = icmp eq i32 %error, 0
  br i1 %fine, label %launched, label %rejected
launched:
  %after.launch = getelementptr i64, ptr %words, i64 13
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
  %list = call ptr @listed(ptr %words, ptr %values)
  call void @Py_DecRef(ptr %stream.object)
  call void @drop_values(ptr %values, i64 %given, i64 %count)
  ret ptr %list
rejected:
  call void @Py_DecRef(ptr %stream.object)
  call void @drop_values(ptr %values, i64 %given, i64 %count)
  %raise = call ptr @pointer(ptr %chain, i64 {failed})
  %wide.error = sext i32 %error to i64
  %number = call ptr @PyLong_FromLongLong(i64 %wide.error)
  %answer = call ptr @PyObject_CallOneArg(ptr %raise, ptr %number)
  call void @Py_DecRef(ptr %answer)
  call void @Py_DecRef(ptr %number)
  ret ptr null
stopped:
  call void @Py_DecRef(ptr %stream.object)
  br label %failure
failure:
  call void @drop_values(ptr %values, i64 %given, i64 %count)
  call void @PyErr_Clear()
  ret ptr null
}}
"""

_NUMBER = "  %{0}.word = call i64 @word(ptr %words, i64 {1})\n  %{0} = trunc i64 %{0}.word to i32"


def module_text(layout: ArrayLayout) -> str:
    """Return the LLVM module for arrays with this layout."""
    numbers = (_NUMBER.format(name, 2 + k) for k, name in enumerate(("x", "y", "z", "threads", "memory")))
    run = _RUN.format(
        numbers="\n".join(numbers), patch_address=PATCH_ADDRESS, patch_double=PATCH_DOUBLE, pointer=POINTER,
        current_device=CURRENT_DEVICE, device_number=DEVICE, stream_function=STREAM, failed=FAILED, allocate=ALLOCATE,
        launch=LAUNCH, release=RELEASE, apart=APART, apart_words=WORDS,
    )  # fmt: skip
    return (
        _DECLARATIONS
        + words_text()
        + spans_text()
        + frame_text(REPLAY, FIRST_RECORD)
        + device_arrays_text(layout)
        + run
    )


@memoized("machine code that replays calls on a GPU", key="layout, type, function", most=4, clears=False)
def replay_code(layout: ArrayLayout, array_type: type, launch_kernel: int, disk: DiskCache | None = None) -> LinkedCode:
    """Return the machine code, loaded from `disk` or compiled and stored there.

    launch_kernel: the address of the driver's cuLaunchKernel.
    """
    machine, text = get_machine(), module_text(layout)
    key = hashed("device_replay", (text, *machine.key))
    symbols = {"tracefuse_array_type": id(array_type), "tracefuse_launch_kernel": launch_kernel}
    code, _ = load_or_make(
        disk, key, lambda code: machine.link(code, symbols, (REPLAY,)), lambda: machine.compile(text)
    )  # fmt: skip
    code.keep()
    return code
