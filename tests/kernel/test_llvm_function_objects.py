"""Function objects of kernels: what Python reads of them while it frees them stays in memory."""

from __future__ import annotations

import ctypes
import gc

from tracefuse.kernel.llvm.launch_functions import MethodDefinition, object_over, owner_of


def test_a_function_is_freed_after_its_owner_has_lost_the_definition() -> None:
    place = ctypes.c_int64(0)
    definition = MethodDefinition(b"nothing", 0, 0x80, None)
    owner = [definition]
    function = object_over(ctypes.addressof(place), definition, owner)
    used = ctypes.c_size_t.from_address(id(function) + object.__basicsize__).value
    assert used != ctypes.addressof(definition), "Python reads the definition of a function that it frees"
    assert owner_of(function) is owner
    ctypes.memset(ctypes.addressof(definition), 0xFF, ctypes.sizeof(definition))
    assert gc.is_tracked(function)
    del function
    assert owner_of(len) is None
