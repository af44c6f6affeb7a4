"""Which products of matrices a kernel computes in tiles, by the sizes of a call, each with guards.

The kernel also computes the elementwise ops that follow, and reads its operands through casts and movements. A library
gets its operands as arrays, and what follows is a kernel that reads the product again.

Must not know: kernels, targets.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from tracefuse.dtypes import float32
from tracefuse.dynamic.guards import Guard
from tracefuse.ir.extents import Symbol, product, symbol, terms_of
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.indexing import sources
from tracefuse.ir.op_kinds import Movement, Pointwise
from tracefuse.ir.region_kind import FusedRegion, region_of
from tracefuse.ops.roles import CAST
from tracefuse.partition.stream_marks import on_streams
from tracefuse.passes.attention_regions import ordered_by_reads
from tracefuse.passes.product_epilogues import epilogues_of, readers_of
from tracefuse.passes.rewriter import needed_for, with_nodes
from tracefuse.schedule.product_facts import ProductFacts, multiplications, product_of
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.template import TiledProductBounds

TILED_PRODUCT = FusedRegion(name="tiled_product", doc="A product of matrices and ops of its elements, as one kernel.")
"""The op that replaces a product and the nodes that its kernel computes as well."""

ALIGNED_HALVES = 8
"""The halves of an access of 16 bytes."""
LEAST_TERMS, LEAST_COLUMNS, LEAST_ROWS = 16, 9, 128
"""Of a narrow product, whose tiles would be nearly empty with fewer."""

EPILOGUE_TERMS = 32
"""Of a product of few terms whose work a library computes in its call. (H200)"""

MOST_NODES = 24
MOST_OUTPUTS = 3
"""The most elementwise nodes after a product in its kernel, and the most results that it stores."""


def choose_tiled_products(
    fusion: Fusion, values: Mapping[int, int], bounds: TiledProductBounds
) -> tuple[Fusion, tuple[Guard, ...]]:
    """Replaces the products that a kernel computes by one node each; returns the fusion and the guards.

    values: the sizes of a call, by id.
    """
    sizes = Sizes(values)
    if on_streams(fusion):
        return fusion, ()
    products = [facts for node in fusion.nodes if (facts := product_of(fusion, node)) is not None]
    readers = readers_of(fusion) if products else {}
    chosen = [facts for facts in products if _is_tiled(fusion, facts, bounds, sizes, readers)]
    for with_readers in (True, False) if chosen else ():
        ordered = ordered_by_reads(_with_regions(fusion, chosen, bounds, with_readers=with_readers))
        if ordered is not None:
            replaced = with_nodes(fusion, ordered)
            live = {number for node in needed_for(replaced, replaced.outputs) for number in node.outputs}
            nodes = (n for n in replaced.nodes if n.outputs[0] in live or not replaced.values[n.outputs[0]].is_tensor)
            return with_nodes(replaced, list(nodes)), tuple(sizes.guards)
    return fusion, tuple(sizes.guards)


def _is_tiled(
    fusion: Fusion, facts: ProductFacts, bounds: TiledProductBounds, sizes: Sizes,
    readers: Mapping[int, Sequence[Node]],
) -> bool:  # fmt: skip
    """Whether a product is within the bounds of a target; guards its sizes. readers: the nodes that read each value."""
    most = bounds.most.get(facts.node.compute)
    if most is None:
        return False
    if bounds.narrow and _is_narrow(fusion, facts, bounds, most, sizes):
        return True
    if bounds.fused_terms and _is_fused(fusion, facts, bounds, most, sizes, readers):
        return True
    _, rows, terms, columns = facts.extents(fusion)
    work, area = multiplications(fusion, facts), product((*rows, columns))
    for extent, bound in ((work, most), (terms, bounds.most_terms)):
        if bound and not sizes.at_most(extent, bound, "a product that a kernel computes in tiles"):
            return False
    few, fewest = "a product of few rows or columns reads its operands once", bounds.columns
    has_few = bounds.few_columns > 0 and sizes.at_most(columns, fewest - 1, few)
    if has_few and not sizes.at_most(work, bounds.few_least, few):
        fewest = bounds.few_columns
    reasons = {
        (work, bounds.least): "a library call for a small product",
        (product(rows), bounds.rows - 1): few,
        (columns, fewest - 1): few,
        (terms, bounds.terms - 1): "a product of few terms is a sum of a kernel",
        (area, bounds.area - 1): "matrices that leave most of a tile empty",
    }
    return not any(bound > 0 and sizes.at_most(extent, bound, why) for (extent, bound), why in reasons.items())


def _is_narrow(fusion: Fusion, facts: ProductFacts, bounds: TiledProductBounds, most: int, sizes: Sizes) -> bool:
    """Whether a product is a narrow one of halves that a library reads slowly; guards its sizes."""
    stack, rows, terms, columns = facts.extents(fusion)
    reason = "a library reads unaligned rows of halves slowly"
    if not facts.node.compute.is_half or sizes.at_most(multiplications(fusion, facts), most, reason):
        return False
    few = (
        (terms, LEAST_TERMS),
        (columns, LEAST_COLUMNS),
        (product(rows), LEAST_ROWS),
        (product((*stack, *rows)), bounds.narrow_rows),
    )
    if not sizes.at_most(columns, bounds.narrow, reason):
        return False
    if any(sizes.at_most(extent, least - 1, reason) for extent, least in few):
        return False
    if sizes.is_multiple(terms, ALIGNED_HALVES, reason) and not any(
        sizes.at_most(extent, most, reason) for extent, most in zip((terms, columns), bounds.aligned, strict=True)
    ):
        return False
    return not all(sizes.is_multiple(extent, ALIGNED_HALVES, reason) for extent in (terms, columns))


def _is_fused(
    fusion: Fusion, facts: ProductFacts, bounds: TiledProductBounds, most: int, sizes: Sizes,
    readers: Mapping[int, Sequence[Node]],
) -> bool:  # fmt: skip
    """Whether elementwise work follows from a product of float32 of few terms and many rows; guards its sizes."""
    stack, rows, terms, columns = facts.extents(fusion)
    if facts.node.compute is not float32 or facts.result in fusion.outputs:
        return False
    if not any(_follows(fusion, facts, node) for node in readers.get(facts.result, ())):
        return False
    reason = "the result of a product of few terms is most of what it moves"
    matches = epilogues_of(fusion, facts.node, readers)
    if matches and not any(_follows(fusion, facts, node) for node in readers.get(matches[-1].result, ())):
        most_terms = min(bounds.fused_terms, EPILOGUE_TERMS)
    else:
        most_terms = bounds.fused_terms
    if sizes.at_most(multiplications(fusion, facts), most, reason):
        return False
    if not sizes.at_most(terms, most_terms, reason):
        return False
    few = ((terms, LEAST_TERMS), (columns, LEAST_COLUMNS), (product(rows), LEAST_ROWS))
    if any(sizes.at_most(extent, least - 1, reason) for extent, least in few):
        return False
    return not sizes.at_most(product((*stack, *rows)), bounds.narrow_rows - 1, reason)


def _with_regions(
    fusion: Fusion, chosen: Sequence[ProductFacts], bounds: TiledProductBounds, *, with_readers: bool
) -> list[Node]:
    """Returns the nodes of the fusion with one for each chosen product, which computes its readers as well if asked."""
    position = {number: k for k, node in enumerate(fusion.nodes) for number in node.outputs}
    claimed, found = set[int](), readers_of(fusion)
    placed: list[tuple[int, Node]] = []
    for facts in chosen:
        readers, outputs = _readers(fusion, facts, position, found, claimed) if with_readers else ([], {facts.result})
        claimed |= {facts.result, *(node.outputs[0] for node in readers)}
        moved = _moved(fusion, [facts.node, *readers], bounds.regroups)
        inside = {node.outputs[0]: node for node in (*moved, facts.node, *readers)}
        nodes = [inside[number] for number in sorted(inside, key=position.__getitem__)]
        last = max(position[number] for number in outputs)
        placed.append((last, region_of(TILED_PRODUCT, fusion, nodes, outputs, {})))
    placed += [(k, node) for k, node in enumerate(fusion.nodes) if claimed.isdisjoint(node.outputs)]
    return [node for _, node in sorted(placed, key=lambda place: place[0])]


def _readers(
    fusion: Fusion, facts: ProductFacts, position: Mapping[int, int], readers: Mapping[int, Sequence[Node]],
    claimed: AbstractSet[int],
) -> tuple[list[Node], set[int]]:  # fmt: skip
    """Returns the elementwise nodes that follow from a product in its kernel, and the values that are read outside.

    readers: the nodes that read each value.
    """
    inside, elsewhere, followers = {facts.result}, set[int](), list[Node]()
    best, outputs = 0, {facts.result}
    places: list[int] = []  # of the nodes that depend on the product, as far as they are found
    near = set[int]()  # those of them that read a value of the kernel

    def found(number: int, *, is_inside: bool) -> None:
        for reader in readers.get(number, ()):
            place = position[reader.outputs[0]]
            heapq.heappush(places, place)
            if is_inside:
                near.add(place)

    found(facts.result, is_inside=True)
    while near:
        place = heapq.heappop(places)
        while places and places[0] == place:
            heapq.heappop(places)
        node = fusion.nodes[place]
        near.discard(place)
        fits = elsewhere.isdisjoint(node.inputs) and len(followers) < MOST_NODES and not claimed & set(node.outputs)
        fits = fits and _follows(fusion, facts, node)
        (inside if fits else elsewhere).update(node.outputs)
        for number in node.outputs:
            found(number, is_inside=fits)
        if fits:
            followers.append(node)
            stored = _read_outside(fusion, inside, readers)
            if len(stored) <= MOST_OUTPUTS:
                best, outputs = len(followers), stored
    return followers[:best], outputs


def _read_outside(fusion: Fusion, inside: AbstractSet[int], readers: Mapping[int, Sequence[Node]]) -> set[int]:
    """Returns the values of a kernel that the fusion returns or other nodes read."""
    return {
        number
        for number in inside
        if number in fusion.outputs or any(r.outputs[0] not in inside for r in readers.get(number, ()))
    }


def _follows(fusion: Fusion, facts: ProductFacts, node: Node) -> bool:
    """Whether a kernel computes a node for each element of the product."""
    if not isinstance(node.op, Pointwise) or node.op.ends_segment or len(node.outputs) != 1:
        return False
    (number,) = node.outputs
    value = fusion.values[number]
    is_plain = value.is_tensor and not value.dtype.is_complex and number not in fusion.aliases
    return is_plain and not value.stream and fusion.shape_of(number) == fusion.shape_of(facts.result)


def _moved(fusion: Fusion, nodes: Sequence[Node], regroups: bool) -> list[Node]:
    """Returns the casts and movements before nodes, which a kernel replaces by index arithmetic.

    regroups: also by divisions.
    """
    computed = {number for node in nodes for number in node.outputs}
    moved: dict[int, Node] = {}
    waiting = [number for node in nodes for number in node.inputs if number not in computed]
    while waiting:
        number = waiting.pop()
        node = fusion.producers.get(number)
        if node is None or number in moved or not (_is_cast(fusion, node) or _is_moved(fusion, node, regroups)):
            continue
        moved[number] = node
        waiting += [v for v in node.inputs if v not in computed]
    return list(moved.values())


def _is_cast(fusion: Fusion, node: Node) -> bool:
    types = [fusion.values[n].dtype for n in (*node.inputs, *node.outputs)]
    return node.op is CAST and fusion.values[node.outputs[0]].is_tensor and all(t.is_floating for t in types)


def _is_moved(fusion: Fusion, node: Node, regroups: bool) -> bool:
    """Whether every element of a movement's result is an element of its operand: at a linear function of its place.

    regroups: at any function of it.
    """
    if not isinstance(node.op, Movement) or len(node.operands) != 1 or len(node.outputs) != 1:
        return False
    at = tuple(symbol(f"place{k}", extent=e) for k, e in enumerate(fusion.shape_of(node.outputs[0])))
    read = sources(fusion, node, at, lambda position, coordinates: 0)
    if len(read) != 1 or read[0].conditions:
        return False
    return regroups or all(
        isinstance(atom, Symbol)
        for coordinate in read[0].coordinates
        for monomial, _ in terms_of(coordinate)
        for atom in monomial
    )
