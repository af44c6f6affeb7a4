"""The templates of a GPU, in the order in which they are asked. The docs of each are in its module.

Every choice follows from sizes, layout and the number of multiprocessors alone, and leaves guards behind.

Must not know: CUDA C++, arrays.
"""

from __future__ import annotations

import functools

from tracefuse.dtypes import bfloat16, float16, float32, float64
from tracefuse.passes.padded_products import PaddingBounds
from tracefuse.passes.small_products import ProductBounds
from tracefuse.schedule.chip import Chip, chip_of
from tracefuse.schedule.chip_rates import rates_of
from tracefuse.schedule.gpu.gpu_attention_gradient import ATTENTION_GRADIENT
from tracefuse.schedule.gpu.gpu_attention_template import ATTENTION
from tracefuse.schedule.gpu.gpu_cluster import CLUSTER
from tracefuse.schedule.gpu.gpu_column import COLUMN
from tracefuse.schedule.gpu.gpu_column_runs import COLUMN_RUNS
from tracefuse.schedule.gpu.gpu_few_terms import FEW_TERMS
from tracefuse.schedule.gpu.gpu_matrix_product import MATRIX_PRODUCT
from tracefuse.schedule.gpu.gpu_packed_product import PACKED_PRODUCT
from tracefuse.schedule.gpu.gpu_pointwise import POINTWISE
from tracefuse.schedule.gpu.gpu_problem import GpuProblem
from tracefuse.schedule.gpu.gpu_product import PRODUCT
from tracefuse.schedule.gpu.gpu_row import LONG_ROW, ROW
from tracefuse.schedule.gpu.gpu_row_column import ROW_COLUMN
from tracefuse.schedule.gpu.gpu_row_tile import ROW_TILE
from tracefuse.schedule.gpu.gpu_scan import SCAN
from tracefuse.schedule.gpu.gpu_scan_column import COLUMN_SCAN
from tracefuse.schedule.gpu.gpu_split import SPLIT
from tracefuse.schedule.gpu.gpu_streamed_product import STREAMED_PRODUCT
from tracefuse.schedule.gpu.gpu_taken_rows import TAKEN_ROWS
from tracefuse.schedule.gpu.gpu_tall_product import TALL_PRODUCT
from tracefuse.schedule.gpu.gpu_transpose import TRANSPOSE
from tracefuse.schedule.read_back_template import READ_BACK
from tracefuse.schedule.row_column_template import ROW_COLUMN_SIDES
from tracefuse.schedule.template import HALVES, AttentionBounds, TemplateSet, TiledProductBounds

TEMPLATES = (
    TRANSPOSE, TAKEN_ROWS, POINTWISE, FEW_TERMS, COLUMN, ROW_TILE, ROW, CLUSTER, COLUMN_RUNS, SPLIT, LONG_ROW, SCAN,
    COLUMN_SCAN, READ_BACK, ROW_COLUMN, ROW_COLUMN_SIDES, ATTENTION, ATTENTION_GRADIENT, STREAMED_PRODUCT,
    PACKED_PRODUCT, MATRIX_PRODUCT, TALL_PRODUCT, PRODUCT,
)  # fmt: skip

USUAL_CHIP = "sm_90"
"""The chip whose constants serve an architecture without a file."""

SMALL_PRODUCTS = ProductBounds(terms=16, rows=64, columns=64, alone=8)
"""Their elements are read from the caches, once per term."""

TILED_PRODUCTS = TiledProductBounds(
    {float32: 1 << 25, float16: 1 << 22, bfloat16: 1 << 22, float64: 1 << 20}, rows=8, columns=8,
    terms=SMALL_PRODUCTS.alone + 1, area=512, most_terms=512, regroups=True, narrow=64, narrow_rows=1 << 15,
    aligned=(256, 47), fused_terms=128,
)  # fmt: skip
"""Small tiles fill the GPU and their terms are loaded at once. Of larger products cuBLAS reads the operands less often,
and it multiplies halves and float64 on tensor cores. (H200)"""

PADDING = PaddingBounds(multiple=8, least=48, work=2**31)
"""cuBLAS multiplies halves at 45 to 140 TFLOP/s if rows do not start at multiples of 16 bytes, else at up to 730. A
product of fewer rows and columns gains less than the copies of its operands take. (H200)"""

WIDE_GRADIENT_BYTES = 110 * 1024
"""The shared memory of a multiprocessor from which gradients of attention take up to 256 features."""
FLOAT32_BYTES = 150 * 1024
"""The shared memory from which attention takes float32."""
FLOAT32_FEATURES = 128, 96
"""The most features of attention in float32, and of its gradients, which cuBLAS computes faster with more. (H200)"""


def gpu_templates(architecture: str, multiprocessors: int) -> TemplateSet:
    """The templates of a GPU by its architecture as compilers name it ("sm_90")."""
    chip = chip_of(architecture, multiprocessors)
    return TemplateSet(
        TEMPLATES,
        functools.partial(GpuProblem, chip=chip),
        small_products=SMALL_PRODUCTS,
        padding=PADDING,
        tiled_products=TILED_PRODUCTS,
        attention=_attention(chip),
        rates=lambda options: rates_of(architecture, multiprocessors, USUAL_CHIP),
    )


def _attention(chip: Chip) -> AttentionBounds:
    gradient_features = 256 if chip.shared_bytes >= WIDE_GRADIENT_BYTES else 128
    types = HALVES | {float32} if chip.shared_bytes >= FLOAT32_BYTES else HALVES
    return AttentionBounds(256, 16, gradient_features, types, float32_features=FLOAT32_FEATURES)
