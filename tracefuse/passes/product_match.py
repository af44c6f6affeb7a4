"""Matrix products of halves with what follows from them elementwise: a bias, a function of the result, a residual.

Nodes of the shape of the product follow from it as far as one of them alone is read elsewhere. Casts and broadcasts of
what they read beside it belong to them.

Must not know: segments, kernels, sizes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.ops.roles import BROADCAST, CAST, SQUEEZE
from tracefuse.passes.attention_match import AttentionSearch, Factor, is_product
from tracefuse.passes.small_products import operand_orders

MOST_SPREAD = 64
"""The most casts and broadcasts that a kernel computes for what is combined with a product."""


@dataclass(frozen=True, slots=True)
class FusedProduct:
    """A product and the nodes that follow from it, by the numbers of their values.

    left: its axes as (stack..., rows, terms). right: as (stack..., terms, columns). result: the value that is read
    elsewhere. steps: the first result of each node, in order.
    """

    left: Factor
    right: Factor
    product: int
    result: int
    steps: tuple[int, ...]

    @property
    def scores(self) -> int:
        """A value with the shape of the product."""
        return self.product

    @property
    def outputs(self) -> tuple[int, ...]:
        return (self.result,)

    @property
    def factors(self) -> tuple[tuple[Factor, int, int, bool], ...]:
        """The operands: each with its product, its position in it, and that it is no key of an attention."""
        return (self.left, self.product, 0, False), (self.right, self.product, 1, False)


def fused_products(fusion: Fusion) -> list[FusedProduct]:
    """Returns the products of halves from which another value follows elementwise."""
    products = [node for node in fusion.nodes if is_product(node) and _has_halves(fusion, node)]
    if not products:
        return []
    search = ProductSearch(fusion)
    matches = (search.product_at(node) for node in products)
    return [match for match in matches if match is not None]


def _has_halves(fusion: Fusion, node: Node) -> bool:
    values = [fusion.values[number] for number in (*node.inputs, *node.outputs)]
    dtype = values[0].dtype
    if any(value.stream or value.sharding for value in values) or not dtype.is_half:
        return False
    return all(value.dtype is dtype and len(value.shape) > 1 for value in values) and node.compute is dtype


class ProductSearch(AttentionSearch):
    """Matches products forwards."""

    def product_at(self, node: Node) -> FusedProduct | None:
        """Returns the product with what follows from it; None if nothing does."""
        number = node.outputs[0]
        inside = self._followers(number)
        first = min(self._read_outside(inside), key=self.position.__getitem__, default=None)
        if first is None or first == number:
            return None
        inside = {value for value in inside if self.position[value] <= self.position[first]}
        if self._read_outside(inside) != {first}:
            return None
        (left, left_order), (right, right_order) = operand_orders(self.fusion, node)
        self.read = set()
        factors = self._factor(left, left_order), self._factor(right, right_order)
        steps = {*inside, *self.read, *self._spread(inside)}
        ordered = sorted(steps, key=self.position.__getitem__)
        return FusedProduct(*factors, number, first, tuple(ordered))

    def _followers(self, product: int) -> set[int]:
        """Returns the product and the values of its shape that follow from it elementwise."""
        fusion, shape, inside = self.fusion, self.fusion.shape_of(product), {product}
        waiting = [self.position[reader.outputs[0]] for reader in self.readers.get(product, ()) if reader.outputs]
        heapq.heapify(waiting)
        while waiting:
            node = fusion.nodes[heapq.heappop(waiting)]
            number = node.outputs[0]
            value = fusion.values[number]
            is_simple = isinstance(node.op, Pointwise) and not node.op.ends_segment and len(node.outputs) == 1
            if number in inside or not is_simple or value.stream or value.sharding or not value.is_tensor:
                continue
            if fusion.shape_of(number) == shape:
                inside.add(number)
                for reader in self.readers.get(number, ()):
                    if reader.outputs:
                        heapq.heappush(waiting, self.position[reader.outputs[0]])
        return inside

    def _spread(self, inside: set[int]) -> set[int]:
        """Returns the casts and broadcasts of what the nodes read beside the product: a kernel reads their operands."""
        spread: set[int] = set()
        product = min(inside, key=self.position.__getitem__)
        waiting = [v for number in inside - {product} for v in self.producers[number].inputs]
        while waiting:
            number = waiting.pop()
            node = self.producers.get(number)
            if node is None or number in inside or number in spread or len(spread) >= MOST_SPREAD:
                continue
            if node.op in (BROADCAST, SQUEEZE, CAST):
                spread.add(number)
                waiting += node.inputs
        return spread

    def _read_outside(self, inside: set[int]) -> set[int]:
        """Returns the values that are results, or that other nodes read."""
        results = {*self.fusion.outputs, *self.fusion.aliases}
        return {
            number for number in inside
            if number in results
            or any(not inside.issuperset(reader.outputs) for reader in self.readers.get(number, ()))
        }  # fmt: skip
