"""`show_config`: versions, devices, options and the cache folder, for bug reports."""

from __future__ import annotations

import html
import importlib.metadata
import platform

from segments.lazy_dataclasses import dataclass
from tracefuse import config
from tracefuse.config import Options
from tracefuse.kernel.cache import disk_cache
from tracefuse.kernel.llvm.machine_code import get_machine
from tracefuse.kernel.llvm.worker_pool import available_threads
from tracefuse.runtime.devices import cuda_arrays

_PACKAGES = ("tracefuse", "numpy", "llvmlite", "ml_dtypes", "optree", "jax", "torch")


@dataclass(frozen=True, slots=True, repr=False)
class Configuration:
    """The environment of tracefuse. str() is a table.

    versions: of Python, the installed packages, LLVM and, with a GPU, CUDA. processor: LLVM's name of it. gpus: a
    description of each GPU. no_gpu: why there is none. cache_kernels, cache_bytes: the contents of the cache folder.
    """

    versions: dict[str, str]
    system: str
    processor: str
    threads: int
    gpus: tuple[str, ...]
    no_gpu: str | None
    options: Options
    cache_folder: str
    cache_kernels: int
    cache_bytes: int

    def __str__(self) -> str:
        rows = [*self.versions.items(), ("system", self.system)]
        rows.append(("processor", f"{self.processor}, {self.threads} threads"))
        rows += [(f"GPU {k}", text) for k, text in enumerate(self.gpus)]
        if self.no_gpu is not None:
            rows.append(("GPU", f"none: {self.no_gpu}"))
        if self.options.cache_limit > 0:
            contents = f"{self.cache_kernels} kernels, {self.cache_bytes / 2**20:.1f} MiB"
            rows.append(
                ("cache", f"{self.cache_folder}: {contents} of at most {self.options.cache_limit / 2**20:.0f} MiB")
            )
        else:
            rows.append(("cache", "in memory only (cache_limit is 0)"))
        for name, option in config.TABLE.items():
            value = getattr(self.options, name)
            rows.append((f"option {name}", f"{value!r}{'' if value == option.default else '  (set)'}"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


def _versions() -> dict[str, str]:
    versions = {"Python": f"{platform.python_version()} ({platform.python_implementation()})"}
    # CuPy's distribution is named after its CUDA version: cupy-cuda13x, cupy-cuda12x or cupy.
    named = {name for d in importlib.metadata.distributions() if (name := d.metadata["Name"] or "").startswith("cupy")}
    for name in (*_PACKAGES, *sorted(named)):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def show_config() -> Configuration:
    """Versions, devices, the options in force and the cache folder; `print(tracefuse.show_config())` prints a table."""
    machine = get_machine()
    disk, versions = disk_cache.in_force(), _versions()
    versions["LLVM"] = machine.version.rpartition("LLVM ")[2]
    no_gpu = cuda_arrays.unavailable()
    if no_gpu is None:
        versions |= cuda_arrays.versions()
    return Configuration(
        versions=versions,
        system=platform.platform(),
        processor=machine.cpu,
        threads=available_threads(),
        gpus=() if no_gpu is not None else cuda_arrays.described_devices(),
        no_gpu=None if no_gpu is None else no_gpu.splitlines()[0],
        options=config.resolve(),
        cache_folder=disk.folder,
        cache_kernels=len(disk.kernels()),
        cache_bytes=disk.nbytes(),
    )
