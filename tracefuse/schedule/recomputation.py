"""Recomputation: which values a kernel computes at several places, and which are stored instead.

A consumer pulls its operands at its own coordinates, so a value that is read at several of them is computed at each.
`y = exp(x); y[:-2] + y[1:-1] + y[2:]` takes three exponentials per element in one kernel. In two kernels it takes one,
and a round trip through memory. In a loop of stencils the work multiplies with each step.

`values_to_store` decides before partitioning, in time linear in the fusion. A backward pass counts for each value the
distinct coordinates at which it is read. The candidates are the values at which this number rises: of `u` and its four
rolls, only `u`. A forward pass adds up the cost of computing a value from inputs and stored values, and stores a
candidate once recomputing it costs more than a store, the reads of the stored value and a launch.

Must not know: kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import field

from segments.lazy_dataclasses import dataclass
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.indexing import reduces
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Movement, Pointwise
from tracefuse.ir.scan_kind import is_library_call
from tracefuse.ops.roles import PERMUTE
from tracefuse.schedule.kernel_size import HERE, Places, at_places, coordinates_read, cost_of_branches
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.merge_rule import FusionRule, segment_facts
from tracefuse.schedule.nest import first_nest, probe_outputs
from tracefuse.schedule.row_column_rule import RowColumnFacts
from tracefuse.schedule.row_column_sides import column_operands, row_side

EXPENSIVE = 12
"""The cost of an expensive op (an exponential, a logarithm, a power), in cheap ops, per element."""

STORE = 48
"""The cost of writing an element, of reading it in another kernel, and of the share of a launch, in cheap ops. A core
writes and reads a float32 in memory in about the time of 48 vectorized additions, and so does a GPU."""

LAUNCH = 16
"""The cost of a segment boundary at a value that is written to memory in any case, in cheap ops."""

MOST_PLACES = 16
"""Places are counted up to this number."""

_WIDE = 8
"""The bytes of integers that no vector instruction divides."""

MOST_COST = 10**6
"""Costs are added up to this number."""


def values_to_store(fusion: Fusion) -> tuple[int, ...]:
    """Returns the values that segments store because recomputing them costs more, in the order of the fusion."""
    counts = _places_by_value(fusion)
    if not counts:
        return ()
    costs, stored = ElementCosts(fusion), dict[int, None]()
    written = _written_anyway(fusion)
    for node in fusion.nodes:
        costs.add(node)
        for value in node.outputs:
            again = (counts.get(value, 1) - 1) * costs.of(value)
            if again > (LAUNCH if value in written else STORE) + counts.get(value, 1):
                costs.load(value)
                stored[value if value in written else costs.narrowest(value)] = None
    return tuple(stored)


def _places_by_value(fusion: Fusion) -> dict[int, int]:
    """Counts the places at which each candidate is read, relative to the next candidates.

    A value is a candidate if it is read at more places than any of its consumers.
    """
    outputs = frozenset(fusion.outputs)
    read_at: dict[int, Places] = {v: frozenset((HERE,)) for v in outputs}
    widest: dict[int, int] = {}
    counts: dict[int, int] = {}
    for node in reversed(fusion.nodes):
        places: Places = frozenset()
        for value in node.outputs:
            own_places = read_at.pop(value, frozenset((HERE,)))
            if len(own_places) > max(widest.get(value, 1), 1):
                counts[value] = len(own_places)
                own_places = frozenset((HERE,))
            places |= own_places
        if isinstance(node.op, Library) or reduces(fusion, node):
            places = frozenset((HERE,))
        for value, inner in coordinates_read(fusion, node).items():
            all_places = read_at.get(value, frozenset()) | at_places(places, inner)
            read_at[value] = (
                all_places if len(all_places) <= MOST_PLACES else frozenset(sorted(all_places)[:MOST_PLACES])
            )
            widest[value] = max(widest.get(value, 1), len(places))
    return counts


def _written_anyway(fusion: Fusion) -> frozenset[int]:
    """Returns the outputs and the operands of library calls."""
    libraries = (node for node in fusion.nodes if is_library_call(node.op))
    return frozenset((*fusion.outputs, *(v for node in libraries for v in (*node.inputs, *node.outputs))))


@dataclass(slots=True)
class ElementCosts:
    """The cost of one element of each value, from inputs, results of reductions and stored values.

    A sum over operands counts a value twice that two operands share. Values that read one another at their own
    coordinates are therefore joined in groups, and a value costs at most as much as its group so far.

    quotient, wide_quotient: the costs of a division or a square root, and of a division of 64-bit integers, in cheap
    ops.
    """

    fusion: Fusion
    quotient: int = 1
    wide_quotient: int = 1
    _cost: dict[int, int] = field(default_factory=dict)
    _group: dict[int, int] = field(default_factory=dict)
    _parent: list[int] = field(default_factory=list)
    _total: list[int] = field(default_factory=list)
    _readers: Counter[int] = field(default_factory=Counter)
    _producers: dict[int, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._readers.update(v for node in self.fusion.nodes for v in node.inputs)
        self._producers = self.fusion.producers

    def of(self, value: int) -> int:
        return self._cost.get(value, 1)

    def load(self, value: int) -> None:
        """Records that a value is stored."""
        self._cost[value] = 1
        self._group.pop(value, None)

    def add(self, node: Node) -> None:
        """Computes the costs of the results of a node; those of its operands are known."""
        tensors = [v for v in node.inputs if self.fusion.values[v].is_tensor]
        if isinstance(node.op, Library) or reduces(self.fusion, node) or not tensors:
            return
        apart = sum(map(self.of, tensors))
        if isinstance(node.op, Movement):
            total = apart = apart + cost_of_branches(self.fusion, node)
            joined: set[int] = set()
        else:
            node_cost = self._of_node(node)
            joined = {self._root(self._group[v]) for v in tensors if v in self._group}
            total = node_cost + sum(self._total[g] for g in joined) + sum(v not in self._group for v in tensors)
            apart += node_cost
        group = len(self._parent)
        self._parent.append(group)
        self._total.append(min(total, MOST_COST))
        for other in joined:
            self._parent[other] = group
        for value in node.outputs:
            self._cost[value] = min(apart, total, MOST_COST)
            self._group[value] = group

    def _of_node(self, node: Node) -> int:
        if _is_expensive(node):
            return EXPENSIVE
        divides = isinstance(node.op, Pointwise) and node.op.divides(node.compute)
        is_wide = node.compute.is_integer and node.compute.itemsize == _WIDE
        return (self.wide_quotient if is_wide else self.quotient) if divides else 1

    def _root(self, group: int) -> int:
        while self._parent[group] != group:
            self._parent[group] = group = self._parent[self._parent[group]]
        return group

    def narrowest(self, value: int) -> int:
        """Returns the value to store in place of `value`: an operand of fewer bytes from which it is a cheap step.

        Of axes that are permuted and back, what is between is stored: its order in memory is the better one.
        """
        while True:
            node = self._producers[value]
            before_it = self._producers.get(node.inputs[0]) if node.op is PERMUTE else None
            if before_it is not None and before_it.op is PERMUTE and self._readers[node.inputs[0]] == 1:
                return node.inputs[0]
            if not isinstance(node.op, Pointwise) or node.op.expensive or len(node.inputs) != 1:
                return value
            (operand,) = node.inputs
            before, after = self.fusion.values[operand], self.fusion.values[value]
            narrower = before.is_tensor and before.dtype.itemsize < after.dtype.itemsize
            same = self.fusion.shape_of(operand) == self.fusion.shape_of(value)
            if not (narrower and same) or self._readers[operand] > 1 or operand not in self._producers:
                return value
            value = operand


def places(fusion: Fusion, rule: FusionRule) -> Mapping[int, int]:
    """Counts the places at which the kernel of a whole fusion computes each value, per element of its loops.

    Empty for segments without loops of their own, which compute each value once.
    """
    if not any(map(_is_expensive, fusion.nodes)) or not any(isinstance(n.op, Movement) for n in fusion.nodes):
        return {}
    facts = segment_facts(rule)
    if not isinstance(facts, Facts | RowColumnFacts):
        return {}
    rows = facts.rows if isinstance(facts, RowColumnFacts) else facts
    nest = first_nest(rows)
    if isinstance(facts, RowColumnFacts):
        operands = column_operands(fusion, facts)
        fusion = row_side(fusion, facts)
    else:
        operands = ()
    return Counter(number for number, _ in probe_outputs(fusion, rows, nest, operands).walked)


def recomputed(fusion: Fusion, counts: Mapping[int, int]) -> dict[int, int]:
    """Returns the results of expensive ops that are computed at more than one place. counts: from `places`."""
    return {v: counts[v] for node in fusion.nodes if _is_expensive(node) for v in node.outputs if counts.get(v, 0) > 1}


def _is_expensive(node: Node) -> bool:
    return isinstance(node.op, Pointwise) and node.op.expensive
