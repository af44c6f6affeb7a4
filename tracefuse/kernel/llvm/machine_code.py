"""Compilation of LLVM text to machine code in memory, in two steps: to an object file, then to linked addresses.

Another process can link a stored object file without parsing or optimizing. Linking uses ORC: about 0.15 ms per kernel
with an existing linker, against 0.5 ms with a new one or an MCJIT engine.

llvmlite holds one lock around every LLVM call. LLVM only requires that each thread uses its own context, so the two
long calls (the passes and code generation) bypass that lock.

All llvmlite calls, including those that free memory, run shielded from interrupts. An interrupt inside the lock would
leave it locked, and one between a call and the assignment of its result would leak an LLVM object or free it twice.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import queue
import re
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tracefuse.errors import CompileError
from tracefuse.kernel.interrupt_shield import shielded
from tracefuse.kernel.llvm import rare_paths, streaming_stores
from tracefuse.kernel.llvm.loop_metadata import is_in_vectors
from tracefuse.kernel.llvm.strength_reduction import is_left_out, without_strength_reduction


class Optimization(NamedTuple):
    """How far LLVM optimizes; part of every cache key.

    level, code_level: of the pass pipeline and the code generator. vectorizes: loops and statements.
    """

    level: int
    code_level: int
    vectorizes: bool


# Level 3 copies loops for conditions that do not change in them, of which kernels have few, at twice the time.
OPTIMIZED = Optimization(level=2, code_level=3, vectorizes=True)
# A tenth of the time, for code that runs several times slower.
UNOPTIMIZED = Optimization(level=0, code_level=0, vectorizes=False)
# The passes for modules whose innermost loops are written in vectors: a quarter of the time of the whole pipeline.
# Without the rotation of loops, which takes a twentieth of it, rows of few vectors run 1.1 times as long.
PASSES_OF_VECTORS = ("always_inliner", "sroa", "loop_rotate", "instruction_combine", "simplify_cfg", "new_gvn")
# The instructions of a basic block up to which statements are vectorized with each other (SLP): that takes time with
# their square, and blocks as long are the bodies of loops, which are vectorized over iterations.
MOST_OF_VECTORIZED_BLOCK = 400
# A linker keeps the symbol names of everything it linked, about 10 KiB per kernel. After this many kernels it is
# replaced, and it is freed with the last of its kernels.
KERNELS_OF_LINKER = 64
_BLOCK_END = re.compile(r"^(?:[\w.]+:|\})", re.MULTILINE)


class Machine:
    """Code generation and linking for this processor.

    optimization: of the code that is compiled from now on. Tests that prove values alone set UNOPTIMIZED.
    """

    def __init__(self) -> None:
        from llvmlite import __version__, binding

        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        binding.initialize_native_asmparser()  # for inline assembly
        self.cpu = binding.get_host_cpu_name()
        self.features = _features(self.cpu, binding.get_host_cpu_features().flatten())
        self.version = f"llvmlite {__version__}, LLVM {'.'.join(map(str, binding.llvm_version_info))}"
        self.triple = binding.get_process_triple()
        self.optimization = OPTIMIZED
        self._target = binding.Target.from_default_triple()
        self._linked = itertools.count()
        self._linker: Any = None
        self._lock = threading.Lock()
        self._held: dict[int, _Held] = {}
        # Target machines that no thread uses now, by level of code generation: a new one takes .4 ms.
        self._idle: dict[int, list[Any]] = {}
        # Numbers of linked code without references. SimpleQueue.put is implemented in C and is reentrant.
        self._unused: queue.SimpleQueue[int] = queue.SimpleQueue()

    @property
    def key(self) -> tuple[str, ...]:
        """Everything except its text that determines an object file, for cache keys."""
        passes = f"{tuple(self.optimization)} {PASSES_OF_VECTORS} {MOST_OF_VECTORIZED_BLOCK}"
        settings = f"{passes} {streaming_stores.VERSION} {is_left_out()}"
        return (self.version, self.triple, self.cpu, self.features, settings)

    def _target_machine(self, optimization: Optimization) -> Any:
        level = optimization.code_level
        return self._target.create_target_machine(cpu=self.cpu, features=self.features, opt=level, jit=True)

    @contextlib.contextmanager
    def _borrowed_target_machine(self, optimization: Optimization) -> Iterator[Any]:
        """Yield a target machine that no other thread uses meanwhile."""
        idle = self._idle.setdefault(optimization.code_level, [])
        try:
            target_machine = idle.pop()
        except IndexError:
            target_machine = self._target_machine(optimization)
        try:
            yield target_machine
        finally:
            idle.append(target_machine)

    @contextlib.contextmanager
    def _pass_builder(self, target_machine: Any, text: str, level: int, *, vectorizes: bool) -> Iterator[Any]:
        from llvmlite import binding

        with contextlib.closing(binding.create_pipeline_tuning_options(speed_level=level)) as tuning:
            # Only marked loops are unrolled: vector loops are interleaved, and copies of other loops' bodies take a
            # tenth of LLVM's time.
            tuning.loop_vectorization, tuning.loop_interleaving, tuning.loop_unrolling = vectorizes, vectorizes, False
            tuning.slp_vectorization = vectorizes and _longest_block(text) <= MOST_OF_VECTORIZED_BLOCK
            with contextlib.closing(binding.create_pass_builder(target_machine, tuning)) as builder:
                yield builder

    def _next_linker(self) -> tuple[Any, int]:
        """Return the linker for the next kernel and a unique number for the kernel."""
        from llvmlite import binding

        with self._lock:
            number = next(self._linked)
            if self._linker is None or number % KERNELS_OF_LINKER == 0:
                self._linker = None
                with contextlib.closing(self._target_machine(self.optimization)) as target_machine:
                    self._linker = binding.create_lljit_compiler(target_machine, suppress_errors=True)
            return self._linker, number

    def _run_passes(self, module: Any, target_machine: Any, text: str, optimization: Optimization) -> None:
        with contextlib.ExitStack() as stack:
            in_vectors = bool(optimization.level) and is_in_vectors(text)
            vectorizes = optimization.vectorizes and not in_vectors
            builder = stack.enter_context(
                self._pass_builder(target_machine, text, optimization.level, vectorizes=vectorizes)
            )
            passes = _passes_of_vectors() if in_vectors else builder.getModulePassManager()
            manager = stack.enter_context(contextlib.closing(passes))
            run = _without_lock("LLVMPY_RunNewModulePassManager") or _run
            run(manager, module, builder)

    def _inline_guards(self, module: Any, target_machine: Any, text: str, optimization: Optimization) -> None:
        """Inline the vector variants of guards, now that loops call them, and remove the unused ones."""
        from llvmlite import binding

        module.get_global_variable(rare_paths.KEPT).linkage = binding.Linkage.internal
        with contextlib.ExitStack() as stack:
            builder = stack.enter_context(
                self._pass_builder(target_machine, text, optimization.level, vectorizes=optimization.vectorizes)
            )
            manager = stack.enter_context(contextlib.closing(binding.create_new_module_pass_manager()))
            manager.add_always_inliner_pass()
            manager.add_global_opt_pass()
            manager.add_global_dead_code_eliminate_pass()
            manager.run(module, builder)

    def _emitted(
        self, text: str, emit: Callable[[Any, Any], Any], *, passes: bool = True, optimization: Optimization
    ) -> Any:
        """Run LLVM's passes on a module and return `emit(target_machine, module)`. passes: see `compile`."""
        from llvmlite import binding

        with contextlib.ExitStack() as stack:
            target_machine = stack.enter_context(self._borrowed_target_machine(optimization))
            # Closed here, because a traceback that holds this frame may be freed on the main thread.
            # A separate context: the global one never frees types and constants, and threads cannot share it. The
            # module must be freed before its context.
            context = stack.enter_context(contextlib.closing(binding.create_context()))
            try:
                module = stack.enter_context(contextlib.closing(binding.parse_assembly(text, context)))
                module.verify()
            except RuntimeError as error:
                hint = "report this with the kernel's text"
                raise CompileError(f"LLVM refuses a kernel: {error}", hint=hint) from error
            if passes:
                self._run_passes(module, target_machine, text, optimization)
            if rare_paths.is_guarded(text):
                self._inline_guards(module, target_machine, text, optimization)
            if streaming_stores.is_marked(text):
                moved = streaming_stores.past_caches(str(module))
                module = stack.enter_context(contextlib.closing(binding.parse_assembly(moved, context)))
            return emit(target_machine, module)

    def compile(self, text: str, *, passes: bool = True, optimization: Optimization | None = None) -> bytes:
        """Compile an LLVM module to an object file; threads compile in parallel. Raises CompileError if LLVM fails.

        passes: run LLVM's passes, which a module of loops on vectors in registers does not need. optimization: by
        default that of this machine.
        """
        how = optimization or self.optimization
        machine_code: bytes = shielded(lambda: self._emitted(text, _emit_object, passes=passes, optimization=how))
        return machine_code

    def assembly(self, text: str) -> str:
        """Return the assembly of an LLVM module for this processor."""
        return shielded(lambda: str(self._emitted(text, _emit_assembly, optimization=self.optimization)))

    def link(self, code: bytes, symbols: Mapping[str, int], exported: Sequence[str]) -> LinkedCode:
        """Link an object file into executable memory.

        symbols: addresses of symbols in addition to those of this process. exported: functions whose addresses to
        return. Raises CompileError if `code` is not an object file for this machine or has an undefined symbol.
        """
        return shielded(lambda: self._linked_code(code, symbols, exported))

    def _linked_code(self, code: bytes, symbols: Mapping[str, int], exported: Sequence[str]) -> LinkedCode:
        from llvmlite import binding

        self._close_unused()
        library = binding.JITLibraryBuilder().add_object_img(code).add_current_process()
        for name, address in symbols.items():
            library.import_symbol(name, address)
        for name in exported:
            library.export_symbol(name)
        linker, number = self._next_linker()
        try:
            tracker = library.link(linker, f"kernel{number}")
        except RuntimeError as error:
            raise CompileError(f"machine code cannot be linked: {error}") from error
        linked = LinkedCode({name: tracker[name] for name in exported}, lambda: self._keep(number))
        # The callback is implemented in C: an interrupt in a Python callback would be swallowed.
        reference = weakref.ref(linked, functools.partial(self._unused.put, number))
        self._held[number] = _Held(reference, tracker, linker)
        return linked

    def _keep(self, number: int) -> None:
        module = self._held.pop(number, None)
        if module is not None:
            module.tracker.detach()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(module.linker))

    def free_unused(self) -> None:
        """Free machine code without references. The next call of `link` does so, too."""
        shielded(self._close_unused)

    def _close_unused(self) -> None:
        while True:
            try:
                number = self._unused.get_nowait()
            except queue.Empty:
                return
            module = self._held.pop(number, None)
            if module is not None:
                # The code must be freed before its linker, which is freed with its last reference.
                module.tracker.close()


def _features(cpu: str, of_processor: str) -> str:
    """Return the features that LLVM compiles for.

    AMD's gather instructions take longer than loads of one element each, which LLVM's costs do not tell.
    """
    return f"{of_processor},+prefer-no-gather" if cpu.startswith("znver") else of_processor


class _Held(NamedTuple):
    """The LLVM objects behind linked code. reference: reports when the code loses its last reference."""

    reference: weakref.ref[LinkedCode]
    tracker: Any
    linker: Any


class LinkedCode:
    """Machine code and the addresses of its exported functions.

    After the last reference is gone, the machine's next `link` or `free_unused` frees the memory.
    """

    def __init__(self, addresses: Mapping[str, int], keep: Callable[[], None]) -> None:
        self.addresses = addresses
        self._keep = keep

    def keep(self) -> None:
        """Keep the memory until the process ends, even while the interpreter shuts down with threads in the code."""
        self._keep()


def _longest_block(text: str) -> int:
    """Return the number of lines of the longest basic block in LLVM text."""
    return max((block.count("\n") for block in _BLOCK_END.split(text)), default=0)


def _passes_of_vectors() -> Any:
    """Return the passes for a module whose innermost loops are written in vectors."""
    from llvmlite import binding

    manager = binding.create_new_module_pass_manager()
    for name in PASSES_OF_VECTORS:
        getattr(manager, f"add_{name}_pass")()
    return manager


def _run(manager: Any, code: Any, builder: Any) -> None:
    manager.run(code, builder)


def _without_lock(name: str) -> Callable[..., Any] | None:
    """Return llvmlite's C function without its lock, or None if this llvmlite version does not expose it."""
    from llvmlite.binding import ffi

    return getattr(getattr(ffi.lib, name), "_cfn", None)


def _emit_object(target_machine: Any, module: Any) -> bytes:
    from llvmlite.binding import ffi

    emit = _without_lock("LLVMPY_TargetMachineEmitToMemory")
    with without_strength_reduction():
        if emit is None:
            return bytes(target_machine.emit_object(module))
        with ffi.OutputString() as message:
            buffer = emit(target_machine, module, 1, message)
            if not buffer:
                raise CompileError(f"LLVM makes no machine code of a kernel: {message}")
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _emit_assembly(target_machine: Any, module: Any) -> str:
    with without_strength_reduction():
        return str(target_machine.emit_assembly(module))


_lock = threading.Lock()
_machine: Machine | None = None


def get_machine() -> Machine:
    """Return the process's Machine."""
    return _machine if _machine is not None else shielded(_first_machine)


def _first_machine() -> Machine:
    global _machine
    with _lock:
        if _machine is None:
            _machine = Machine()
        return _machine


def free_unused() -> None:
    """Free unused machine code (see Machine.free_unused), without creating a Machine."""
    if _machine is not None:
        _machine.free_unused()
