"""Calls of objects that are replayed without Python code, in LLVM IR: a `__call__` for a class of such objects.

An object has a cache, which holds what runs a call: a tuple of what has the function object of a chain of records
(`kernel/llvm/replay_functions.py`), the address of a count, and watched values, each a tuple of the value, an object
and steps from the object to the value. A call whose watched values are the same and whose arguments fit a record runs
it, counts, and returns its first result; any other goes to the method of Python.

Must not know: plans.
"""

from __future__ import annotations

import ctypes

CALL = "tracefuse_call"
"""The symbol of the function: of the METH_VARARGS | METH_KEYWORDS signature."""

WORDS = "tracefuse_call_words"
"""The symbol of the objects that it reads: those below, then the names of attributes."""

_BLOCKS, _CURRENT, _MUST_BE_EMPTY, _OTHERWISE, _CACHE, _DIRECT, _FIRST = range(7)

_CELL, _ATTRIBUTE, _ENTRY, _CALL = range(4)
"""The kinds of steps, each with a key: to the contents of a cell, an attribute, an entry, what the key returns."""

_words = (ctypes.c_void_p * 7)()


def symbols() -> dict[str, int]:
    """Return the addresses that the text is linked with."""
    return {WORDS: ctypes.addressof(_words)}


def set_words(variables: tuple[int, int], must_be_empty: int, otherwise: int, attributes: tuple[int, int, int]) -> None:
    """Set the addresses of the objects that calls read, which live as long as the process.

    variables, must_be_empty: calls go to Python unless the context variables are None and the dict empty. otherwise:
    the method of Python. attributes: the names of the cache, of the tuple in it, and of the function object of its
    first element.
    """
    _words[:] = [*variables, must_be_empty, otherwise, *attributes]


# replay_first: the first result of a record that fits; null if none does or a record fails. attribute: of an object, by
# the place of its name; null without an exception if there is none.
_TEXT = """
@{words} = external global [7 x ptr]
@PyCFunction_Type = external global i8
@PyCell_Type = external global i8

declare ptr @PyObject_GetAttr(ptr, ptr)
declare ptr @PyObject_Call(ptr, ptr, ptr)
declare i32 @PyContextVar_Get(ptr, ptr, ptr)
declare i64 @PyDict_Size(ptr)
declare ptr @PyCell_Get(ptr)
declare ptr @PyObject_GetItem(ptr, ptr)
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

define internal i1 @is_none(i64 %place) {{
start:
  %value.place = alloca ptr
  %variable_ = call ptr @pointer(ptr @{words}, i64 %place)
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
  ret i1 %is.none
no:
  ret i1 false
}}

define internal i1 @is_plain_call(ptr %keywords) {{
start:
  %none = icmp eq ptr %keywords, null
  br i1 %none, label %blocks, label %no
blocks:
  %outside = call i1 @is_none(i64 {blocks})
  br i1 %outside, label %current, label %no
current:
  %untraced = call i1 @is_none(i64 {current})
  br i1 %untraced, label %entries, label %no
entries:
  %dict = call ptr @pointer(ptr @{words}, i64 {must_be_empty})
  %size = call i64 @PyDict_Size(ptr %dict)
  %empty = icmp eq i64 %size, 0
  ret i1 %empty
no:
  ret i1 false
}}

define internal ptr @next_object(ptr %object, ptr %steps, i64 %k) {{
start:
  %kind.object = call ptr @PyTuple_GetItem(ptr %steps, i64 %k)
  %kind = call i64 @PyLong_AsLongLong(ptr %kind.object)
  %after = add i64 %k, 1
  %key = call ptr @PyTuple_GetItem(ptr %steps, i64 %after)
  switch i64 %kind, label %cell [
    i64 {attribute}, label %attribute_
    i64 {entry}, label %entry_
    i64 {called}, label %called_
  ]
cell:
  %type = call i1 @has_type(ptr %object, ptr @PyCell_Type)
  br i1 %type, label %contents, label %nothing
contents:
  %content = call ptr @PyCell_Get(ptr %object)
  br label %found
attribute_:
  %value = call ptr @PyObject_GetAttr(ptr %object, ptr %key)
  br label %found
entry_:
  %element = call ptr @PyObject_GetItem(ptr %object, ptr %key)
  br label %found
called_:
  %result = call ptr @PyObject_CallOneArg(ptr %key, ptr %object)
  br label %found
nothing:
  br label %found
found:
  %next = phi ptr [ %content, %contents ], [ %value, %attribute_ ], [ %element, %entry_ ], [ %result, %called_ ],
    [ null, %nothing ]
  ret ptr %next
}}

define internal i1 @is_same(ptr %steps) {{
start:
  %expected = call ptr @PyTuple_GetItem(ptr %steps, i64 0)
  %object = call ptr @PyTuple_GetItem(ptr %steps, i64 1)
  %size = call i64 @PyTuple_Size(ptr %steps)
  call void @Py_IncRef(ptr %object)
  br label %head
head:
  %k = phi i64 [ 2, %start ], [ %next, %back ]
  %value = phi ptr [ %object, %start ], [ %found, %back ]
  %more = icmp slt i64 %k, %size
  br i1 %more, label %step, label %compare
step:
  %found = call ptr @next_object(ptr %value, ptr %steps, i64 %k)
  call void @Py_DecRef(ptr %value)
  %next = add i64 %k, 2
  %none = icmp eq ptr %found, null
  br i1 %none, label %missing, label %back
back:
  br label %head
missing:
  call void @PyErr_Clear()
  ret i1 false
compare:
  %same = icmp eq ptr %value, %expected
  call void @Py_DecRef(ptr %value)
  ret i1 %same
}}

define internal i1 @are_same(ptr %watched) {{
start:
  %size = call i64 @PyTuple_Size(ptr %watched)
  br label %head
head:
  %k = phi i64 [ 0, %start ], [ %next, %one ]
  %more = icmp slt i64 %k, %size
  br i1 %more, label %one, label %yes
one:
  %steps = call ptr @PyTuple_GetItem(ptr %watched, i64 %k)
  %same = call i1 @is_same(ptr %steps)
  %next = add i64 %k, 1
  br i1 %same, label %head, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal ptr @run_direct(ptr %direct, ptr %arguments) {{
start:
  %watched = call ptr @PyTuple_GetItem(ptr %direct, i64 2)
  %same = call i1 @are_same(ptr %watched)
  br i1 %same, label %plans, label %no
plans:
  %holder = call ptr @PyTuple_GetItem(ptr %direct, i64 0)
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
  %count.object = call ptr @PyTuple_GetItem(ptr %direct, i64 1)
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
  br i1 %no.cache, label %other, label %known
known:
  %direct_ = call ptr @attribute(ptr %cache_, i64 {direct})
  %no.direct = icmp eq ptr %direct_, null
  br i1 %no.direct, label %drop, label %tuple
tuple:
  %is.tuple = call i1 @has_type(ptr %direct_, ptr @PyTuple_Type)
  br i1 %is.tuple, label %run, label %release
run:
  %result = call ptr @run_direct(ptr %direct_, ptr %arguments)
  br label %release
release:
  %found = phi ptr [ null, %tuple ], [ %result, %run ]
  call void @Py_DecRef(ptr %direct_)
  br label %drop
drop:
  %answer = phi ptr [ null, %known ], [ %found, %release ]
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
        blocks=_BLOCKS,
        current=_CURRENT,
        must_be_empty=_MUST_BE_EMPTY,
        otherwise=_OTHERWISE,
        cache=_CACHE,
        direct=_DIRECT,
        attribute=_ATTRIBUTE,
        entry=_ENTRY,
        called=_CALL,
        first=_FIRST,
    )
