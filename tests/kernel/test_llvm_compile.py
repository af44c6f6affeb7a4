"""Tests compiled CPU kernels: arguments, lifetime, sharing of equal kernels."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.kernel.cpu_kernels import primitives_kernel
from tracefuse import dtypes
from tracefuse.errors import CompileError, InternalError
from tracefuse.kernel.kernel_ir import (
    Axis,
    Buffer,
    Comment,
    Constant,
    Kernel,
    Load,
    Store,
    Variable,
    call,
    walk_statements,
)
from tracefuse.kernel.llvm import cpu_functions as module
from tracefuse.kernel.llvm import machine_code
from tracefuse.kernel.llvm.cpu_functions import cache_key, canonical, clear_cache, compile_cpu, statistics
from tracefuse.kernel.llvm.emit_llvm import emit_llvm
from tracefuse.kernel.llvm.machine_code import get_machine

NEGATE = primitives_kernel(("neg",), dtypes.float32)


def test_arrays_subclasses_of_arrays_and_addresses_are_taken(tmp_path: Any) -> None:
    function = compile_cpu(NEGATE)
    x = np.memmap(tmp_path / "x", dtype=np.float32, mode="w+", shape=5)
    x[:] = range(5)
    out = np.empty(5, np.float32)
    function(x, out, 5)
    assert np.array_equal(out, -np.arange(5))
    out[:] = 0
    function(x.ctypes.data, out.ctypes.data, 5)
    assert np.array_equal(out, -np.arange(5))


def test_bfloat16_arrays_are_taken() -> None:
    x = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    out = np.empty_like(x)
    compile_cpu(primitives_kernel(("neg",), dtypes.bfloat16))(x, out, 2)
    assert np.array_equal(out, -x)


def test_wrong_arguments_raise_and_run_nothing() -> None:
    function = compile_cpu(NEGATE)
    x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    with pytest.raises(TypeError, match="primitives takes 3 arguments"):
        function(x, out)
    with pytest.raises(TypeError, match="an integer is required"):
        function(x, "out", 4)
    with pytest.raises(TypeError):
        function(x, out, 4.5)
    with pytest.raises(TypeError):
        function(x, out, None)
    assert not out.any()


def test_a_launch_leaks_no_references() -> None:
    function = compile_cpu(NEGATE)
    x, out = np.ones(4, np.float32), np.zeros(4, np.float32)
    before = [sys.getrefcount(o) for o in (x, out, None)]
    for _ in range(1000):
        function.launch(x, out, 4)
    after = [sys.getrefcount(o) for o in (x, out, None)]
    assert after[:2] == before[:2]
    assert abs(after[2] - before[2]) < 100


def test_arrays_are_passed_by_address_where_their_layout_is_not_the_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "reads_arrays", lambda: False)
    x, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    compile_cpu(NEGATE)(x, out, 4)
    assert np.array_equal(out, -x)


def _renamed(kernel: Kernel) -> Kernel:
    """The kernel with another name and a comment."""
    return replace(kernel, name="other", body=(Comment("what the user wrote"), *kernel.body))


def test_kernels_that_differ_in_names_and_comments_are_compiled_once() -> None:
    clear_cache()
    before = statistics().compiled
    x, y = (Buffer(name, dtypes.float32) for name in ("x", "y"))
    out, result = (Buffer(name, dtypes.float32, written=True) for name in ("out", "result"))
    n, many = (Variable(name, dtypes.int64) for name in ("n", "many"))
    first = Kernel("first", (x, out, n), (), (Store(out, n, Load(x, n)),), "cpu")
    second = Kernel("second", (y, result, many), (), (Comment("c"), Store(result, many, Load(y, many))), "cpu")
    compile_cpu(first)
    compile_cpu(second)
    compile_cpu(_renamed(first))
    assert statistics().compiled == before + 1
    compile_cpu(Kernel("third", (x, out, n), (), (Store(out, n, Load(out, n)),), "cpu"))
    assert statistics().compiled == before + 2


def test_the_canonical_text_holds_none_of_the_kernels_names() -> None:
    text = canonical(emit_llvm(_renamed(NEGATE)))
    assert "what the user wrote" in emit_llvm(_renamed(NEGATE))
    for word in ("what the user wrote", "%in0", "%out0", "other"):
        assert word not in text
    assert cache_key(emit_llvm(NEGATE)) == cache_key(emit_llvm(_renamed(NEGATE)))
    assert list(walk_statements(NEGATE.body))


def test_machine_code_lives_as_long_as_a_function_and_no_longer() -> None:
    clear_cache()
    function = compile_cpu(primitives_kernel(("floor",), dtypes.float64))
    alive = weakref.ref(function.module)
    clear_cache()
    gc.collect()
    assert alive() is not None
    x, out = np.full(3, 1.5), np.empty(3)
    launch = function.launch
    del function
    launch(x, out, 3)
    assert np.array_equal(out, np.ones(3))
    del launch
    gc.collect()
    assert alive() is None


def test_the_cache_forgets_the_kernel_longest_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    clear_cache()
    monkeypatch.setattr(module._cache, "most", 2)
    kernels = [primitives_kernel((name,), dtypes.float32) for name in ("ceil", "floor", "trunc")]
    for kernel in (kernels[0], kernels[1], kernels[0], kernels[2]):
        compile_cpu(kernel)
    assert module._cache.keys() == [cache_key(emit_llvm(kernels[0])), cache_key(emit_llvm(kernels[2]))]


def test_many_threads_may_compile_at_the_same_time() -> None:
    clear_cache()
    wrong: list[str] = []

    def work(number: int) -> None:
        for name in ("ceil", "floor", "sqrt", "exp") if number % 2 else ("exp", "sqrt", "floor", "ceil"):
            x, out = np.array([0.25, 4.0], np.float32), np.empty(2, np.float32)
            compile_cpu(primitives_kernel((name,), dtypes.float32))(x, out, 2)
            if not np.allclose(out, getattr(np, name)(x)):
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(module._cache.keys()) == 4


def test_text_that_llvm_refuses_is_a_compile_error_with_its_message() -> None:
    with pytest.raises(CompileError, match="LLVM refuses a kernel"):
        get_machine().compile("define void @launch() { broken }")


def test_source_and_assembly_can_be_read() -> None:
    function = compile_cpu(NEGATE)
    assert "define internal void @body(" in function.source
    assert "%in0" in function.source
    assert "body:" in function.assembly()


def test_kernels_in_cycles_are_freed_by_the_garbage_collector_in_any_order() -> None:
    for dtype in (dtypes.float32, dtypes.float64, dtypes.int32):
        cycle: list[Any] = [compile_cpu(primitives_kernel(("neg",), dtype))]
        cycle += [cycle, cycle[0].launch]
        found = weakref.ref(cycle[0].module)
        clear_cache()
        del cycle
        gc.collect()
        assert found() is None


def test_linkers_are_replaced_and_go_with_the_last_of_their_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "KERNELS_OF_LINKER", 3)
    machine = machine_code.Machine()
    code = machine.compile("define i64 @launch() {\n ret i64 3\n}")
    linked, linkers = [], []
    for _ in range(7):
        linked.append(machine.link(code, {}, ("launch",)))
        linkers.append(weakref.ref(machine._linker))
    assert len({id(linker()) for linker in linkers}) == 3
    del linked[4]
    gc.collect()
    assert [ctypes.CFUNCTYPE(ctypes.c_int64)(one.addresses["launch"])() for one in linked] == [3] * 6
    del linked[:3]
    gc.collect()
    machine.free_unused()
    assert [linker() is None for linker in linkers] == [True] * 3 + [False] * 4


def _extent_of(expression: Any, *values: int) -> int:
    """The extent of a grid that a launch computes: the number of elements that the kernel writes."""
    names = ("n", "m", "k")
    scalars = [Variable(name, dtypes.int64) for name in names]
    out, index = Buffer("out", dtypes.int64, written=True), Variable("i", dtypes.int64)
    store = Store(out, index, Constant(1, dtypes.int64))
    compiled = compile_cpu(Kernel("extent", (out, *scalars), (Axis(index, expression(*scalars)),), (store,), "cpu"))
    written = np.zeros(100, np.int64)
    compiled(written, *values)
    return int(written.sum())


@pytest.mark.parametrize("values", [(17, 5, 3), (-17, 5, 3), (17, -5, 3), (17, 0, 3), (-17, -1, 20)])
@pytest.mark.parametrize("name", ["floordiv", "mod", "truncdiv", "truncmod", "minimum", "maximum", "sub", "add"])
def test_launches_compute_extents_as_kernels_do(name: str, values: tuple[int, int, int]) -> None:
    n, m, k = values
    quotient, remainder = (n // m, n % m) if m else (0, 0)
    truncated = (abs(n) // abs(m) * (1 if (n < 0) == (m < 0) else -1)) if m else 0
    expected = {
        "floordiv": quotient, "mod": remainder, "truncdiv": truncated, "truncmod": n - truncated * m if m else 0,
        "minimum": min(n, m), "maximum": max(n, m), "sub": n - m, "add": n + m,
    }  # fmt: skip
    extent = _extent_of(
        lambda n, m, k: call("add", call(name, n, m), call("mul", k, Constant(2, dtypes.int64))), *values
    )
    assert extent == max(expected[name] + 2 * k, 0)


def test_an_extent_that_no_launch_computes_is_an_error() -> None:
    with pytest.raises(InternalError, match="the grid of extent has an extent that no launch computes"):
        _extent_of(lambda n, m, k: call("pow", n, m), 2, 3, 1)
