"""Several kernels launched as one CUDA graph, whose nodes change where the arguments of a call do.

The graph is a chain, made at the first call. A later call compares each kernel's arguments with those of the call
before: a node is written anew only where they differ, so that a chain of kernels between two arrays costs two updates
and one launch. The driver runs one launch of a graph after the other, on whatever streams they are.

Structures and functions are those of the CUDA driver's interface, version 12 on (CUDA_KERNEL_NODE_PARAMS_v2).

Knows: CUDA functions, the driver. Must not know: plans, arrays.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tracefuse.caches import memoized
from tracefuse.errors import DeviceError
from tracefuse.generated_code import compile_function
from tracefuse.kernel.cuda.cuda_functions import CudaFunction, grid_texts


class _NodeParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("blocks", ctypes.c_uint * 3),
        ("threads", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("parameters", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


@memoized("the CUDA driver library", key="none", most=1, clears=False)
def _driver() -> Any:
    """The driver's library, called with the interpreter's lock held: no function used here waits for the GPU."""
    return ctypes.PyDLL("libcuda.so.1")


def _check(status: int, what: str) -> None:
    if status:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(status, ctypes.byref(name))
        raise DeviceError(f"{what}: {(name.value or b'unknown error').decode()}")


class _Node:
    """One kernel of a graph. given: the arguments that it holds."""

    def __init__(self, function: CudaFunction, device: int) -> None:
        self.kept, handle = function.load(device)
        count = len(function.kernel.parameters)
        self._buffer = ctypes.create_string_buffer(8 * max(count, 1))
        start = ctypes.addressof(self._buffer)
        self._pointers = (ctypes.c_void_p * max(count, 1))(*(start + 8 * k for k in range(count)))
        threads = (ctypes.c_uint * 3)(function.kernel.threads, 1, 1)
        self.parameters = _NodeParameters(handle, (ctypes.c_uint * 3)(1, 1, 1), threads, function.shared_bytes)
        self.parameters.parameters = ctypes.addressof(self._pointers)
        self.address = ctypes.addressof(self.parameters)
        self.handle = ctypes.c_void_p()
        self.given: tuple[Any, ...] | None = None
        self.runs = True
        self.fill = self._written(function)

    def _written(self, function: CudaFunction) -> Callable[..., bool]:
        """Packs arguments and sets the grid; gives whether there are blocks to run."""
        names, packed, bits = function.packing()
        grid = [*grid_texts(function.kernel, names), "1", "1"][:3]
        lines = [f"def fill({', '.join(names)}):", f"    x, y, z = {', '.join(grid)}"]
        lines += ["    if not (0 < x <= 2147483647 and 0 < y <= 65535 and 0 < z <= 65535):"]
        lines += ["        no_grid(x, y, z)", "        return False"]
        lines += ["    blocks[0], blocks[1], blocks[2] = x, y, z", f"    pack(buffer, 0, {', '.join(packed)})"]
        scope = {
            "blocks": self.parameters.blocks, "pack": function.pack, "buffer": self._buffer,
            "no_grid": function.no_grid, **bits,
        }  # fmt: skip
        text, purpose = "\n".join([*lines, "    return True"]), f"graph node of {function.kernel.name}"
        return compile_function(text, "fill", scope, purpose)  # type: ignore[no-any-return]


class CudaGraph:
    """A chain of kernels on one GPU: called with the address of a stream and each kernel's arguments, in order.

    Arguments are as a launcher's. Raises DeviceError for a grid that the hardware does not take and what the driver
    refuses. Safe to use from several threads.
    """

    def __init__(self, functions: Sequence[CudaFunction], device: int) -> None:
        self._nodes = [_Node(function, device) for function in functions]
        self._graph, self._executable = ctypes.c_void_p(), ctypes.c_void_p()
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._lock = threading.Lock()
        driver = _driver()
        self._set, self._enable, self._launch = (
            driver.cuGraphExecKernelNodeSetParams_v2, driver.cuGraphNodeSetEnabled, driver.cuGraphLaunch
        )  # fmt: skip
        self._set.argtypes = (ctypes.c_void_p,) * 3
        self._enable.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint)
        self._launch.argtypes = (ctypes.c_void_p,) * 2

    def __call__(self, stream: int, arguments: Sequence[tuple[Any, ...]]) -> None:
        with self._lock:
            executable = self._executable.value
            if executable is None:
                executable = self._make(arguments)
            else:
                for node, given in zip(self._nodes, arguments, strict=True):
                    if node.given != given:
                        self._update(executable, node, given)
            status = self._launch(executable, stream)
            if status:
                _check(status, "the driver refused to launch a graph")

    def _update(self, executable: int, node: _Node, given: tuple[Any, ...]) -> None:
        node.given = None  # of no call, if what follows fails
        runs = node.fill(*given)
        if runs:
            status = self._set(executable, node.handle.value, node.address)
            if status:
                _check(status, "the driver refused to change a kernel of a graph")
        if runs is not node.runs:
            _check(self._enable(executable, node.handle.value, int(runs)), "a kernel of a graph cannot be switched")
            node.runs = runs
        node.given = given

    def _make(self, arguments: Sequence[tuple[Any, ...]]) -> int:
        driver = _driver()
        self._drop()
        _check(driver.cuGraphCreate(ctypes.byref(self._graph), 0), "a graph cannot be made")
        before: _Node | None = None
        for node, given in zip(self._nodes, arguments, strict=True):
            node.runs = node.fill(*given)
            after = None if before is None else (ctypes.c_void_p * 1)(before.handle.value)
            status = driver.cuGraphAddKernelNode_v2(
                ctypes.byref(node.handle),
                self._graph,
                after,
                ctypes.c_size_t(before is not None),
                ctypes.c_void_p(node.address),
            )
            _check(status, "a kernel cannot be put into a graph")
            before = node
        executable = ctypes.c_void_p()
        status = driver.cuGraphInstantiateWithFlags(ctypes.byref(executable), self._graph, ctypes.c_ulonglong(0))
        _check(status, "a graph cannot be made ready")
        for node, given in zip(self._nodes, arguments, strict=True):
            if not node.runs:
                _check(self._enable(executable, node.handle.value, 0), "a kernel of a graph cannot be switched")
            node.given = given
        self._executable = executable
        assert executable.value is not None
        assert self._graph.value is not None
        self._finalizer = weakref.finalize(self, _destroy, self._graph.value, executable.value)
        self._finalizer.atexit = False  # the driver may be gone by then
        return executable.value

    def _drop(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._graph, self._executable, self._finalizer = ctypes.c_void_p(), ctypes.c_void_p(), None


def _destroy(graph: int, executable: int) -> None:
    """The driver keeps what still runs."""
    _driver().cuGraphExecDestroy(ctypes.c_void_p(executable))
    _driver().cuGraphDestroy(ctypes.c_void_p(graph))
