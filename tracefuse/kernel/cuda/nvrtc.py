"""Compilation of CUDA C++ with NVRTC, through CuPy's binding or through ctypes.

If CuPy is loaded, its binding is used, so both use the same compiler. Without CuPy (no GPU, no driver), the shared
library is located in the NVIDIA wheels of this Python, then in the machine's CUDA toolkits, and called through ctypes.
That suffices to compile for any architecture, as CI does.
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

# Denormals are kept, division and square root are correctly rounded, no fast math. Each kernel sets `--fmad` itself.
BASE_OPTIONS = ("--std=c++17", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
_MINIMUM_ARCHITECTURE = 80  # conversions to bfloat16, minimum and maximum that propagate NaN


class Nvrtc(Protocol):
    """An interface to NVRTC. `compile` returns success, the code of kind "CUBIN" or "PTX", and the log."""

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

    def _bytes(self, program: ctypes.c_void_p, content_kind: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{content_kind}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{content_kind}", program, content)
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
    """NVRTC through CuPy's binding."""

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
    """Return candidate paths of NVRTC's library, in order: NVIDIA's wheels, CUDA toolkits, the loader's search path."""
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
    paths: list[str] = []
    for folder in folders:
        libraries = [p for p in sorted(folder.glob(pattern)) if "builtins" not in p.name and ".alt." not in p.name]
        paths += [str(p) for p in reversed(libraries)]
    return paths if windows else [*paths, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]


def _load_library() -> Nvrtc:
    tried: list[str] = []
    for path in library_candidates():
        try:
            return CtypesNvrtc(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
    raise OSError("; ".join(tried))


def _load_cupy() -> Nvrtc:
    importlib.import_module("cupy")  # sets CuPy's search paths for the CUDA libraries
    return CupyNvrtc()


@memoized("the NVRTC library", key="none", most=1, clears=False)
def nvrtc() -> Nvrtc:
    """Return this process's NVRTC. Raises CompileError, listing the locations tried, if there is none."""
    loaders: list[Callable[[], Nvrtc]] = [_load_library, _load_cupy]
    if "cupy" in sys.modules:
        loaders.reverse()
    tried: list[str] = []
    for load in loaders:
        try:
            return load()
        except (ImportError, OSError, RuntimeError) as error:  # no CuPy, no library, or an unusable one
            tried.append(str(error))
    raise CompileError(
        "NVRTC, the compiler of CUDA kernels, was not found: " + " | ".join(tried),
        hint="install CuPy with its CUDA libraries (cupy-cuda13x[ctk]) or the wheel nvidia-cuda-nvrtc",
    )


@memoized("the version of NVRTC", key="none", most=1, clears=False)
def identity() -> str:
    """Return a string that identifies the NVRTC in use, for cache keys.

    It consists of the names and sizes of NVRTC's files, which differ between versions and are known without loading the
    library. If no file is found, it is the version that NVRTC reports.
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
    target = architecture if kind == "CUBIN" else architecture.replace("sm_", "compute_")
    all_options = (*BASE_OPTIONS, f"--gpu-architecture={target}", *options)
    success, code, log = nvrtc().compile(source, name, all_options, kind)
    if not success:
        raise CompileError(
            f"NVRTC refused kernel {name} for {architecture} with {' '.join(options) or 'no options'}:\n{log}\n"
            f"source:\n{source}",
            hint="this is a bug in tracefuse; the source above shows it",
        )
    return code, log


def compile_with_log(source: str, name: str, *, architecture: str, options: Sequence[str] = ()) -> tuple[bytes, str]:
    """Compile `source` for `architecture` (such as "sm_90"); return the machine code (cubin) and the compiler's log.

    `options` are added to BASE_OPTIONS. Raises CompileError, with the log and the source, if compilation fails.
    """
    return _compile(source, name, architecture, options, "CUBIN")


def compile_to_ptx(source: str, name: str, *, architecture: str) -> str:
    """Compile `source` to PTX for inspection; launches use machine code. Raises like `compile_with_log`."""
    return _compile(source, name, architecture, (), "PTX")[0].rstrip(b"\0").decode()


def compile_source(source: str, name: str, *, architecture: str, options: Sequence[str] = ()) -> bytes:
    """Compile `source` to machine code (cubin); see `compile_with_log`."""
    return compile_with_log(source, name, architecture=architecture, options=options)[0]
