"""Calls of objects that are replayed without Python code, in LLVM IR: a `__call__` for a class of such objects.

An object has a cache, which holds what ran the last call: a tuple whose second element has the function object of a
chain of records (`kernel/llvm/replay_functions.py`), and whose third is the address of a count. A call whose arguments
fit a record runs it, counts, and returns its first result; any other goes to the method of Python.

Must not know: plans.
"""

from __future__ import annotations

import ctypes

CALL = "tracefuse_call"
"""The symbol of the function: of the METH_VARARGS | METH_KEYWORDS signature."""

WORDS = "tracefuse_call_words"
"""The symbol of the objects that it reads: those below, then the names of attributes."""

_VARIABLE, _MUST_BE_EMPTY, _OTHERWISE, _CACHE, _RECENT, _FIRST = range(6)

_words = (ctypes.c_void_p * 6)()


def symbols() -> dict[str, int]:
    """Return the addresses that the text is linked with."""
    return {WORDS: ctypes.addressof(_words)}


def set_words(variable: int, must_be_empty: int, otherwise: int, attributes: tuple[int, int, int]) -> None:
    """Set the addresses of the objects that calls read, which live as long as the process.

    variable, must_be_empty: calls go to Python unless the context variable is None and the dict empty. otherwise: the
    method of Python. attributes: the names of the cache, of the tuple in it, and of the function object of its second
    element.
    """
    _words[:] = [variable, must_be_empty, otherwise, *attributes]


# replay_first: the first result of a record that fits; null if none does or a record fails. attribute: of an object, by
# the place of its name; null without an exception if there is none.
_TEXT = """
@{words} = external global [6 x ptr]
@PyCFunction_Type = external global i8

declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyObject_Call(ptr, ptr, ptr)
declare i32 @PyContextVar_Get(ptr, ptr, ptr)
declare i64 @PyDict_Size(ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyCFunction_GetFunction(ptr)
declare ptr @PyCFunction_GetSelf(ptr)

define internal ptr @replay_first(ptr %chain, ptr %arguments) {{
start:
  %count = call i64 @word(ptr %chain, i64 0)
  %end = add i64 %count, {first_record}
  br label %head
head:
  %k = phi i64 [ {first_record}, %start ], [ %next, %back ]
  %more = icmp slt i64 %k, %end
  br i1 %more, label %try, label %missed
try:
  %record = call ptr @pointer(ptr %chain, i64 %k)
  %next = add i64 %k, 1
  %results = call i64 @word(ptr %record, i64 6)
  %any = icmp sgt i64 %results, 0
  br i1 %any, label %test, label %back
test:
  %fits = call i1 @fits(ptr %record, ptr %arguments)
  br i1 %fits, label %run, label %back
back:
  br label %head
run:
  %result = call ptr @run_record_for(ptr %record, ptr %arguments, ptr %chain, i1 true)
  ret ptr %result
missed:
  ret ptr null
}}

define internal ptr @attribute(ptr %object, i64 %place) {{
start:
  %name = call ptr @pointer(ptr @{words}, i64 %place)
  %value = call ptr @PyObject_GetAttr(ptr %object, ptr %name)
  %none = icmp eq ptr %value, null
  br i1 %none, label %missing, label %found
missing:
  call void @PyErr_Clear()
  ret ptr null
found:
  ret ptr %value
}}

define internal i1 @is_plain_call(ptr %keywords) {{
start:
  %value.place = alloca ptr
  %none = icmp eq ptr %keywords, null
  br i1 %none, label %variable, label %no
variable:
  %variable_ = call ptr @pointer(ptr @{words}, i64 {variable})
  %status = call i32 @PyContextVar_Get(ptr %variable_, ptr null, ptr %value.place)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %clear, label %read
clear:
  call void @PyErr_Clear()
  br label %no
read:
  %value = load ptr, ptr %value.place
  %unset = icmp eq ptr %value, null
  br i1 %unset, label %no, label %compare
compare:
  %is.none = icmp eq ptr %value, @_Py_NoneStruct
  call void @Py_DecRef(ptr %value)
  br i1 %is.none, label %entries, label %no
entries:
  %dict = call ptr @pointer(ptr @{words}, i64 {must_be_empty})
  %size = call i64 @PyDict_Size(ptr %dict)
  %empty = icmp eq i64 %size, 0
  ret i1 %empty
no:
  ret i1 false
}}

define internal ptr @run_recent(ptr %recent, ptr %arguments) {{
start:
  %holder = call ptr @PyTuple_GetItem(ptr %recent, i64 1)
  %function = call ptr @attribute(ptr %holder, i64 {first})
  %none = icmp eq ptr %function, null
  br i1 %none, label %no, label %known
known:
  %is.function = call i1 @has_type(ptr %function, ptr @PyCFunction_Type)
  br i1 %is.function, label %entry, label %drop
entry:
  %code = call ptr @PyCFunction_GetFunction(ptr %function)
  %replays = icmp eq ptr %code, @{replay}
  br i1 %replays, label %replay, label %drop
replay:
  %capsule = call ptr @PyCFunction_GetSelf(ptr %function)
  %chain = call ptr @PyCapsule_GetPointer(ptr %capsule, ptr null)
  %result = call ptr @replay_first(ptr %chain, ptr %arguments)
  %missed = icmp eq ptr %result, null
  br i1 %missed, label %drop, label %ran
ran:
  %count.object = call ptr @PyTuple_GetItem(ptr %recent, i64 2)
  %count.place = call ptr @PyLong_AsVoidPtr(ptr %count.object)
  %count = load i64, ptr %count.place
  %counted = add i64 %count, 1
  store i64 %counted, ptr %count.place
  br label %drop
drop:
  %answer = phi ptr [ null, %known ], [ null, %entry ], [ %result, %replay ], [ %result, %ran ]
  call void @Py_DecRef(ptr %function)
  ret ptr %answer
no:
  ret ptr null
}}

define internal ptr @call_otherwise(ptr %self, ptr %arguments, ptr %keywords) {{
start:
  %size = call i64 @PyTuple_Size(ptr %arguments)
  %longer = add i64 %size, 1
  %all = call ptr @PyTuple_New(i64 %longer)
  %none = icmp eq ptr %all, null
  br i1 %none, label %end, label %first
first:
  call void @Py_IncRef(ptr %self)
  %status = call i32 @PyTuple_SetItem(ptr %all, i64 0, ptr %self)
  br label %head
head:
  %k = phi i64 [ 0, %first ], [ %next, %one ]
  %more = icmp slt i64 %k, %size
  br i1 %more, label %one, label %run
one:
  %item = call ptr @PyTuple_GetItem(ptr %arguments, i64 %k)
  call void @Py_IncRef(ptr %item)
  %next = add i64 %k, 1
  %done = call i32 @PyTuple_SetItem(ptr %all, i64 %next, ptr %item)
  br label %head
run:
  %method = call ptr @pointer(ptr @{words}, i64 {otherwise})
  %result = call ptr @PyObject_Call(ptr %method, ptr %all, ptr %keywords)
  call void @Py_DecRef(ptr %all)
  br label %end
end:
  %answer = phi ptr [ null, %start ], [ %result, %run ]
  ret ptr %answer
}}

define ptr @{call}(ptr %self, ptr %arguments, ptr %keywords) {{
start:
  %plain = call i1 @is_plain_call(ptr %keywords)
  br i1 %plain, label %cached, label %other
cached:
  %cache_ = call ptr @attribute(ptr %self, i64 {cache})
  %no.cache = icmp eq ptr %cache_, null
  br i1 %no.cache, label %other, label %recently
recently:
  %recent_ = call ptr @attribute(ptr %cache_, i64 {recent})
  %no.recent = icmp eq ptr %recent_, null
  br i1 %no.recent, label %drop, label %tuple
tuple:
  %is.tuple = call i1 @has_type(ptr %recent_, ptr @PyTuple_Type)
  br i1 %is.tuple, label %run, label %release
run:
  %result = call ptr @run_recent(ptr %recent_, ptr %arguments)
  br label %release
release:
  %found = phi ptr [ null, %tuple ], [ %result, %run ]
  call void @Py_DecRef(ptr %recent_)
  br label %drop
drop:
  %answer = phi ptr [ null, %recently ], [ %found, %release ]
  call void @Py_DecRef(ptr %cache_)
  %missed = icmp eq ptr %answer, null
  br i1 %missed, label %other, label %done
done:
  ret ptr %answer
other:
  %otherwise_ = call ptr @call_otherwise(ptr %self, ptr %arguments, ptr %keywords)
  ret ptr %otherwise_
}}
"""


def direct_text(replay: str, first_record: int) -> str:
    """Return the text of the function, for the module of `kernel/llvm/replay_functions.py`.

    replay: the symbol of the function of the function objects. first_record: the place of the first record in a chain.
    """
    return _TEXT.format(
        words=WORDS,
        call=CALL,
        replay=replay,
        first_record=first_record,
        variable=_VARIABLE,
        must_be_empty=_MUST_BE_EMPTY,
        otherwise=_OTHERWISE,
        cache=_CACHE,
        recent=_RECENT,
        first=_FIRST,
    )
