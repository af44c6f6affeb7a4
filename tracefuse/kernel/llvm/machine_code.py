"""LLVM text to machine code in memory, in two steps: text to an object file, object file to addresses.

The object file can be kept and linked in another process, which then neither parses nor optimises anything. Linking is
ORC's: about 0.15 ms for a kernel with a linker that exists, against 0.5 ms with a new one or an MCJIT engine.

llvmlite holds one lock around every call of LLVM. LLVM itself asks for no more than that threads work in contexts of
their own, so the two calls that take long (the passes, code generation) go around that lock.

Everything of llvmlite runs shielded from interrupts, freeing included: an interrupt inside its lock would leave it
locked, and one between a call and the variable for its result would lose or free twice what LLVM made.

Knows: llvmlite. Must not know: how the text is made, what a kernel means, files.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import queue
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tracefuse.errors import CompileError
from tracefuse.kernel.interrupt_shield import shielded
from tracefuse.kernel.llvm import streaming_stores

# How the pass pipeline and the code generator are set up; part of every key.
PASS_SETTINGS = {"loop_vectorization": True, "slp_vectorization": True, "loop_interleaving": True}
LEVEL = 3
# A linker never forgets the names of what it linked, about 10 KiB for each: after this many it is replaced, and goes
# with the last of its kernels.
KERNELS_OF_LINKER = 64


class Machine:
    """Code generation and linking for this processor."""

    def __init__(self) -> None:
        from llvmlite import __version__, binding

        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        binding.initialize_native_asmparser()  # for inline assembly
        self.cpu = binding.get_host_cpu_name()
        self.features = binding.get_host_cpu_features().flatten()
        self.version = f"llvmlite {__version__}, LLVM {'.'.join(map(str, binding.llvm_version_info))}"
        self.triple = binding.get_process_triple()
        self._target = binding.Target.from_default_triple()
        self._linked = itertools.count()
        self._linker: Any = None
        self._lock = threading.Lock()
        self._held: dict[int, _Held] = {}
        # Numbers of linked code that nothing refers to any more. SimpleQueue.put is C, and safe inside itself.
        self._unused: queue.SimpleQueue[int] = queue.SimpleQueue()

    @property
    def key(self) -> tuple[str, ...]:
        """What an object file depends on besides its text."""
        settings = f"O{LEVEL} {PASS_SETTINGS} {streaming_stores.VERSION}"
        return (self.version, self.triple, self.cpu, self.features, settings)

    def _target_machine(self) -> Any:
        return self._target.create_target_machine(cpu=self.cpu, features=self.features, opt=LEVEL, jit=True)

    def _next_linker(self) -> tuple[Any, int]:
        """The linker of the next kernel, and a number that no kernel has had yet."""
        from llvmlite import binding

        with self._lock:
            number = next(self._linked)
            if self._linker is None or number % KERNELS_OF_LINKER == 0:
                self._linker = None
                with contextlib.closing(self._target_machine()) as target_machine:
                    self._linker = binding.create_lljit_compiler(target_machine, suppress_errors=True)
            return self._linker, number

    def _run_passes(self, module: Any, target_machine: Any) -> None:
        from llvmlite import binding

        with contextlib.ExitStack() as stack:
            tuning = stack.enter_context(contextlib.closing(binding.create_pipeline_tuning_options(speed_level=LEVEL)))
            for name, value in PASS_SETTINGS.items():
                setattr(tuning, name, value)
            builder = stack.enter_context(contextlib.closing(binding.create_pass_builder(target_machine, tuning)))
            manager = stack.enter_context(contextlib.closing(builder.getModulePassManager()))
            run = _without_lock("LLVMPY_RunNewModulePassManager")
            if run is None:
                manager.run(module, builder)
            else:
                run(manager, module, builder)

    def _emitted(self, text: str, emit: Callable[[Any, Any], Any]) -> Any:
        """What `emit` makes of the target machine and the module after LLVM's passes."""
        from llvmlite import binding

        with contextlib.ExitStack() as stack:
            # Closed here, not where a traceback that holds this frame ends, which may be on the main thread.
            target_machine = stack.enter_context(contextlib.closing(self._target_machine()))
            # A context of its own: the global one would keep types and constants for good, and threads may not share
            # it. The module goes before its context.
            context = stack.enter_context(contextlib.closing(binding.create_context()))
            try:
                module = stack.enter_context(contextlib.closing(binding.parse_assembly(text, context)))
                module.verify()
            except RuntimeError as error:
                hint = "report this with the kernel's text"
                raise CompileError(f"LLVM refuses a kernel: {error}", hint=hint) from error
            self._run_passes(module, target_machine)
            if streaming_stores.is_marked(text):
                moved = streaming_stores.past_caches(str(module))
                module = stack.enter_context(contextlib.closing(binding.parse_assembly(moved, context)))
            return emit(target_machine, module)

    def compile(self, text: str) -> bytes:
        """The object file of an LLVM module; threads compile in parallel. Raises CompileError for what LLVM refuses."""
        found: bytes = shielded(lambda: self._emitted(text, _emit_object))
        return found

    def assembly(self, text: str) -> str:
        """The processor's assembly of an LLVM module."""
        return shielded(lambda: str(self._emitted(text, lambda machine, module: machine.emit_assembly(module))))

    def link(self, code: bytes, symbols: Mapping[str, int], exported: Sequence[str]) -> LinkedCode:
        """An object file in executable memory. symbols: addresses of what it refers to besides this process's symbols.

        Raises CompileError where `code` is no object file for this machine or refers to something unknown.
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
        # The callback is C alone: Python code would be interrupted there, and the interrupt swallowed.
        reference = weakref.ref(linked, functools.partial(self._unused.put, number))
        self._held[number] = _Held(reference, tracker, linker)
        return linked

    def _keep(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            held.tracker.detach()
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held.linker))

    def free_unused(self) -> None:
        """Gives the memory of machine code back that nothing refers to; the next link would do so, too."""
        shielded(self._close_unused)

    def _close_unused(self) -> None:
        while True:
            try:
                number = self._unused.get_nowait()
            except queue.Empty:
                return
            held = self._held.pop(number, None)
            if held is not None:
                # The code goes before its linker, which goes with the last reference.
                held.tracker.close()


class _Held(NamedTuple):
    """What linked code takes of LLVM. reference: tells when nothing refers to the code any more."""

    reference: weakref.ref[LinkedCode]
    tracker: Any
    linker: Any


class LinkedCode:
    """Machine code and the addresses of its exported functions.

    When nothing refers to this any more, the machine's next link or `free_unused` gives the memory back.
    """

    def __init__(self, addresses: Mapping[str, int], keep: Callable[[], None]) -> None:
        self.addresses = addresses
        self._keep = keep

    def keep(self) -> None:
        """Keeps the memory until the process ends: also while the interpreter goes down and threads are in the code."""
        self._keep()


def _without_lock(name: str) -> Callable[..., Any] | None:
    """llvmlite's C function without the lock around it, or None where this llvmlite has no such way."""
    from llvmlite.binding import ffi

    return getattr(getattr(ffi.lib, name), "_cfn", None)


def _emit_object(target_machine: Any, module: Any) -> bytes:
    from llvmlite.binding import ffi

    emit = _without_lock("LLVMPY_TargetMachineEmitToMemory")
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


_lock = threading.Lock()
_machine: Machine | None = None


def get_machine() -> Machine:
    """The one Machine of the process."""
    return _machine if _machine is not None else shielded(_first_machine)


def _first_machine() -> Machine:
    global _machine
    with _lock:
        if _machine is None:
            _machine = Machine()
        return _machine


def free_unused() -> None:
    """See Machine.free_unused; makes no Machine where there is none."""
    if _machine is not None:
        _machine.free_unused()
