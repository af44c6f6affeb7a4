"""The device functions of products by groups of four warps, whose right operand stays in shared memory (sm_90a).

An operand in shared memory is described by 64 bits: its address, the bytes between matrices of 8 x 8 elements that are
adjacent along the sums' rows or columns and along the terms, and how it is swizzled, which these are not.
"""

from __future__ import annotations

from tracefuse.errors import InternalError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.device_accesses import INLINE, DeviceFunction

TILE_COLUMNS = (64, 128)
"""The columns that a product of tiles may have."""
_KINDS = {"float16": "f16", "bfloat16": "bf16"}


def multiplies_tiles(kernel: ir.Kernel) -> bool:
    """Return whether a kernel has products by groups of warps."""
    return any(isinstance(s, ir.MultiplyTiles) for s in ir.walk_statements(kernel.body))


def multiply_tiles(statement: ir.MultiplyTiles) -> str:
    """Return the name of the device function of a product. Raises InternalError for one that does not exist."""
    left = "shared" if statement.left.space == "shared" else "local"
    name = f"multiply_tiles_{statement.right.dtype.name}_{statement.columns}_{left}"
    if name not in TILE_FUNCTIONS or statement.terms % 16:
        raise InternalError(f"no product of tiles of {statement.columns} columns and {statement.terms} terms: {name}")
    return name


def _product(half: str, columns: int, *, is_left_shared: bool) -> DeviceFunction:
    """Return the product of 64 x terms by terms x columns halves.

    A step multiplies 16 terms: two matrices of a tile with them in a row, or, in a right tile that is not transposed,
    two rows of matrices.
    """
    count = columns // 2
    sums = ", ".join(f"%{k}" for k in range(count))
    left = f"%{count + 2}" if is_left_shared else "{" + ", ".join(f"%{count + 2 + k}" for k in range(4)) + "}"
    flags = "1, 1, 0, %" if is_left_shared else "1, 1, %"
    last = count + 2 + (1 if is_left_shared else 4)
    step = f"transposed ? k / 4 * {columns * 8} + k % 4 * 2 : k * 128"
    outputs = ", ".join(f'"+f"(sums[{k}])' for k in range(count))
    words = (
        f'"l"(rows + (k / 4 * {ir.MultiplyTiles.ROWS * 8} + k % 4 * 2))'
        if is_left_shared
        else ", ".join(f'"r"(left[4 * k + {n}])' for n in range(4))
    )
    rows = "  const unsigned long long rows = tile_at(left, 0);\n" if is_left_shared else ""
    return DeviceFunction(
        f"template <int terms, bool transposed, bool replaces>\n"
        f"{INLINE} void multiply_tiles_{half}_{columns}_{'shared' if is_left_shared else 'local'}"
        f"(float* sums, const {'void' if is_left_shared else 'unsigned int'}* left, const void* right) {{\n"
        f"{rows}"
        f"  const unsigned long long columns = tile_at(right, transposed ? 0 : terms * 128);\n"
        f"  keep_order<{count}>(sums);\n"
        '  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");\n'
        "  #pragma unroll\n"
        "  for (int k = 0; k < terms / 16; ++k) {\n"
        '    asm volatile("{ .reg .pred added; setp.ne.b32 added, %' + str(count + 1) + ', 0;\\n"\n'
        f'        "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{_KINDS[half]}.{_KINDS[half]} "\n'
        f'        "{{{sums}}}, {left}, %{count}, added, {flags}{last}; }}"\n'
        f"        : {outputs}\n"
        f'        : "l"(columns + ({step})), "r"((int)(!replaces || k > 0)),\n'
        f'          {words}, "n"(transposed ? 0 : 1) : "memory");\n'
        "  }\n"
        '  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");\n}',
        ("tile_at", "keep_order"),
    )


TILE_FUNCTIONS: dict[str, DeviceFunction] = {
    # Copies to shared memory by threads must be visible to the tensor cores, which read it without them.
    "show_copies": DeviceFunction(
        f'{INLINE} void show_copies() {{ asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }}'
    ),
    # Keeps accesses to registers before or after a product that the compiler does not see the end of.
    "keep_order": DeviceFunction(
        f"template <int count>\n{INLINE} void keep_order(float* sums) {{\n  #pragma unroll\n"
        '  for (int k = 0; k < count; ++k) asm volatile("" : "+f"(sums[k]) :: "memory");\n}'
    ),
    "await_products": DeviceFunction(
        f"template <int later>\n{INLINE} void await_products() {{\n"
        '  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(later) : "memory");\n}'
    ),
    # The address, the bytes from a part of 64 columns to the next, those from 8 rows to the next, and the swizzle; the
    # former three in units of 16 bytes.
    "tile_at": DeviceFunction(
        f"{INLINE} unsigned long long tile_at(const void* tile, int part) {{\n"
        "  const unsigned long long place = (unsigned int)__cvta_generic_to_shared(tile);\n"
        "  return (place & 0x3ffff) >> 4 | (unsigned long long)(part >> 4) << 16\n"
        "      | (unsigned long long)(1024 >> 4) << 32 | 1ull << 62;\n}"
    ),
    **{
        f"multiply_tiles_{half}_{columns}_{'shared' if shared else 'local'}": _product(
            half, columns, is_left_shared=shared
        )
        for half in _KINDS for columns in TILE_COLUMNS for shared in (False, True)
    },
}  # fmt: skip
