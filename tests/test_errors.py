"""Tests every error that a user can meet, word for word: message, line, hint, and a traceback of user frames."""

# A case is one line, so that the line of its lambda is the line of the error.
# ruff: noqa: E501

from __future__ import annotations

import builtins
import contextlib
import math
import os
import queue
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import segments
import tracefuse
from tracefuse import (
    CompileError,
    DataType,
    DeviceError,
    DtypeError,
    FusionDefinition,
    FusionError,
    InternalError,
    ScalarError,
    ShapeError,
    TraceError,
    TracefuseError,
    UnsupportedError,
    fuse,
    xp,
)
from tracefuse.kernel.llvm import cpu_functions
from tracefuse.runtime.devices import arrays, cpu_memory, cuda_arrays

X = np.ones((3, 4), np.float32)
QUEUE: Any = queue.SimpleQueue()


LEAKED: list[Any] = []


@pytest.fixture(scope="module", autouse=True)
def a_leaked_value() -> None:
    """A traced value that an object written in C has kept."""
    with contextlib.suppress(tracefuse.TraceError):
        fuse(lambda x: QUEUE.put(x + 1) or x + 1)(X)
    LEAKED.append(QUEUE.get())


def recorded(record: Callable[..., Any]) -> Callable[[], Any]:
    """Records `record(fd, a, b)` with two tensors that do not fit each other."""

    def run() -> None:
        with FusionDefinition() as fd:
            a = fd.define_tensor([-1, 4], dtype=DataType.Float)
            record(fd, a, fd.define_tensor([-1, 5], dtype=DataType.Float))

    return run


def added() -> FusionDefinition:
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([-1], dtype=DataType.Float), fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.mul(a, b))
    return fd


ADDED = added()
DEFINED = added.__code__.co_firstlineno + 2


@dataclass(frozen=True)
class Case:
    """call raises kind with text, in which {line} is the line of `inside`, or else of `call`."""

    name: str
    call: Callable[[], Any]
    kinds: tuple[type[BaseException], ...]
    text: str
    inside: Callable[..., Any] | None = None

    @property
    def message(self) -> str:
        code = (self.inside or self.call).__code__
        return self.text.replace("{line}", f"test_errors.py:{code.co_firstlineno}")


def traced(name: str, function: Any, kinds: tuple[type[BaseException], ...], text: str) -> Case:
    return Case(name, lambda: fuse(function)(X), kinds, text, function)


def defined(name: str, record: Any, kinds: tuple[type[BaseException], ...], text: str) -> Case:
    return Case(name, recorded(record), kinds, text, record)


def generator(x: Any) -> Any:
    yield x


async def coroutine(x: Any) -> Any:
    return x


WHERE = "\n  hint: a condition must be a Python scalar: choose elements with np.where(condition, a, b)"
KEEP = "\n  hint: keep it an array; np.where chooses elements"
TYPE, VALUE = (TraceError, TypeError), (FusionError, ValueError)
FLOATS = "bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64"

CASES = [
    # what a tracer cannot be
    traced("bool", lambda x: 1 if x > 0 else 2, TYPE, "bool() of a traced array, which depends on x ({line})" + WHERE),
    traced("and", lambda x: (x > 0) and x, TYPE, "bool() of a traced array, which depends on x ({line})" + WHERE),
    traced("float", lambda x: float(x), TYPE, "float() of a traced array, which depends on x ({line})" + KEEP),
    traced("math", lambda x: math.sqrt(x), TYPE, "math.sqrt() of a traced array, which depends on x ({line})\n  hint: write np.sqrt"),
    traced("int", lambda x: int(x), TYPE, "int() of a traced array, which depends on x ({line})" + KEEP),
    traced("item", lambda x: x.item(), (ScalarError, ValueError), "can only convert an array of size 1 to a Python scalar, not one of 12 elements ({line})\n  hint: write x.item(k), or x.tolist()"),
    Case("leaked", lambda: LEAKED[0] + 1, TYPE, "a traced value of <lambda> is used after its trace ended ({line})\n  hint: return it from the fused function instead of storing it"),
    traced("leaked into another", lambda x: x + sys.modules[__name__].LEAKED[0], TYPE, "a traced value of <lambda> is used after its trace ended ({line})\n  hint: return it from the fused function instead of storing it"),
    # calls
    Case("too few", lambda: fuse(two)(X), TYPE, "two() missing 1 required positional argument: 'y' ({line})\n  hint: the signature is two(x: 'Any', y: 'Any') -> 'Any'"),
    Case("too many", lambda: fuse(two)(X, X, X), TYPE, "two() takes 2 positional arguments but 3 were given ({line})\n  hint: the signature is two(x: 'Any', y: 'Any') -> 'Any'"),
    Case("keyword", lambda: fuse(two)(X, X, z=1), TYPE, "two() got an unexpected keyword argument 'z' ({line})\n  hint: the signature is two(x: 'Any', y: 'Any') -> 'Any'"),
    Case("object array", lambda: fuse(two)(X, np.array([None])), (DtypeError, TypeError), "y has dtype object, which is not supported ({line})\n  hint: pass np.asarray(y, dtype=float), or the numbers in it"),
    Case("shapes", lambda: fuse(two)(X, X[:2]), (ShapeError, ValueError), "add: extents differ on axis 0: 3 (x, {two}) and 2 (y, {two}) ({inner})\n  hint: broadcasting needs one of them to be 1"),
    Case("static", lambda: fuse(two, static_argnums=1)(X, [1]), TYPE, "static argument 1 is a list, which is neither an array nor hashable ({line})\n  hint: pass arrays, numbers, hashable values, or register the class with register_pytree_node"),
    Case("generator", lambda: fuse(generator), TYPE, "generator is a generator or an async function ({line})\n  hint: return a tuple or a list of arrays instead of yielding"),
    Case("async", lambda: fuse(coroutine), TYPE, "coroutine is a generator or an async function ({line})\n  hint: return a tuple or a list of arrays instead of yielding"),
    Case("no function", lambda: fuse(3), TYPE, "fuse takes a function, got int ({line})\n  hint: write @fuse above a def"),
    # definitions: what is recorded
    defined("extents", lambda fd, a, b: fd.ops.add(a, b), (ShapeError, ValueError), "add: extents differ on axis 1: 4 and 5 ({line})\n  hint: broadcasting needs one of them to be 1"),
    defined("operator", lambda fd, a, b: a + b, (ShapeError, ValueError), "add: extents differ on axis 1: 4 and 5 ({line})\n  hint: broadcasting needs one of them to be 1"),
    defined("unknown op", lambda fd, a, b: fd.ops.addd(a, b), (UnsupportedError, AttributeError), "fd.ops has no operation 'addd' ({line})\n  hint: close names: add"),
    defined("operands", lambda fd, a, b: fd.ops.add(a), TYPE, "add: missing a required argument: 'b' ({line})\n  hint: the signature is add(a, b, /, *, dtype=None, compute=None)"),
    defined("no operand", lambda fd, a, b: fd.ops.sum(), TYPE, "sum: missing a required argument: 'arg' ({line})\n  hint: the signature is sum(arg, dims=None, keepdim=False, dtype=None, *, dim=None, compute=None)"),
    defined("attributes", lambda fd, a, b: fd.ops.permute(a, [0, 1], 3), TYPE, "permute: takes 2 arguments by position, got 3 ({line})\n  hint: the signature is permute(arg, dims=(), *, dtype=None, compute=None)"),
    defined("attribute", lambda fd, a, b: fd.ops.sum(a, dimz=1), TYPE, "sum: got an unexpected keyword argument 'dimz' ({line})\n  hint: the signature is sum(arg, dims=None, keepdim=False, dtype=None, *, dim=None, compute=None)"),
    defined("axis", lambda fd, a, b: fd.ops.sum(a, [7]), (ShapeError, ValueError), "sum: axis 7 is out of range for 2 axes ({line})\n  hint: use -2 to 1"),
    defined("operand kind", lambda fd, a, b: fd.ops.add(a, "b"), TYPE, "add: b cannot be 'b' ({line})\n  hint: give a tensor, a scalar or a Python number"),
    defined("operand dtype", lambda fd, a, b: a & a, (DtypeError, TypeError), f"bitwise_and does not take float32 ({{line}})\n  hint: cast to one of: {FLOATS}"),
    defined("truth", lambda fd, a, b: bool(a), VALUE, "Tensor(T0: f32[i0, 4]) has no truth value: a definition is recorded before any data exists ({line})\n  hint: select with fd.ops.where"),
    defined("no shape", lambda fd, a, b: fd.define_tensor(), (ShapeError, ValueError), "define_tensor needs a shape, or sizes and strides ({line})"),
    defined("constant output", lambda fd, a, b: fd.add_output(3), TYPE, "add_output: output cannot be 3 ({line})\n  hint: give a tensor filled with the constant: fd.ops.full([], value)"),
    defined("aliased twice", lambda fd, a, b: [fd.add_output(fd.ops.exp(a), alias_input=a) for _ in "12"], VALUE, "add_output: output T2 already updates input T0 ({line})\n  hint: update each input once"),
    defined("no input", lambda fd, a, b: fd.add_output(a, alias_input=fd.ops.exp(a)), VALUE, "add_output: alias_input T2 is not an input tensor ({line})\n  hint: name a tensor of define_tensor"),
    Case("complete", lambda: ADDED.ops.size(ADDED.define_tensor([-1]), 0), VALUE, "the definition is complete: nothing can be added to it ({line})\n  hint: record inside `with FusionDefinition() as fd:`"),
    Case("segments", lambda: FusionDefinition().segments, VALUE, "the definition is not segmented ({line})\n  hint: call fd.segment() first"),
    # definitions: what they are executed with
    Case("count", lambda: ADDED.execute([X[0]]), VALUE, "the definition takes 2 inputs, got 1 ({line})\n  hint: give one for each define_tensor and define_scalar(None), in order"),
    Case("rank", lambda: ADDED.execute([X, 2]), (ShapeError, ValueError), f"input T0 has 2 axes, not 1 (test_errors.py:{DEFINED})\n  hint: its shape is (3, 4)"),
    Case("dtype", lambda: ADDED.execute([X[0].astype(int), 2]), (DtypeError, TypeError), f"input T0 is int64, not float32 (test_errors.py:{DEFINED})\n  hint: pass x.astype('float32')"),
    Case("scalar kind", lambda: ADDED.execute([X[0], 2.5]), (DtypeError, TypeError), f"input S1 is int64, got 2.5 (test_errors.py:{DEFINED})\n  hint: pass a Python int"),
    Case("scalar range", lambda: ADDED.execute([X[0], 1 << 70]), (ScalarError, ValueError), f"input S1 is int64, got {1 << 70} (test_errors.py:{DEFINED})\n  hint: give an integer from {-(2**63)} to {2**63 - 1}"),
    Case("save", lambda: added().last_repro_script(), VALUE, "no inputs were saved ({line})\n  hint: call fd.execute(inputs, save_repro_inputs=True) first"),
]  # fmt: skip


def two(x: Any, y: Any) -> Any:
    return x + y


def frames_of(error: BaseException) -> list[str]:
    """The files of the frames, this file's own left out."""
    found = {os.path.basename(frame.filename) for frame in traceback.extract_tb(error.__traceback__)}
    return sorted(found - {"test_errors.py"})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_messages_are_these_words_with_the_users_frames_alone(case: Case) -> None:
    with pytest.raises(TracefuseError) as caught:
        case.call()
    error, line = caught.value, two.__code__.co_firstlineno
    expected = case.message.replace("{two}", f"test_errors.py:{line}").replace("{inner}", f"test_errors.py:{line + 1}")
    assert str(error) == expected
    assert all(isinstance(error, kind) for kind in case.kinds)
    assert frames_of(error) == []
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


def test_every_frame_is_there_at_debug_level_4() -> None:
    with tracefuse.options(debug=4), pytest.raises(ShapeError) as caught:
        recorded(lambda fd, a, b: fd.ops.add(a, b))()
    assert {"op_calls.py", "builder.py"} <= set(frames_of(caught.value))


# -- other libraries ---------------------------------------------------------------------------------------------------


def test_functions_of_jax_are_refused() -> None:
    jnp = pytest.importorskip("jax.numpy")
    function = lambda x: jnp.sin(x)  # noqa: E731
    with pytest.raises(UnsupportedError) as caught:
        fuse(function)(X)
    assert str(caught.value) == (
        f"jnp.sin() of a traced array, which depends on x (test_errors.py:{function.__code__.co_firstlineno})\n"
        "  hint: write np.sin, or name the frontend: @fuse(frontend='jax')"
    )


def test_functions_of_torch_are_refused() -> None:
    # torch asks each argument for this method, as NumPy asks for __array_function__.
    function = lambda x: x.__torch_function__(len, (), (x,))  # noqa: E731
    with pytest.raises(TraceError) as caught:
        fuse(function)(X)
    assert str(caught.value) == (
        f"a torch function of a traced array, which depends on x (test_errors.py:{function.__code__.co_firstlineno})\n"
        "  hint: use the function of np or of tracefuse.xp"
    )


def test_arrays_of_two_libraries_and_of_two_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for kinds, message in (
        ([("jax", "x"), ("torch", "y")], "arrays of two libraries: x is jax, y is torch\n  hint: convert one of them"),
        ([("cupy", "x"), ("numpy", "y")], "y is a NumPy array beside CuPy arrays (x)\n  hint: pass cupy.asarray(y)"),
    ):
        with pytest.raises(DeviceError) as caught:
            arrays.common_kind(kinds)
        assert f"{caught.value.message}\n  hint: {caught.value.hint}" == message
    on = {0: jax.numpy.asarray(X), 1: jax.numpy.asarray(X)}
    monkeypatch.setattr(arrays, "device_of", lambda value: 0 if value is on[0] else 1)
    with pytest.raises(DeviceError) as caught:
        fuse(two)(on[0], on[1])
    assert str(caught.value) == (
        f"arrays on two devices: x is on GPU 0, y is on GPU 1 (test_errors.py:{sys._getframe().f_lineno - 2})\n"
        "  hint: copy one of them to the other's device"
    )


def test_donated_memory_that_a_result_lives_in_is_refused() -> None:
    donating = fuse(lambda x: x * 2 + 1, donate_argnums=0)
    x = np.ones((4, 4), np.float32)
    result = donating(x)
    with pytest.raises(FusionError) as caught:
        donating(x)
    assert str(caught.value) == (
        f"x was donated; its buffer now holds a result (test_errors.py:{sys._getframe().f_lineno - 2})\n"
        "  hint: use that result, or pass a copy when you donate: x.copy()"
    )
    assert (result == 3).all()
    assert frames_of(caught.value) == []


# -- host programs -----------------------------------------------------------------------------------------------------


def test_an_input_as_the_new_name_of_memory_is_refused_word_for_word() -> None:
    program = segments.Program((0, 1), (0,), (segments.Alias(0, 1), segments.Release(1)))
    with pytest.raises(segments.ProgramError, match=r"Inputs cannot be aliased$"):
        program.verify()


# -- compilers, caches, devices ----------------------------------------------------------------------------------------


def test_a_kernel_that_does_not_compile_names_its_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    emit = cpu_functions.emit_kernel
    monkeypatch.setattr(
        cpu_functions, "emit_kernel", lambda *args, **kw: emit(*args, **kw)._replace(source="define nonsense")
    )
    with pytest.raises(CompileError) as caught:
        fuse(two)(X, X)
    text = str(caught.value)
    assert text.startswith("segment 0 (pointwise): ")
    assert "expected" in text
    assert f"(test_errors.py:{sys._getframe().f_lineno - 4})" in text


def test_a_damaged_cache_file_is_warned_of_and_made_again(tmp_path: Path) -> None:
    function = fuse(lambda x: x * 3 + 2, cache_dir=str(tmp_path))
    function(X)
    tracefuse.clear_caches()
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert paths
    for path in paths:
        path.write_bytes(path.read_bytes()[:-8] + b"\0" * 8)
    with pytest.warns(RuntimeWarning, match=r"is damaged: its checksum differs"):
        np.testing.assert_array_equal(function(X), X * 3 + 2)


def test_no_gpu_and_no_cupy_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_cupy(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "cupy":
            raise ImportError("libcudart.so.12: cannot open shared object file")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_cupy)
    assert cuda_arrays.unavailable() == (
        "CuPy cannot be imported: libcudart.so.12: cannot open shared object file\n"
        "  hint: install tracefuse[cuda13] or tracefuse[cuda12], whichever the driver supports"
    )
    for call, hint in (
        (lambda: fuse(two, target="cuda")(X, X), "f.segments(*args) shows them; target='cpu' or 'auto' runs NumPy arrays on the CPU"),
        (lambda: fuse(lambda: xp.zeros(3, device="cuda"))(), "install tracefuse[cuda13] or tracefuse[cuda12], whichever the driver supports"),
    ):  # fmt: skip
        with pytest.raises(DeviceError) as caught:
            call()
        assert "CuPy cannot be imported: libcudart.so.12: cannot open shared object file (test_errors.py:" in str(
            caught.value
        )
        assert caught.value.hint == hint


def test_a_driver_without_a_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class Runtime:
        def getDeviceCount(self) -> int:
            raise RuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")

    class Cupy:
        class cuda:
            runtime = Runtime()

    monkeypatch.setattr(cuda_arrays, "_cupy", lambda: Cupy)
    assert cuda_arrays.unavailable() == "CUDA reports: cudaErrorNoDevice: no CUDA-capable device is detected"


def test_out_of_memory_names_the_segment_and_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    function = fuse(two)
    np.testing.assert_array_equal(function(X, X), 2 * X)

    def full(*arguments: Any) -> Any:
        raise MemoryError

    tracefuse.clear_caches()
    monkeypatch.setattr(cpu_memory.BufferCache, "_make", full)
    with pytest.raises(tracefuse.OutOfMemoryError if hasattr(tracefuse, "OutOfMemoryError") else MemoryError) as caught:
        function(X, X)
    assert isinstance(caught.value, MemoryError)
    assert "segment 0" in str(caught.value)
    assert "48 B of it for results" in str(caught.value)
    monkeypatch.undo()
    np.testing.assert_array_equal(function(X, X), 2 * X)


def test_a_foreign_package_called_segments_is_named(tmp_path: Path) -> None:
    (tmp_path / "segments.py").write_text("")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tracefuse"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stderr.splitlines()[-1] == (
        f"ImportError: the package 'segments' at {tmp_path / 'segments.py'} is not tracefuse's: "
        "uninstall the other distribution that installs a top-level 'segments', then reinstall tracefuse"
    )


def test_a_bug_of_tracefuse_says_so_and_keeps_its_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def disagree(*arguments: Any, **keywords: Any) -> Any:
        raise InternalError("two layers disagree")

    monkeypatch.setattr("tracefuse.frontend.fuse.compile_fusion", disagree)
    with pytest.raises(InternalError) as caught:
        fuse(two)(X, X)
    assert "fuse.py" in frames_of(caught.value)
