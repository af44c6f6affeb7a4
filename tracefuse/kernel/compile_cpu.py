"""Compiles the LLVM text of a CPU kernel in memory and makes it callable from Python.

The callable is a C function object over the machine code: a launch costs no Python and no ctypes. Kernels whose texts
differ in names and comments only share one compilation.

Knows: llvmlite, CPython's way to make a function object. Must not know: how the text is made, what a kernel means.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from tracefuse.errors import CompileError
from tracefuse.kernel import ir, pool
from tracefuse.kernel.llvm import emit_llvm
from tracefuse.kernel.llvm_launch import HEADER_BYTES

_METH_FASTCALL = 0x80
# Kernels that the cache keeps compiled; beyond, the one that was longest not asked for is forgotten.
MOST_KERNELS = 2048


class _MethodDefinition(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("documentation", ctypes.c_char_p),
    )


@functools.cache
def _reads_arrays() -> bool:
    """Whether an array keeps its data pointer right after the object header, and the header ends in the type."""
    for shape in ((3,), (2, 2)):
        array = np.zeros(shape)
        header = ctypes.cast(id(array) + HEADER_BYTES - 8, ctypes.POINTER(ctypes.c_uint64 * 2)).contents
        if list(header) != [id(np.ndarray), array.__array_interface__["data"][0]]:
            return False
    return True


class Machine:
    """Code generation for this processor, and the symbols that kernels refer to."""

    def __init__(self) -> None:
        from llvmlite import __version__, binding

        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        binding.initialize_native_asmparser()
        self.cpu = binding.get_host_cpu_name()
        self.features = binding.get_host_cpu_features().flatten()
        self.version = __version__
        self.lock = threading.Lock()
        binding.add_symbol("tracefuse_array_type", id(np.ndarray))
        binding.add_symbol("tracefuse_parallel_for", pool.get_pool().address)

    def target_machine(self) -> Any:
        from llvmlite import binding

        target = binding.Target.from_default_triple()
        return target.create_target_machine(cpu=self.cpu, features=self.features, opt=3, jit=True)

    def optimise(self, text: str, context: Any) -> tuple[Any, Any]:
        """The module after LLVM's passes, in `context`, and the target machine that it was made for."""
        from llvmlite import binding

        target_machine = self.target_machine()
        try:
            module = binding.parse_assembly(text, context)
            module.verify()
        except RuntimeError as error:
            raise CompileError(f"LLVM refuses a kernel: {error}", hint="report this with the kernel's text") from error
        tuning = binding.create_pipeline_tuning_options(speed_level=3)
        tuning.loop_vectorization = True
        tuning.slp_vectorization = True
        tuning.loop_interleaving = True
        builder = binding.create_pass_builder(target_machine, tuning)
        builder.getModulePassManager().run(module, builder)
        return module, target_machine


@functools.cache
def get_machine() -> Machine:
    """The one Machine of the process."""
    return Machine()


class CompiledModule:
    """Machine code of one kernel; lives as long as something refers to it."""

    def __init__(self, source: str, name: str) -> None:
        from llvmlite import binding

        machine = get_machine()
        with machine.lock:
            # A context of its own goes with the kernel; the global one would keep its types and constants for good.
            context = binding.create_context()
            module, target_machine = machine.optimise(source, context)
            engine = binding.create_mcjit_compiler(module, target_machine)
            engine.finalize_object()
            address = engine.get_function_address("launch")
        # The engine owns the module, which must go before the context that it was made in. The garbage collector frees
        # in any order, so both are held by a finalizer instead of by this object.
        weakref.finalize(self, _dispose, engine, context).atexit = False
        self.definition = _MethodDefinition(name.encode(), address, _METH_FASTCALL, None)

    def function(self) -> Callable[..., None]:
        """A function object over `launch`; it keeps this module alive."""
        make = ctypes.pythonapi.PyCFunction_NewEx
        make.restype = ctypes.py_object
        make.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        made: Callable[..., None] = make(ctypes.addressof(self.definition), self, None)
        return made


def _dispose(engine: Any, context: Any) -> None:
    """Frees the machine code, then the context that its module belongs to."""
    engine.close()
    context.close()


class CpuFunction:
    """A compiled kernel.

    `launch(*arguments)` takes, in the parameters' order, a NumPy array (or an address) for each buffer and a Python
    number for each scalar. It checks no dtype, shape or alignment: the caller has. `source` is the LLVM IR.
    """

    __slots__ = ("kernel", "launch", "source")

    def __init__(self, kernel: ir.Kernel, source: str, function: Callable[..., None]) -> None:
        self.kernel, self.source = kernel, source
        self.launch = function if _reads_arrays() else functools.partial(_launch_by_address, function)

    def __call__(self, *arguments: Any) -> None:
        self.launch(*arguments)

    def assembly(self) -> str:
        """The processor's assembly of the kernel."""
        from llvmlite import binding

        machine = get_machine()
        with machine.lock:
            module, target_machine = machine.optimise(self.source, binding.create_context())
            return str(target_machine.emit_assembly(module))


def _launch_by_address(function: Callable[..., None], *arguments: Any) -> None:
    function(*(a.__array_interface__["data"][0] if isinstance(a, np.ndarray) else a for a in arguments))


_NAME = re.compile(r"%[A-Za-z_][\w.]*|^([A-Za-z_][\w.]*):", re.MULTILINE)


def canonical(text: str) -> str:
    """`text` without comments and with local names numbered: equal for kernels that differ in names alone."""
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        found = match.group(1)
        name = found if found else match.group(0)[1:]
        short = numbers.setdefault(name, f"n{len(numbers)}")
        return f"{short}:" if found else f"%{short}"

    text = re.sub(r"^ *;.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^@wrong_count.*\n", "", text, flags=re.MULTILINE)
    return _NAME.sub(number, text)


_cache: OrderedDict[str, CompiledModule] = OrderedDict()
_cache_lock = threading.Lock()


def cache_key(source: str) -> str:
    """What a compiled kernel depends on: its canonical text, the processor and its features, llvmlite's version."""
    machine = get_machine()
    parts = (canonical(source), machine.cpu, machine.features, machine.version)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def compile_cpu(kernel: ir.Kernel) -> CpuFunction:
    """Compiles `kernel` (target "cpu") or takes an equal one from memory. Thread-safe.

    Raises CompileError where the kernel uses what the CPU kernels do not support.
    """
    source = emit_llvm(kernel)
    key = cache_key(source)
    with _cache_lock:
        module = _cache.get(key)
        if module is not None:
            _cache.move_to_end(key)
    if module is None:
        module = CompiledModule(source, kernel.name)
        with _cache_lock:
            module = _cache.setdefault(key, module)
            if len(_cache) > MOST_KERNELS:
                _cache.popitem(last=False)
    return CpuFunction(kernel, source, module.function())


def clear_cache() -> None:
    """Forgets the compiled kernels; functions that exist keep working."""
    with _cache_lock:
        _cache.clear()
