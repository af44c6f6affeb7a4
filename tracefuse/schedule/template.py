"""Templates: each pairs a loop layout for a target with a test of the regions that it supports.

A target has an ordered tuple of templates. The first template that accepts a problem lowers it. A refusal carries a
reason; an acceptance carries the template's decisions, which `lower` receives. A template records a guard for every
size that it inspects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Generic, Self, TypeAlias, TypeVar

from segments import Verdict
from segments.lazy_dataclasses import dataclass, replace
from tracefuse import config
from tracefuse.config import Options
from tracefuse.dtypes import DType, bfloat16, float16
from tracefuse.ir.extents import Extent, Symbol
from tracefuse.ir.fusion import Fusion
from tracefuse.passes.padded_products import PaddingBounds
from tracefuse.passes.small_products import ProductBounds
from tracefuse.schedule.attention_facts import AttentionFacts
from tracefuse.schedule.cost import Rates
from tracefuse.schedule.launch_spec import LaunchSpec, Lowered, Scratch
from tracefuse.schedule.loop_facts import Facts
from tracefuse.schedule.memory_facts import MemoryFacts
from tracefuse.schedule.product_facts import ProductFacts
from tracefuse.schedule.refusal_codes import RegionRefusal
from tracefuse.schedule.region_phases import Region
from tracefuse.schedule.row_column_rule import RowColumnFacts
from tracefuse.schedule.row_update_facts import RowUpdateFacts
from tracefuse.schedule.sizes import Sizes
from tracefuse.schedule.tiling_choice import PricedTiling, TilingChooser
from tracefuse.schedule.tilings import Offer, Tiled

SegmentFacts: TypeAlias = Facts | RowColumnFacts | AttentionFacts | RowUpdateFacts | ProductFacts
"""The merge rule's facts about a segment."""

HALVES = frozenset((float16, bfloat16))


@dataclass(frozen=True, slots=True)
class AttentionBounds:
    """The attentions that kernels of a target compute: `features` of query and value at most, in multiples.

    gradient_features: the most for their gradients. float32_features: both in float32, None for as many. types: of the
    operands. packs: kernels copy their operands, which may have any strides. scores: those of one matrix, at most,
    that the caches hold between two products. keys: the fewest.
    """

    features: int
    multiple: int
    gradient_features: int
    types: frozenset[DType] = HALVES
    packs: bool = False
    scores: int = 0
    keys: int = 0
    float32_features: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class TiledProductBounds:
    """The products of matrices that kernels of a target compute in tiles; a library computes the others.

    most: by the type of the arithmetic, the most multiplications of a kernel; 0 for no bound. most_terms: the most
    terms. rows, columns, terms: the fewest of a matrix. area: the least elements of its result. least: the most
    multiplications that are a library call. few_columns: the fewest columns where there are more multiplications than
    `few_least`. regroups: kernels read operands through reshapes, which divide positions.
    narrow: a kernel also computes larger products of halves with so many columns, of at least `narrow_rows` rows in
    all, if their rows do not start at multiples of 16 bytes; 0 for none. aligned: the (terms, columns) above both
    of which a library is as fast if only those of the right operand do not. fused_terms: a kernel also computes
    those of float32 with so few terms from which elementwise work follows: the result is most of what they move; 0
    for none.
    """

    most: Mapping[DType, int]
    rows: int
    columns: int
    terms: int = 0
    area: int = 0
    least: int = 0
    few_columns: int = 0
    few_least: int = 0
    most_terms: int = 0
    regroups: bool = False
    narrow: int = 0
    narrow_rows: int = 0
    aligned: tuple[int, int] = (0, 0)
    fused_terms: int = 0


@dataclass(frozen=True, slots=True)
class RepetitionBounds:
    """When kernels of a target compute a value again for every row that reads it, instead of storing it.

    quotient, wide_quotient: the costs of a division, and of one of 64-bit integers, in cheap ops. classes: from the
    highest cost of an element to the lowest, (cost, most evaluations of an element, most evaluations in all) of values
    of at least that cost that are not stored. Values below the last cost never are.
    """

    quotient: int
    wide_quotient: int
    classes: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Problem(ABC):
    """A segment to lower for the sizes of one call on one target.

    name: the name of its kernels. contract: allow fused multiply-add. templates: the target's templates, in order of
    preference. narrow: emit one element at a time. tilings: chooses among the tilings of a template. options: passed to
    the passes.
    """

    fusion: Fusion
    facts: SegmentFacts
    memory: MemoryFacts
    sizes: Sizes
    name: str
    contract: bool
    templates: tuple[Template[Any], ...]
    narrow: bool = field(default=False, kw_only=True)
    tilings: TilingChooser = field(default_factory=TilingChooser, kw_only=True)
    options: Options = field(default_factory=config.resolve, kw_only=True)

    @property
    def region_sizes(self) -> Sizes:
        """The sizes in the symbols of `region`; they share their guards with `sizes`."""
        return self.sizes

    @property
    @abstractmethod
    def region(self) -> Region:
        """The region, with its loops ordered and collapsed for the target."""

    def part(self, fusion: Fusion, facts: SegmentFacts, memory: MemoryFacts, name: str) -> Self:
        """Returns a subproblem for a part of the segment, with a separate list of guards."""
        sizes = Sizes(self.sizes.values, self.sizes.named)
        return replace(self, fusion=fusion, facts=facts, memory=memory, sizes=sizes, name=name, narrow=False)

    def finish(
        self, launches: Sequence[LaunchSpec], scratch: Sequence[Scratch] = (),
        derived: Mapping[Symbol, Extent] | None = None,
    ) -> Lowered:  # fmt: skip
        """Returns the lowered segment, in the fusion's symbols, with the guards recorded so far."""
        return Lowered("", tuple(launches), tuple(self.sizes.guards), tuple(scratch), derived or {})


P = TypeVar("P", bound=Problem)

_UNITS = (
    (AttentionFacts, RegionRefusal.ATTENTION, RegionRefusal.NO_ATTENTION),
    (RowUpdateFacts, RegionRefusal.ROW_UPDATE, RegionRefusal.NO_ROW_UPDATE),
    (ProductFacts, RegionRefusal.PRODUCT, RegionRefusal.NO_PRODUCT),
)
"""The facts of segments that a template of their own lowers as a unit; the refusals by others, and of other facts."""


@dataclass(frozen=True, slots=True, eq=False)
class Template(Generic[P]):
    """One way to lower regions.

    accepts: judges a problem; the facts of a positive verdict are the template's decision, which is passed to `lower`.
    takes: the kind of segment facts that it supports. writes_in_place: the thread that stores an element is the only
    one that reads the inputs at that position, so an output may overwrite an input. scans: it supports the regions that
    scan, and no others.
    """

    name: str
    accepts: Callable[[P], Verdict]
    lower: Callable[[P, Any], Lowered]
    takes: type[SegmentFacts] = Facts
    writes_in_place: bool = False
    scans: bool = False
    offers: Callable[[P, Any], Offer] | None = None

    def decide(self, problem: P, decision: Any) -> tuple[Any, tuple[PricedTiling, ...]]:
        """Returns what `lower` receives for a decision: with the tiling, if the template offers any; and their prices.

        Guards the size classes of the choice.
        """
        if self.offers is None:
            return decision, ()
        tiling, priced = problem.tilings.choose(problem.name, self.offers(problem, decision), problem.region_sizes)
        return Tiled(decision, tiling), priced

    def judge(self, problem: P) -> Verdict:
        """Judges a problem; a refusal carries the reason."""
        if isinstance(problem.facts, self.takes):
            if isinstance(problem.facts, Facts) and problem.facts.scans != self.scans:
                return RegionRefusal.NOTHING_SCANNED() if self.scans else RegionRefusal.SCANS()
            return self.accepts(problem)
        for kind, refused, missing in _UNITS:
            if isinstance(problem.facts, kind):
                return refused()
            if self.takes is kind:
                return missing()
        if self.takes is Facts:
            return RegionRefusal.ROWS_AND_COLUMNS()
        return RegionRefusal.NOT_ROWS_AND_COLUMNS()

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, eq=False)
class TemplateSet:
    """The templates of a target, in order of preference.

    problem: builds the target's `Problem` from a segment. flags_positions: kernels set an error flag for an
    out-of-range index. takes_workers: kernels take an upper bound on the number of workers. small_products:
    the products at which kernels are faster than the library. step_products: the same within a step of a loop, which
    kernels alone let run without the host; None for small_products. padding: the products of halves whose extents are
    padded for the library. rates: constants of the chip for the cost model. attention: the attentions that a kernel
    computes. row_updates: kernels combine rows at positions that are data. tiled_products: the products of matrices
    that a kernel computes. repetitions: the values that are stored instead of being computed again for every row.
    orders_results: calls may give results in the operands' order in memory.
    """

    templates: tuple[Template[Any], ...]
    problem: Callable[..., Problem]
    flags_positions: bool = False
    takes_workers: bool = False
    small_products: ProductBounds | None = None
    step_products: ProductBounds | None = None
    padding: PaddingBounds | None = None
    rates: Callable[[Options], Rates] = lambda options: Rates()
    attention: AttentionBounds | None = None
    row_updates: bool = False
    tiled_products: TiledProductBounds | None = None
    repetitions: RepetitionBounds | None = None
    orders_results: bool = False

    def products(self, in_steps: bool) -> ProductBounds | None:
        """Returns the products that become sums. in_steps: in steps of loops."""
        return (self.step_products if in_steps else None) or self.small_products
