"""CUDA C++ of a kernel that runs several independent launches of another kernel as one.

The arguments of all launches are a table, passed by value. A block finds its launch by the numbers of blocks, which the
table adds up, and runs the other kernel's body as that launch's block.

Only kernels with one grid axis, without clusters and without dynamic shared memory, are supported.
"""

from __future__ import annotations

from tracefuse.errors import InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.device_functions import prelude
from tracefuse.kernel.cuda.emit_cuda import CudaEmitter, shared_bytes

PARAMETER_BYTES = 4096
"""The parameters that every GPU and driver passes by value."""

COUNT_BYTES = 8


def fits_table(kernel: ir.Kernel) -> bool:
    """Returns whether launches of a kernel can be entries of a table."""
    return len(kernel.grid) == 1 and kernel.cluster == 1 and shared_bytes(kernel) == 0 and entries(kernel) > 1


def entries(kernel: ir.Kernel) -> int:
    """Returns the number of launches in a table: each has its parameters and its last block, of 8 bytes each."""
    return (PARAMETER_BYTES - COUNT_BYTES) // (8 * (len(kernel.parameters) + 1))


def emit_table(kernel: ir.Kernel) -> tuple[str, str]:
    """Returns the source of the kernel for `entries(kernel)` launches, and its name; equal kernels have equal text."""
    if not fits_table(kernel):
        raise InternalError(f"launches of {kernel.name} cannot be joined: see fits_table")
    emitter = CudaEmitter(kernel, anonymous=True, block="block_of_launch")
    body = emitter.device_function()
    fields = "".join(f"  __align__(8) {emitter.parameter(p)};\n" for p in kernel.parameters)
    fields = fields.replace("__restrict__ ", "")
    passed = ", ".join(f"own.{emitter.name(p)}" for p in kernel.parameters)
    text = f"""{prelude(sorted(emitter.printer.used))}{body}
struct Entry {{
{fields}  __align__(8) unsigned end;
}};
struct Table {{
  Entry entries[{entries(kernel)}];
}};
extern "C" __global__ void __launch_bounds__({kernel.threads})
table(const __grid_constant__ Table launches, const int count) {{
  int low = 0, high = count - 1;
  while (low < high) {{
    const int middle = (low + high) / 2;
    if (blockIdx.x < launches.entries[middle].end) high = middle;
    else low = middle + 1;
  }}
  const Entry& own = launches.entries[low];
  {emitter.entry}({", ".join(filter(None, ("blockIdx.x - (low ? launches.entries[low - 1].end : 0)", passed)))});
}}
"""
    return text, "table"
