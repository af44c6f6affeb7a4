"""CUDA C++ to machine code through NVRTC, with CuPy's binding or with the library alone.

Where CuPy is loaded its own binding is used, so that the compiler is the one that CuPy itself works with. Without CuPy
(no GPU, no driver) the shared library is looked for in the NVIDIA wheels of this Python, then in the CUDA toolkits of
the machine, and called through ctypes: enough to compile for any architecture, which is what CI does.

Knows: where NVRTC lies and how it is called. Must not know: kernels, launches.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tracefuse.caches import memoized
from tracefuse.errors import CompileError

# Denormals are kept, division and square root are correctly rounded, no fast math. `--fmad` is each kernel's own.
BASE_OPTIONS = ("--std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
_MINIMUM_ARCHITECTURE = 80  # conversions to bfloat16, minima that pass NaN


class Nvrtc(Protocol):
    """A way to reach NVRTC. `compile` returns success, what was asked for ("CUBIN" or "PTX") and the log."""

    version: tuple[int, int]

    def compile(self, source: str, name: str, options: Sequence[str], kind: str) -> tuple[bool, bytes, str]: ...


class CtypesNvrtc:
    """NVRTC's C interface in a shared library."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = (major.value, minor.value)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            reason = self._library.nvrtcGetErrorString(status).decode()
            raise CompileError(f"{name} failed: {reason}", hint=f"the NVRTC library is {self.path}")

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, content)
        return content.raw

    def compile(self, source: str, name: str, options: Sequence[str], kind: str) -> tuple[bool, bytes, str]:
        program = ctypes.c_void_p()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), f"{name}.cu".encode(), 0, None, None)
        try:
            encoded = [option.encode() for option in options]
            array = (ctypes.c_char_p * len(encoded))(*encoded)
            status = self._library.nvrtcCompileProgram(program, len(encoded), array)
            log = self._bytes(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            code = b"" if status else self._bytes(program, kind)
            return not status, code, log
        finally:
            self._call("nvrtcDestroyProgram", ctypes.byref(program))


class CupyNvrtc:
    """NVRTC as CuPy binds it."""

    def __init__(self) -> None:
        self._binding: Any = importlib.import_module("cupy_backends.cuda.libs.nvrtc")
        self.version = tuple(self._binding.getVersion())

    def compile(self, source: str, name: str, options: Sequence[str], kind: str) -> tuple[bool, bytes, str]:
        binding = self._binding
        program = binding.createProgram(source, f"{name}.cu", (), ())
        try:
            try:
                binding.compileProgram(program, tuple(options))
            except binding.NVRTCError as error:
                return False, b"", f"{binding.getProgramLog(program)}{error}"
            code = bytes(binding.getCUBIN(program)) if kind == "CUBIN" else binding.getPTX(program).encode()
            return True, code, binding.getProgramLog(program)
        finally:
            binding.destroyProgram(program)


def library_candidates() -> list[str]:
    """Where NVRTC's shared library may lie, best first: NVIDIA's wheels, toolkits of the machine, the loader's path."""
    windows = sys.platform == "win32"
    pattern = "nvrtc64_*_0.dll" if windows else "libnvrtc.so*"
    roots = {sysconfig.get_paths()[key] for key in ("purelib", "platlib")}
    roots.update(path for path in sys.path if path.endswith(("site-packages", "dist-packages")))
    folders = [
        Path(root, "nvidia", package, "bin" if windows else "lib")
        for root in sorted(roots)
        for package in ("cu13", "cuda_nvrtc")
    ]
    toolkits = [os.environ[name] for name in ("CUDA_PATH", "CUDA_HOME") if name in os.environ] + ["/usr/local/cuda"]
    folders += [Path(toolkit, "bin" if windows else "lib64") for toolkit in toolkits]
    found: list[str] = []
    for folder in folders:
        libraries = [p for p in sorted(folder.glob(pattern)) if "builtins" not in p.name and ".alt." not in p.name]
        found += [str(p) for p in reversed(libraries)]
    return found if windows else [*found, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]


def _through_ctypes() -> Nvrtc:
    tried: list[str] = []
    for path in library_candidates():
        try:
            return CtypesNvrtc(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
    raise OSError("; ".join(tried))


def _through_cupy() -> Nvrtc:
    importlib.import_module("cupy")  # sets up where CuPy looks for CUDA's libraries
    return CupyNvrtc()


@memoized("the NVRTC library", key="none", most=1, clears=False)
def nvrtc() -> Nvrtc:
    """The NVRTC of this process. Raises CompileError with what was tried where there is none."""
    ways: list[Callable[[], Nvrtc]] = [_through_ctypes, _through_cupy]
    if "cupy" in sys.modules:
        ways.reverse()
    tried: list[str] = []
    for way in ways:
        try:
            return way()
        except (ImportError, OSError, RuntimeError) as error:  # no such package, no such library, or one of no use
            tried.append(str(error))
    raise CompileError(
        "NVRTC, the compiler of CUDA kernels, was not found: " + " | ".join(tried),
        hint="install CuPy with its CUDA libraries (cupy-cuda13x[ctk]) or the wheel nvidia-cuda-nvrtc",
    )


@memoized("the version of NVRTC", key="none", most=1, clears=False)
def identity() -> str:
    """Which NVRTC compiles here, for keys of caches; told without loading it where its files are known.

    The files' own names and sizes: a toolkit's name has the version in it, and two versions differ in size.
    """
    files = {Path(path).resolve() for path in library_candidates() if os.path.isabs(path)}
    if files:
        return ", ".join(sorted(f"{path.name} of {path.stat().st_size} bytes" for path in files))
    return ".".join(map(str, nvrtc().version))


def _compile(source: str, name: str, architecture: str, options: Sequence[str], kind: str) -> tuple[bytes, str]:
    number = re.fullmatch(r"sm_(\d+)[af]?", architecture)
    if number is None or int(number[1]) < _MINIMUM_ARCHITECTURE:
        raise CompileError(
            f"{name}: CUDA architecture {architecture!r} is not supported",
            hint=f"tracefuse needs sm_{_MINIMUM_ARCHITECTURE} (compute capability 8.0) or later",
        )
    aim = architecture if kind == "CUBIN" else architecture.replace("sm_", "compute_")
    everything = (*BASE_OPTIONS, f"--gpu-architecture={aim}", *options)
    success, code, log = nvrtc().compile(source, name, everything, kind)
    if not success:
        raise CompileError(
            f"NVRTC refused kernel {name} for {architecture} with {' '.join(options) or 'no options'}:\n{log}\n"
            f"source:\n{source}",
            hint="this is a bug in tracefuse; the source above shows it",
        )
    return code, log


def compile_with_log(source: str, name: str, *, architecture: str, options: Sequence[str] = ()) -> tuple[bytes, str]:
    """Machine code (cubin) of `source` for `architecture` ("sm_90"), and the compiler's messages.

    options are added to BASE_OPTIONS. Raises CompileError with the log and the source.
    """
    return _compile(source, name, architecture, options, "CUBIN")


def compile_to_ptx(source: str, name: str, *, architecture: str, options: Sequence[str] = ()) -> str:
    """PTX of `source`, to look at; what runs is machine code. Raises as `compile_with_log`."""
    return _compile(source, name, architecture, options, "PTX")[0].rstrip(b"\0").decode()


def compile_source(source: str, name: str, *, architecture: str, options: Sequence[str] = ()) -> bytes:
    """Machine code (cubin) of `source`; see `compile_with_log`."""
    return compile_with_log(source, name, architecture=architecture, options=options)[0]
