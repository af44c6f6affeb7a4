"""Values of columns on the CPU that rows read: computed once for each column of a tile, after the phase they follow.

In `(x - x.mean(0)) / np.sqrt(x.var(0))` each row reads the square root of each column. Computed where it is read, it
would be computed in every row.

Must not know: LLVM.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracefuse.ir.extents import symbols
from tracefuse.ir.fusion import Fusion, Shape
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.kernel.kernel_ir import Allocate, Buffer, Store
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_column_states import TileColumns, values_in_rows
from tracefuse.schedule.probe import depths
from tracefuse.schedule.recomputation import ElementCosts
from tracefuse.schedule.region_phases import Region

QUOTIENT = 4
"""The cost of a division or a square root, in cheap ops, and the least cost of a value that is kept: its array is read
in place of it."""


def keep_column_values(body: Body, region: Region, phase: int, columns: TileColumns) -> None:
    """Computes the values of columns that follow the reductions of a phase, into arrays that rows index by column."""
    if phase + 1 == len(region.full) or columns.run != 1:
        return
    kept = list(_values_of_columns(region, phase + 1, columns))
    arrays = []
    for number, _ in kept:
        dtype = region.fusion.values[number].dtype.compute
        arrays.append(Buffer(body.fresh(f"v{number}"), dtype, "local", columns.width))
        body.append(Allocate(arrays[-1]))

    def emit() -> None:
        at = body.index.code(columns.place)
        for (number, coordinates), array in zip(kept, arrays, strict=True):
            body.append(Store(array, at, body.value(number, coordinates)[0]))

    if kept:
        columns.each(body, emit)
    for key, array in zip(kept, arrays, strict=True):
        body.cached[key] = (array, columns.place)


def _values_of_columns(region: Region, depth: int, columns: TileColumns) -> Iterator[tuple[int, Shape]]:
    """Yields the values of columns that rows read after `depth` reductions, with their coordinates, in order."""
    fusion, costs = region.fusion, _costs(region.fusion)
    in_rows, at = values_in_rows(region), dict[int, set[Shape]]()
    for number, coordinates in region.probe.walked:
        if number not in in_rows and any(columns.loop.symbol in symbols(c) for c in coordinates):
            at.setdefault(number, set()).add(coordinates)
    read = {value for node in fusion.nodes if not in_rows.isdisjoint(node.outputs) for value in node.inputs}
    after = depths(fusion)
    for node in fusion.nodes:
        for value in node.outputs:
            is_kept = value in read and value not in in_rows and after[value] == depth
            places = at.get(value, set())
            if is_kept and len(places) == 1 and isinstance(node.op, Pointwise) and costs.of(value) >= QUOTIENT:
                yield value, next(iter(places))


def _costs(fusion: Fusion) -> ElementCosts:
    costs = ElementCosts(fusion, QUOTIENT)
    for node in fusion.nodes:
        costs.add(node)
    return costs
