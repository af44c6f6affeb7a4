"""The templates for the CPU, in the order in which the chooser asks them.

The module of each template documents it.
"""

from __future__ import annotations

from segments.lazy_dataclasses import replace
from tracefuse.config import Options
from tracefuse.dtypes import float32, float64
from tracefuse.kernel.llvm.machine_code import get_machine
from tracefuse.kernel.llvm.text_builder import host_processor
from tracefuse.kernel.llvm.worker_pool import available_threads
from tracefuse.passes.small_products import ProductBounds
from tracefuse.schedule.chip_rates import rates_of
from tracefuse.schedule.cost import Rates
from tracefuse.schedule.cpu.cpu_attention import ATTENTION, KEYS
from tracefuse.schedule.cpu.cpu_column import COLUMN
from tracefuse.schedule.cpu.cpu_few_columns import FEW_COLUMNS
from tracefuse.schedule.cpu.cpu_frame import CpuProblem
from tracefuse.schedule.cpu.cpu_joined_rows import JOINED_ROWS
from tracefuse.schedule.cpu.cpu_pointwise import POINTWISE
from tracefuse.schedule.cpu.cpu_product import PRODUCT
from tracefuse.schedule.cpu.cpu_row import ROW
from tracefuse.schedule.cpu.cpu_row_chunks import SPLIT
from tracefuse.schedule.cpu.cpu_row_update import ROW_UPDATE
from tracefuse.schedule.cpu.cpu_scan import SCAN
from tracefuse.schedule.cpu.cpu_short_loops import SHORT_LOOPS, SHORT_ROWS
from tracefuse.schedule.cpu.cpu_slice_update import SLICE_UPDATE
from tracefuse.schedule.cpu.cpu_transpose import TRANSPOSE
from tracefuse.schedule.cpu.cpu_turned_rows import TURNED_ROWS
from tracefuse.schedule.recomputation import EXPENSIVE
from tracefuse.schedule.row_column_template import ROW_COLUMN_SIDES
from tracefuse.schedule.template import HALVES, AttentionBounds, RepetitionBounds, TemplateSet, TiledProductBounds


def _rates(options: Options) -> Rates:
    """Returns the constants of this processor, for the threads that the options allow."""
    workers = available_threads()
    rates = rates_of(get_machine().cpu, min(options.threads, workers) if options.threads else workers)
    return replace(rates, masks=host_processor().masks)


CPU_TEMPLATES = TemplateSet(
    (
        SLICE_UPDATE,
        SHORT_LOOPS,
        TURNED_ROWS,
        SHORT_ROWS,
        TRANSPOSE,
        JOINED_ROWS,
        POINTWISE,
        FEW_COLUMNS,
        COLUMN,
        SPLIT,
        ROW,
        SCAN,
        ROW_COLUMN_SIDES,
        ROW_UPDATE,
        ATTENTION,
        PRODUCT,
    ),
    CpuProblem,
    flags_positions=True,
    takes_workers=True,
    small_products=ProductBounds(terms=8, rows=8, columns=8, alone=0, vector=256, vector_terms=256, complex_terms=32),
    step_products=ProductBounds(terms=8, rows=8, columns=8, alone=0, vector=2048, work=8192),
    rates=_rates,
    attention=AttentionBounds(256, 1, 0, types=HALVES | {float32}, packs=True, scores=1 << 14, keys=KEYS),
    row_updates=True,
    orders_results=True,
    tiled_products=TiledProductBounds(
        dict.fromkeys((*HALVES, float32, float64), 0),
        rows=8,
        columns=16,
        least=1 << 15,
        few_columns=5,
        few_least=1 << 20,
    ),
    repetitions=RepetitionBounds(
        4, 4 * EXPENSIVE, ((4 * EXPENSIVE, 2, 1 << 8), (EXPENSIVE, 4, 1 << 11), (4, 16, 1 << 13))
    ),
)
