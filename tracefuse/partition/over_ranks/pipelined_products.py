"""Records matrix products that overlap with the exchange of their rows, chunk by chunk.

A product of rows that are gathered computes the chunk of one rank while the next chunk is in transit: `broadcast` sends
the chunks in the order of the ranks, `ring` sends each chunk on to the next rank, so that every rank begins with its
own. A product whose result is scattered over its rows sends the sum for each rank around the ring, and every rank adds
its terms.

Must not know: single ops, devices.
"""

from __future__ import annotations

from collections.abc import Callable

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.extents import mod
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.library_kinds import Library
from tracefuse.ops import roles
from tracefuse.partition.over_ranks.exchange_recorder import ExchangeRecorder
from tracefuse.partition.over_ranks.placements import Placed, Spec

Product = Callable[[int], int]
"""Records the product for some rows, by local number."""


@dataclass(frozen=True, slots=True)
class PieceRows:
    """Rows that a product exchanges in chunks along the mesh axis `name`: gathers, or else scatters the sums of."""

    name: str
    gathers: bool


class PipelinedProducts:
    """Adds products in chunks to the fusion of one rank. All parts are equal; rows are axis 0. mode: see the module."""

    def __init__(self, exchanges: ExchangeRecorder, mode: str) -> None:
        self.exchanges, self.extents, self.builder = exchanges, exchanges.extents, exchanges.builder
        self.mode = mode

    def rows_of(self, fusion: Fusion, node: Node, placed: Placed, current: tuple[Spec, int] | None) -> PieceRows | None:
        """Returns the rows that a product of two matrices exchanges, None if it does not or if nothing is pipelined.

        current: the sharding in which the first factor is computed.
        """
        if self.mode == "off" or current is None or not isinstance(node.op, Library) or len(placed.result) != 2:
            return None
        shapes = [fusion.shape_of(operand) for operand in node.operands]
        if (
            node.op.contracted(shapes) is None
            or any(len(shape) != 2 for shape in shapes)
            or placed.terms
            or placed.stays
        ):
            return None
        (before, _), wanted, extent = current, placed.operand(0, 2), shapes[0][0]
        names = before[0]
        is_gather = len(names) == 1 and not wanted[0] and before[1] == wanted[1] and not placed.summed
        if is_gather and placed.computed == placed.result:
            return PieceRows(names[0], True) if self.extents.is_even(extent, names) else None
        scattered = placed.result[0]
        is_scatter = len(scattered) == 1 and frozenset(scattered) == placed.summed and not placed.computed[0]
        if is_scatter and self.extents.is_even(extent, scattered) and placed.result[1] == placed.computed[1]:
            return PieceRows(scattered[0], False)
        return None

    def of_gathered(self, rows: int, multiply: Product, name: str, where: str | None) -> int:
        """Returns the product for the rows of all ranks. rows: this rank's."""
        size = self.extents.mesh.size(name)
        if self.mode == "broadcast":
            return self._broadcast(rows, multiply, name, where)
        to_next = tuple((rank, (rank + 1) % size) for rank in range(size))
        products, chunk = [], rows
        for step in range(size):
            following = chunk
            if step < size - 1:
                following = self.exchanges.exchange(roles.SEND_RECEIVE, name, chunk, where, pairs=to_next)
            products.append(multiply(chunk))  # of rank place - step
            chunk = following
        length = self.builder.values[products[0]].shape[0]
        joined = self.exchanges.node(roles.JOIN, products[::-1], {"dim": 0}, where)
        # The first chunk is that of the next rank: rank r is at (r - place - 1) mod size.
        shift = mod(self.extents.place((name,)) + 1, size) * length
        return self.exchanges.node(roles.ROLL, (joined,), {"shift": shift, "dim": 0}, where)

    def _broadcast(self, rows: int, multiply: Product, name: str, where: str | None) -> int:
        """Multiplies the rows of one rank while those of the next are in transit."""
        products: list[int] = []
        chunk: int | None = None
        for root in range(self.extents.mesh.size(name)):
            following = self.exchanges.exchange(roles.BROADCAST_FROM, name, rows, where, root=root)
            products += [] if chunk is None else [multiply(chunk)]
            chunk = following
        assert chunk is not None
        return self.exchanges.node(roles.JOIN, [*products, multiply(chunk)], {"dim": 0}, where)

    def of_scattered(self, rows: int, multiply: Product, name: str, where: str | None) -> int:
        """Returns this rank's rows of the sum over the ranks of a product. rows: those of all ranks' results."""
        size = self.extents.mesh.size(name)
        length = self.extents.builder.values[rows].shape[0]
        place = self.extents.place((name,))
        to_next = tuple((rank, (rank + 1) % size) for rank in range(size))
        part = length // size
        total: int | None = None
        for step in range(size):
            owner = mod(place + size - 1 - step, size)
            terms = multiply(self.exchanges.cut(rows, 0, owner * part, part, where))
            if total is not None:
                dtype = self.builder.values[terms].dtype
                terms = self.builder.node(roles.COMBINERS["add"], (total, terms), {}, dtype, (dtype,), where=where)[0]
            total = terms
            if step < size - 1:
                total = self.exchanges.exchange(roles.SEND_RECEIVE, name, terms, where, pairs=to_next)
        assert total is not None
        return total
