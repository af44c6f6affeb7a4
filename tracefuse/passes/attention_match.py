"""Attention in a fusion: two matrix products with a softmax between them, in any of its spellings.

softmax(f(query @ key.T)) @ value, where f is elementwise: scales, biases, masks. The softmax may subtract the
maximum of each row or not, and divide before or after the second product. Values with one element a row
(the maximum, the sum and what follows from them) may be results too, as the logarithm of the sum is in training.

Must not know: segments, kernels, sizes.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType, float32
from tracefuse.ir.fusion import Fusion, Node, Operand, Shape
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Movement, Pointwise, Reduction
from tracefuse.ops.roles import (
    BROADCAST,
    CAST,
    DIVIDE,
    EXPONENTIAL,
    LARGEST,
    MULTIPLY,
    PERMUTE,
    SQUEEZE,
    SUBTRACT,
    SUM,
)
from tracefuse.passes.small_products import operand_orders

MOST_MASK_NODES = 64
"""The most nodes that compute masks and biases inside a kernel; with more, the results of all are stored before it."""


@dataclass(frozen=True, slots=True)
class Factor:
    """An operand of a product of (stacks of) matrices. order: its axes as (stack..., rows, features)."""

    number: int
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention, by the numbers of its values.

    scores: the first product. logits: the operand of the softmax. maximum: that of each row, None if not computed.
    shift: what is subtracted from the logits, None for nothing. weights: the exponentials. total: their sums. divisor:
    the weights are divided by it before the second product, or multiplied if `inverted`; None for neither. product: the
    second product. result: its value after casts and permutations, whose axes are `order` of the product's. rows: the
    values with one element a row. steps: the first result of each node, in order. outputs: the values that are read
    outside.
    """

    query: Factor
    key: Factor
    value: Factor
    scores: int
    logits: int
    maximum: int | None
    shift: int | None
    weights: int
    total: int
    divisor: int | None
    inverted: bool
    product: int
    result: int
    order: tuple[int, ...]
    rows: frozenset[int]
    steps: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def factors(self) -> tuple[tuple[Factor, int, int, bool], ...]:
        """The operands of products: each with its product, its position in it, and whether it is the key."""
        of_scores = (self.query, self.scores, 0, False), (self.key, self.scores, 1, True)
        return (*of_scores, (self.value, self.product, 1, False))


class NoAttention(Exception):
    """A softmax between two products cannot be lowered as attention; the message is the reason."""


def attentions_in(fusion: Fusion) -> tuple[list[Attention], dict[int, str]]:
    """Returns the attentions of a fusion, and for each second product that only resembles one, the reason."""
    matches: list[Attention] = []
    refused: dict[int, str] = {}
    products = [node for node in fusion.nodes if is_product(node)]
    if len(products) < 2:
        return matches, refused
    search = AttentionSearch(fusion)
    for node in products:
        try:
            match = search.at(node)
        except NoAttention as reason:
            refused[node.outputs[0]] = str(reason)
            continue
        if match is not None:
            matches.append(match)
    return matches, refused


def is_product(node: Node) -> bool:
    """Whether a node is the product of two (stacks of) matrices."""
    return isinstance(node.op, Library) and node.op.product is not None and len(node.operands) == 2


class AttentionSearch:
    """Matches attention from its second product backwards.

    passed: the casts and copies on the path of a match; read: those between the products and their operands. stored:
    values that a mask reads and does not compute again.
    """

    def __init__(self, fusion: Fusion, stored: Collection[int] = ()) -> None:
        self.stored = stored
        self.fusion, self.producers = fusion, fusion.producers
        self.position = {o: k for k, node in enumerate(fusion.nodes) for o in node.outputs}
        self.readers: dict[int, list[Node]] = {}
        for node in fusion.nodes:
            for number in node.inputs:
                self.readers.setdefault(number, []).append(node)
        self.passed: set[int] = set()
        self.read: set[int] = set()

    def at(self, node: Node) -> Attention | None:
        """Returns the attention whose second product is `node`; None if there is no softmax before it."""
        self.passed, self.read = set(), set()
        normalized = self._normalized(node.operands[0])
        if normalized is None:
            return None
        weights, divisor, inverted, division = normalized
        (exponent,) = self.producers[weights].inputs
        shifted = self._uncast(exponent)
        logits, shift, maximum, rows = self._softmax(weights, shifted)
        total = self._reduced(weights, SUM)
        score_node, between = self._scores(logits)
        if score_node is None or total is None:
            return None
        if divisor is not None and divisor not in rows:
            raise NoAttention("the weights are divided by something else than a function of their sums")
        (_, left_order), (right, right_order) = operand_orders(self.fusion, node)
        if left_order != tuple(range(len(left_order))):
            raise NoAttention("the axes of the weights are permuted")
        (query, query_order), (key, key_order) = operand_orders(self.fusion, score_node)
        result, order = self._tail(node)
        core = {score_node.outputs[0], *between, weights, total, node.outputs[0], *rows, *self.passed, *division}
        core |= {shifted} if shift is not None else set()
        factors = (
            self._factor(query, query_order), self._factor(key, (*key_order[:-2], key_order[-1], key_order[-2])),
            self._factor(right, right_order),
        )  # fmt: skip
        steps = sorted(core | self.read | self._masks(between), key=self.position.__getitem__)
        match = Attention(
            *factors, score_node.outputs[0], logits, maximum, shift, weights, total, divisor, inverted,
            node.outputs[0], result, order, rows, tuple(steps), self._outputs(core, rows, result),
        )  # fmt: skip
        self.check_types(factors, result, [match.scores, *between], steps)
        return match

    # --- the softmax --------------------------------------------------------------------------------------------------

    def _normalized(self, operand: Operand) -> tuple[int, int | None, bool, frozenset[int]] | None:
        """Returns the exponentials in the first operand of the second product, their divisor and its node."""
        number = self._uncast(operand)
        node = self.producers.get(number)
        if node is None:
            return None
        if node.op is EXPONENTIAL and node.inputs:
            return number, None, False, frozenset()
        if node.op not in (DIVIDE, MULTIPLY) or len(node.inputs) != 2:
            return None
        pairs = [(node.operands[0], node.operands[1])]
        pairs += [(node.operands[1], node.operands[0])] if node.op is MULTIPLY else []
        for first, second in pairs:
            weights = self._uncast(first)
            known = self.producers.get(weights)
            if known is not None and known.op is EXPONENTIAL and known.inputs and isinstance(second, int):
                return weights, second, node.op is MULTIPLY, frozenset((number,))
        return None

    def _softmax(self, weights: int, shifted: int) -> tuple[int, int | None, int | None, frozenset[int]]:
        """Returns the logits, what is subtracted from them, their maximum, and all values with one element a row."""
        difference = self.producers.get(shifted)
        total = self._reduced(weights, SUM)
        ends = set() if total is None else {total}
        if difference is not None and difference.op is SUBTRACT and len(difference.inputs) == 2:
            minuend, subtrahend = difference.inputs
            logits = self._uncast(minuend)
            maximum = self._reduced(logits, LARGEST)
            rows = self._rows(ends if maximum is None else {maximum, *ends}, logits)
            if maximum is not None and subtrahend in rows:
                return logits, subtrahend, maximum, rows
        return shifted, None, None, self._rows(ends, shifted)

    def _reduced(self, number: int, op: Reduction) -> int | None:
        """Returns the reduction of a value over its last axis by `op`, if there is one."""
        last = len(self.fusion.shape_of(number)) - 1
        waiting = [number]
        while waiting:
            read = waiting.pop()
            for node in self.readers.get(read, ()):
                if node.op is op and tuple(node.attributes["dims"]) == (last,):
                    self.passed.update((read,) if read != number else ())
                    return node.outputs[0]
                if _is_cast(self.fusion, node):
                    waiting.append(node.outputs[0])
        return None

    def _rows(self, ends: set[int], logits: int) -> frozenset[int]:
        """Returns the reductions `ends` and the values that follow from them alone and have one element a row."""
        fusion, rows = self.fusion, set(ends)
        shape = fusion.shape_of(logits)[:-1]
        waiting = [self.position[reader.outputs[0]] for number in ends for reader in self.readers.get(number, ())]
        heapq.heapify(waiting)
        while waiting:
            node = fusion.nodes[heapq.heappop(waiting)]
            tensors = [v for v in node.inputs if fusion.values[v].is_tensor]
            simple = isinstance(node.op, Pointwise) or node.op in (BROADCAST, SQUEEZE)
            number = node.outputs[0]
            if number in rows or not simple or not rows.issuperset(tensors) or not self._is_row(number, shape):
                continue
            rows.add(number)
            for reader in self.readers.get(number, ()):
                heapq.heappush(waiting, self.position[reader.outputs[0]])
        return frozenset(rows)

    def _is_row(self, number: int, shape: Shape) -> bool:
        return self.fusion.values[number].is_tensor and self.fusion.shape_of(number) in (shape, (*shape, 1))

    # --- the scores ---------------------------------------------------------------------------------------------------

    def _scores(self, logits: int) -> tuple[Node | None, frozenset[int]]:
        """Returns the first product, and the values between it and the logits (these included)."""
        shape = self.fusion.shape_of(logits)
        passed, waiting, products = {logits}, [logits], {}
        while waiting:
            node = self.producers.get(waiting.pop())
            if node is None or self.fusion.shape_of(node.outputs[0]) != shape:
                continue
            if is_product(node):
                products[node.outputs[0]] = node
            elif isinstance(node.op, Pointwise) and not node.op.ends_segment:
                waiting += [v for v in node.inputs if v not in passed]
                passed.update(node.inputs)
        if len(products) != 1:
            return None, frozenset()
        ((number, product),) = products.items()
        dependent = {number}
        for node in (
            self.fusion.nodes[self.position[number] + 1 : self.position[logits] + 1] if logits != number else ()
        ):
            if node.outputs and node.outputs[0] in passed and not dependent.isdisjoint(node.inputs):
                dependent.add(node.outputs[0])
        return product, frozenset(dependent - {number})

    def _masks(self, between: Iterable[int]) -> frozenset[int]:
        """Returns the nodes that compute what the scores are combined with, as far as a kernel recomputes them."""
        inside, masks = set(between), set[int]()
        waiting = [v for number in inside for v in self.producers[number].inputs]
        while waiting:
            number = waiting.pop()
            node = self.producers.get(number)
            is_tensor = self.fusion.values[number].is_tensor
            if number in masks or number in self.stored or node is None or number in inside or not is_tensor:
                continue
            tensors = [v for v in node.inputs if self.fusion.values[v].is_tensor]
            moves = isinstance(node.op, Movement) and len(tensors) == 1
            if moves or (isinstance(node.op, Pointwise) and not (node.op.expensive or node.op.ends_segment)):
                masks.add(number)
                waiting += tensors
        # The scores themselves are no mask: a product is not pointwise, so the walk stops before it.
        return frozenset(masks) if len(masks) <= MOST_MASK_NODES else frozenset()

    # --- the second product -------------------------------------------------------------------------------------------

    def _factor(self, number: int, order: tuple[int, ...]) -> Factor:
        """Returns an operand of a product before permutations and casts that keep every half."""
        while (node := self.producers.get(number)) is not None:
            if node.op is PERMUTE:
                order = tuple(node.attributes["dims"][axis] for axis in order)
            elif not _is_cast(self.fusion, node) or not self.fusion.values[node.inputs[0]].dtype.is_half:
                break
            self.read.add(number)
            (number,) = node.inputs
        return Factor(number, order)

    def _tail(self, node: Node) -> tuple[int, tuple[int, ...]]:
        """Returns the second product after the casts and permutations that alone read it, and the order of its axes."""
        number = node.outputs[0]
        order = tuple(range(len(self.fusion.shape_of(number))))
        while True:
            readers = self.readers.get(number, [])
            if len(readers) != 1 or number in self.fusion.outputs or self.fusion.values[readers[0].outputs[0]].stream:
                return number, order
            (reader,) = readers
            if reader.op is PERMUTE and self.fusion.values[number].dtype.is_half:
                order = tuple(order[axis] for axis in reader.attributes["dims"])
            elif not _is_cast(self.fusion, reader) or self.fusion.values[number].dtype.is_half:
                return number, order
            number = reader.outputs[0]
            self.passed.add(number)

    def _outputs(self, core: set[int], rows: frozenset[int], result: int) -> tuple[int, ...]:
        """Returns the result and the values with one element a row that are read outside."""
        read = {
            number
            for number in rows
            if number in self.fusion.outputs or any(n.outputs[0] not in core for n in self.readers.get(number, ()))
        }
        return tuple(sorted(read | {result}))

    # --- types --------------------------------------------------------------------------------------------------------

    def _uncast(self, operand: Operand) -> int:
        """Returns an operand before casts between floats and copies; -1 for a literal."""
        while isinstance(operand, int):
            node = self.producers.get(operand)
            if node is None or not _is_cast(self.fusion, node):
                return operand
            self.passed.add(operand)
            (operand,) = node.inputs
        return -1

    def check_types(
        self, factors: Iterable[Factor], result: int, scores: Iterable[int], steps: Iterable[int]
    ) -> None:  # fmt: skip
        """Raises NoAttention unless factors and result are of one type and no score is wider than float32."""
        values = self.fusion.values
        types = [values[factor.number].dtype for factor in factors]
        if not _is_narrow(types[0]) or len({*types, values[result].dtype}) > 1:
            names = ", ".join(dtype.name for dtype in (*types, values[result].dtype))
            raise NoAttention(f"its operands and its result are {names}, not all float32 or of one half type")
        wide = [values[n].dtype for n in scores if not _is_narrow(values[n].dtype)]
        if wide:
            raise NoAttention(f"the scores are {wide[0].name}, wider than float32")
        if any(values[n].stream or values[n].sharding for n in steps):
            raise NoAttention("values are on several devices or streams")


def _is_narrow(dtype: DType) -> bool:
    return dtype.is_half or dtype is float32


def _is_cast(fusion: Fusion, node: Node) -> bool:
    """Whether a node copies its operand, or casts it from one type of real floats to another."""
    if len(node.inputs) != 1 or not fusion.values[node.inputs[0]].is_tensor:
        return False
    types = [fusion.values[n].dtype for n in (*node.inputs, *node.outputs)]
    return (node.op is CAST or (node.op.is_copy and not getattr(node.op, "ends_segment", False))) and all(
        t.is_floating for t in types
    )
