"""The gradients of attention in a fusion: products of weights that follow from scores, over keys or over queries.

A weight is an elementwise function of one or two products of the shape of the scores, with an exponential in it: the
probabilities, computed again from the scores, and the gradient of the scores. Sums over keys (the gradient of the
query) and sums over queries (those of key and value) are computed by one kernel each; both compute the scores again.

Must not know: segments, kernels, sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.op_kinds import Pointwise
from tracefuse.ops.roles import EXPONENTIAL, PERMUTE
from tracefuse.passes.attention_match import Attention, AttentionSearch, Factor, NoAttention, is_product
from tracefuse.passes.small_products import operand_orders


@dataclass(frozen=True, slots=True)
class ScoreProduct:
    """A product of queries with keys, or of what has their shapes: query @ key.T. number: its result."""

    number: int
    query: Factor
    key: Factor


@dataclass(frozen=True, slots=True)
class WeightedSum:
    """A product of weights, transposed or not, with a factor. result, order: as of an `Attention`."""

    weights: int
    factor: Factor
    product: int
    result: int
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AttentionGradient:
    """Weighted sums over the keys, or if `transposed` over the queries, from the same scores.

    exponentials: those among its values with the shape of the scores. steps, outputs: as of an `Attention`.
    """

    products: tuple[ScoreProduct, ...]
    sums: tuple[WeightedSum, ...]
    transposed: bool
    exponentials: tuple[int, ...]
    steps: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def scores(self) -> int:
        """A value with the shape of the scores."""
        return self.products[0].number

    @property
    def product(self) -> int:
        """The first of its weighted sums, by which it is named in messages."""
        return self.sums[0].product

    @property
    def factors(self) -> tuple[tuple[Factor, int, int, bool], ...]:
        """The operands of products: each with its product, its position in it, and whether it is a key of scores."""
        of_scores = ((f, p.number, k, k == 1) for p in self.products for k, f in enumerate((p.query, p.key)))
        return (*of_scores, *((weighted_sum.factor, weighted_sum.product, 1, False) for weighted_sum in self.sums))


@dataclass(frozen=True, slots=True)
class _GradientPart:
    """One weighted sum, before those of the same scores are joined."""

    products: dict[int, ScoreProduct]
    sum: WeightedSum
    transposed: bool
    steps: frozenset[int]


def gradients_in(fusion: Fusion, attentions: Sequence[Attention]) -> tuple[list[AttentionGradient], dict[int, str]]:
    """Returns the gradients of attention, and the reasons for those that only resemble one, by product.

    attentions: those of the fusion, whose products are no gradients and whose values of rows are stored.
    """
    products = [node for node in fusion.nodes if is_product(node)]
    refused: dict[int, str] = {}
    parts: list[_GradientPart] = []
    excluded = {match.product for match in attentions}
    stored = frozenset(number for match in attentions for number in match.rows)
    search = GradientSearch(fusion, stored) if len(products) > 1 else None
    for node in products:
        if search is None or node.outputs[0] in excluded:
            continue
        try:
            part = search.part(node)
        except NoAttention as reason:
            refused[node.outputs[0]] = str(reason)
            continue
        if part is not None:
            parts.append(part)
    return [search.joined(group) for group in _groups(parts)] if search is not None else [], refused


def _groups(parts: list[_GradientPart]) -> list[list[_GradientPart]]:
    """Returns the parts by direction and shared products."""
    groups: list[list[_GradientPart]] = []
    group_of: dict[tuple[bool, int], list[_GradientPart]] = {}
    for part in parts:
        keys = [(part.transposed, number) for number in part.products]
        group = next((group_of[key] for key in keys if key in group_of), None)
        if group is None:
            groups.append(group := [])
        group.append(part)
        group_of.update(dict.fromkeys(keys, group))
    return groups


class GradientSearch(AttentionSearch):
    """Matches weighted sums from their products backwards."""

    def part(self, node: Node) -> _GradientPart | None:
        """Returns the weighted sum that `node` computes, None if it is none."""
        self.passed, self.read = set(), set()
        (left, order), (right, right_order) = operand_orders(self.fusion, node)
        weights, order = self._weights(left, order)
        plain = tuple(range(len(order)))
        if len(plain) < 2 or len(right_order) < 2 or order not in (plain, (*plain[:-2], plain[-1], plain[-2])):
            return None
        products, between = self._products(weights)
        if not 1 <= len(products) <= 2 or all(self.producers[n].op is not EXPONENTIAL for n in between):
            return None
        result, axes = self._tail(node)
        summed = WeightedSum(weights, self._factor(right, right_order), node.outputs[0], result, axes)
        scores = {number: self._score_product(number) for number in products}
        steps = {*products, *between, node.outputs[0], *self.passed, *self.read, *self._masks(between)}
        factors = [f for product in scores.values() for f in (product.query, product.key)]
        self.check_types([*factors, summed.factor], result, [*products, *between], steps)
        return _GradientPart(scores, summed, order != plain, frozenset(steps))

    def _weights(self, number: int, order: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        """Returns the weights before casts and permutations, and the order of their axes."""
        while True:
            number = self._uncast(number)
            node = self.producers.get(number)
            if node is None or node.op is not PERMUTE:
                return number, order
            order = tuple(node.attributes["dims"][axis] for axis in order)
            self.passed.add(number)
            (number,) = node.inputs

    def _products(self, weights: int) -> tuple[tuple[int, ...], frozenset[int]]:
        """Returns the products that weights follow from elementwise, and the values between them and the weights."""
        shape = self.fusion.shape_of(weights)
        seen, waiting, products = {weights}, [weights], set[int]()
        while waiting:
            node = self.producers.get(waiting.pop())
            if node is None or self.fusion.shape_of(node.outputs[0]) != shape:
                continue
            if is_product(node):
                products.add(node.outputs[0])
            elif isinstance(node.op, Pointwise) and not node.op.ends_segment:
                waiting += [v for v in node.inputs if v not in seen]
                seen.update(node.inputs)
        dependent = set(products)
        for number in sorted(seen & self.position.keys(), key=self.position.__getitem__):
            node = self.producers[number]
            if isinstance(node.op, Pointwise) and not dependent.isdisjoint(node.inputs):
                dependent.add(number)
        if weights not in dependent or weights in products:
            return (), frozenset()
        return tuple(sorted(products)), frozenset(dependent - products)

    def _score_product(self, number: int) -> ScoreProduct:
        (query, query_order), (key, key_order) = operand_orders(self.fusion, self.producers[number])
        if min(len(query_order), len(key_order)) < 2:
            raise NoAttention("the scores are a product with a vector")
        swapped = (*key_order[:-2], key_order[-1], key_order[-2])
        return ScoreProduct(number, self._factor(query, query_order), self._factor(key, swapped))

    def joined(self, parts: list[_GradientPart]) -> AttentionGradient:
        """Returns the gradient that the parts of one direction are."""
        products = {number: product for part in parts for number, product in part.products.items()}
        steps = sorted({n for part in parts for n in part.steps}, key=self.position.__getitem__)
        shape = self.fusion.shape_of(next(iter(products)))
        exponentials = tuple(
            n for n in steps if self.producers[n].op is EXPONENTIAL and self.fusion.shape_of(n) == shape
        )  # fmt: skip
        outputs = tuple(sorted(part.sum.result for part in parts))
        sums = tuple(part.sum for part in parts)
        return AttentionGradient(
            tuple(products.values()), sums, parts[0].transposed, exponentials, tuple(steps), outputs
        )  # fmt: skip
