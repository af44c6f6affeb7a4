"""The scan template for the CPU: elements are combined one after another, in NumPy's order.

Along the innermost loop, a worker scans a row with its states in variables. Along another loop, it scans a tile of
adjacent columns at once, with a state for each column in local memory, so that the loop over the columns is vectorized.

Must not know: LLVM.
"""

from __future__ import annotations

from itertools import chain

from segments import Verdict, yes
from tracefuse.ir.extents import Symbol, ceildiv, symbol_of, symbols
from tracefuse.ir.fusion import Node
from tracefuse.kernel.kernel_ir import Assign, Buffer, Declare, Expression, Load, Store, Variable
from tracefuse.schedule.body import Body
from tracefuse.schedule.cpu.cpu_column_states import COLUMNS, open_columns, state_arrays
from tracefuse.schedule.cpu.cpu_frame import CpuProblem, new_body, open_grid, work
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, make_launch
from tracefuse.schedule.reduction_states import lifted, new_accumulator, state_types, store_output, store_outputs
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.scan_states import as_element, define_element, neutral_state, state_after
from tracefuse.schedule.template import Template


def _accepts(problem: CpuProblem) -> Verdict:
    return yes()


def _lower(problem: CpuProblem, decision: None) -> Lowered:
    region = problem.region
    emit = _rows if region.nest.loops[-1].reduced else _columns
    return problem.finish([emit(region, f"{problem.name}_scan", problem.contract)])


SCAN = Template("scan", _accepts, _lower, scans=True)


def _symbols_at(region: Region, node: Node) -> set[Symbol]:
    """Returns the symbols of the coordinates at which the elements of a scan are defined."""
    return {one for coordinate in region.at[node.outputs[0]][0] for one in symbols(coordinate)}


def _define(body: Body, region: Region, node: Node, state: Expression) -> None:
    define_element(body, region, node, body.name("v", (as_element(body, region, node, state),)))


def _rows(region: Region, name: str, contract: bool) -> LaunchSpec:
    """Emits a row per iteration of the grid."""
    body, nest = new_body(region), region.nest
    grid, _ = open_grid(body, nest.parallel)
    nodes = list(chain.from_iterable(region.scans))
    states = [Variable(body.fresh("state"), state_types(node)[0]) for node in nodes]
    for node, state in zip(nodes, states, strict=True):
        body.append(Declare(state, neutral_state(node)))
    (loop,) = nest.reduced
    with body.loop(loop.index, loop.extent):
        for node, state in zip(nodes, states, strict=True):
            ((element,),) = lifted(body, region, node)
            body.append(Assign(state, state_after(body, node, loop.index, state, element)))
            _define(body, region, node, state)
        store_outputs(body, region, region.full[0])
    for output in region.parallel_outputs:
        store_output(body, region, output)
    return make_launch(body, name, "cpu", [grid], work=work(region), contract=contract)


def _columns(region: Region, name: str, contract: bool) -> LaunchSpec:
    """Emits a tile of columns per iteration of the grid."""
    body, nest = new_body(region), region.nest
    inner, (loop,) = nest.loops[-1], nest.reduced
    grid, tile = open_grid(body, [k for k in nest.parallel if k is not inner], ceildiv(inner.extent, COLUMNS))
    columns = open_columns(body, inner, tile, COLUMNS, 1)
    nodes = list(chain.from_iterable(region.scans))
    state_buffers: list[Buffer] = [
        state_arrays(body, new_accumulator(body, node), "state", columns)[0] for node in nodes
    ]

    def clear() -> None:
        for node, buffer in zip(nodes, state_buffers, strict=True):
            body.append(Store(buffer, body.index.code(columns.place), neutral_state(node)))

    # An element that is the same in all columns is defined in each: what reads it must not be hoisted before it.
    are_shared = any(symbol_of(inner.index) not in _symbols_at(region, node) for node in nodes)

    def scan() -> None:
        at = body.index.code(columns.place)
        body.levels[-1].barrier = are_shared
        for node, buffer in zip(nodes, state_buffers, strict=True):
            ((element,),) = lifted(body, region, node)
            (state,) = body.name("state", (state_after(body, node, loop.index, Load(buffer, at), element),))
            body.append(Store(buffer, at, state))
            _define(body, region, node, state)
        store_outputs(body, region, region.full[0])

    columns.each(body, clear)
    with body.loop(loop.index, loop.extent):
        columns.each(body, scan)

    def store() -> None:
        for output in region.parallel_outputs:
            store_output(body, region, output)

    if region.parallel_outputs:
        columns.each(body, store)
    return make_launch(body, name, "cpu", [grid], work=work(region), contract=contract)
