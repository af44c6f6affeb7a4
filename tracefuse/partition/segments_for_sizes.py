"""The segmentation for the sizes of a call: what a target computes in another way there, and the guards of that.

A product of few terms becomes a sum, a product with awkward extents is padded, an attention or a product becomes one
kernel, a vector that every row would compute again is stored, an input is copied in the order in which kernels read it.
A user's merge predicate leaves all of that out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from segments.lazy_dataclasses import dataclass, replace
from tracefuse import config
from tracefuse.config import Options
from tracefuse.dynamic.guards import Guard
from tracefuse.dynamic.layouts import Strided
from tracefuse.ir.fusion import Fusion
from tracefuse.ir.op_kinds import Reduction
from tracefuse.partition.attention_choice import choose_attention
from tracefuse.partition.epilogue_choice import Refusal, choose_epilogues
from tracefuse.partition.input_orders import inputs_to_copy, with_copies
from tracefuse.partition.padding_choice import padded_products
from tracefuse.partition.product_choice import small_products
from tracefuse.partition.repetition_choice import repeated_values
from tracefuse.partition.result_orders import Order, result_orders, with_orders
from tracefuse.partition.row_update_choice import choose_row_updates
from tracefuse.partition.segmentation import Segmentation, are_equal, perhaps_equal, segment_fusion
from tracefuse.partition.stream_marks import on_streams
from tracefuse.partition.tiled_product_choice import choose_tiled_products
from tracefuse.passes.padded_products import PaddingBounds, with_padding
from tracefuse.passes.separate_biases import separate_biases
from tracefuse.passes.small_products import ProductBounds, with_sums
from tracefuse.schedule.template import AttentionBounds, RepetitionBounds, TemplateSet, TiledProductBounds

EQUAL_ROWS = "rows of equal length share a kernel"
READ_BY_PRODUCT = "a small product reads it, whose terms would be stored otherwise"
REPEATED = "materialized: every row that reads it would compute it again"


@dataclass(frozen=True, slots=True)
class SizedChoices:
    """What a target computes in other ways at some sizes. None and False: nothing of the kind.

    attention: the attentions that a kernel computes. tiled_products: the products of matrices that a kernel computes.
    sums: those that become sums of products of elements. padding: those whose extents are padded. row_updates: kernels
    combine rows at positions that are data. epilogues: refuses products that a library does not compute with an
    epilogue. repetitions: the values that are stored instead of being computed again for every row.
    """

    attention: AttentionBounds | None = None
    tiled_products: TiledProductBounds | None = None
    sums: ProductBounds | None = None
    padding: PaddingBounds | None = None
    row_updates: bool = False
    epilogues: Refusal | None = None
    repetitions: RepetitionBounds | None = None

    @classmethod
    def of_target(cls, templates: TemplateSet, in_steps: bool, epilogues: Refusal | None) -> SizedChoices:
        """Returns the choices of a target with some templates. in_steps: for steps of loops."""
        return cls(
            templates.attention, templates.tiled_products, templates.products(in_steps), templates.padding,
            templates.row_updates, epilogues, templates.repetitions,
        )  # fmt: skip


NO_CHOICES = SizedChoices()

SegmentationForSizes: TypeAlias = tuple[Segmentation, tuple[Guard, ...]]
"""A segmentation that is valid at some sizes, and the guards under which it is."""


def for_sizes(
    segmentation: Segmentation, sizes: Mapping[int, int], options: Options | None = None,
    choices: SizedChoices = NO_CHOICES, *, layouts: Sequence[Strided | None] = (),
    aligned: frozenset[int] = frozenset(), strides: Mapping[str, int] | None = None,
) -> SegmentationForSizes:  # fmt: skip
    """Returns a segmentation that is valid at these sizes, and the guards under which it is.

    layouts: of the tensor inputs, if known: those that kernels would read across their loops are copied. aligned:
    inputs that start at a multiple of 16 bytes. strides: of the inputs, by symbol name, if results follow their order.
    """
    sized = _SizedSegmentation(segmentation, sizes, options)
    if segmentation.merge is None and strides is not None:
        sized.order_results(layouts, strides)
    if segmentation.merge is None:
        sized.choose(choices, layouts, aligned)
    if not all(are_equal(pair, sizes) for pair in sized.segmentation.assumed):
        sized.segment(sized.segmentation.original)
    if segmentation.merge is None and any(layout is not None for layout in layouts):
        sized.order_inputs(layouts)
    chosen = replace(
        sized.segmentation, divided_attentions=sized.divided_attentions, divided_products=sized.divided_products,
        result_orders=sized.result_orders,
    )  # fmt: skip
    return chosen, (*sized.guards, *_guards_of_extents(chosen, sizes))


def _guards_of_extents(segmentation: Segmentation, sizes: Mapping[int, int]) -> list[Guard]:
    """Returns the guards of extents that the segmentation assumes equal, and of those that it would if they were."""
    equal = [Guard(a, "==", b, EQUAL_ROWS) for a, b in segmentation.assumed]
    unequal = [pair for pair in perhaps_equal(segmentation) if not are_equal(pair, sizes)]
    return [*equal, *(Guard(a, "!=", b, EQUAL_ROWS) for a, b in unequal)]


class _SizedSegmentation:
    """A segmentation while choices change its fusion.

    guards: of the choices so far. divided_attentions, divided_products, result_orders: as those of `Segmentation`.
    stored: values that end the segment of their producer, with the reasons.
    """

    def __init__(self, segmentation: Segmentation, sizes: Mapping[int, int], options: Options | None) -> None:
        self.sizes, self.options = sizes, options
        self._segmentation = segmentation
        # Chosen since the last segmentation, if it is another: several choices take one segmentation.
        self._taken: Fusion | None = None
        self.guards: list[Guard] = []
        self.divided_attentions: Mapping[int, str] = {}
        self.divided_products: Mapping[int, str] = {}
        self.stored: dict[int, str] = {}
        self.result_orders: Mapping[int, Order] = {}

    @property
    def fusion(self) -> Fusion:
        """The fusion that is segmented, without the extents that the segmentation assumes equal."""
        return self._taken or self._segmentation.original

    @property
    def segmentation(self) -> Segmentation:
        """The segmentation of the fusion as the choices so far made it."""
        if self._taken is not None:
            self.segment(self._taken)
        return self._segmentation

    def segment(self, fusion: Fusion) -> None:
        """Segments a fusion anew."""
        self.replace(
            segment_fusion(
                fusion, merge=self._segmentation.merge, sizes=self.sizes, options=self.options, stored=self.stored,
                known=self._segmentation.segments,
            )
        )  # fmt: skip

    def replace(self, segmentation: Segmentation) -> None:
        """Takes a segmentation."""
        self._segmentation, self._taken = segmentation, None

    def take(self, fusion: Fusion, guards: Sequence[Guard]) -> None:
        """Takes what a choice made of the fusion, which is the same if it changed nothing, and its guards."""
        self.guards += guards
        if fusion is not self.fusion:
            self._taken = fusion

    def choose(self, choices: SizedChoices, layouts: Sequence[Strided | None], aligned: frozenset[int]) -> None:
        """Makes the choices, in the order in which one finds the ops of another."""
        rounds_to_half = (self.options or config.resolve()).exact_half
        if choices.epilogues is not None and not rounds_to_half and not on_streams(self.fusion):
            self.take(separate_biases(self.fusion), ())
        if choices.attention is not None and not rounds_to_half:
            choice = choose_attention(self.fusion, self.sizes, choices.attention, layouts, aligned)
            self.take(choice.fusion, choice.guards)
            self.divided_attentions = choice.refused
        if choices.tiled_products is not None and not rounds_to_half:
            self.take(*choose_tiled_products(self.fusion, self.sizes, choices.tiled_products))
        if choices.sums is not None:
            self._sum_small_products(choices.sums)
        if choices.padding is not None:
            padded, guards = padded_products(self.fusion, self.sizes, choices.padding)
            self.take(with_padding(self.fusion, padded) if padded else self.fusion, guards)
        if choices.row_updates and not on_streams(self.fusion):
            self.take(*choose_row_updates(self.fusion, self.sizes))
        if choices.epilogues is not None and not rounds_to_half:
            stored = {number for part in self.segmentation.segments for number in part.segment.original_outputs}
            fusion, guards, refused = choose_epilogues(self.fusion, stored, self.sizes, choices.epilogues)
            self.take(fusion, guards)
            self.divided_products = refused
        if choices.repetitions is not None and not on_streams(self.fusion):
            self._store_repeated(choices.repetitions)

    def _store_repeated(self, bounds: RepetitionBounds) -> None:
        """Stores the values that kernels would compute again for every row."""
        repeated, guards = repeated_values(self.segmentation, self.sizes, bounds)
        self.guards += guards
        if repeated:
            self.stored |= dict.fromkeys(repeated, REPEATED)
            self.segment(self.fusion)

    def _sum_small_products(self, bounds: ProductBounds) -> None:
        """Makes small products sums.

        A product whose terms would be stored with the work before them reads stored operands. If that does not help,
        it stays a library call.
        """
        original = self.fusion
        chosen, guards = small_products(original, self.sizes, bounds)
        self.guards += guards
        separate: dict[int, str] = {}
        while chosen:
            fusion, terms = with_sums(original, chosen)
            split = segment_fusion(fusion, sizes=self.sizes, options=self.options, stored=separate)
            stored = {part.segment.value_map[v] for part in split.segments for v in part.fusion.outputs}
            alone = {number for number in chosen if terms[number] in stored}
            if not alone:
                self.replace(split)
                self.stored = separate
                return
            operands = {o for number in alone for o in original.producers[number].inputs if o in original.producers}
            if operands <= separate.keys():
                chosen -= alone
            separate |= dict.fromkeys(operands, READ_BY_PRODUCT)

    def order_results(self, layouts: Sequence[Strided | None], strides: Mapping[str, int]) -> None:
        """Permutes results whose operands are in another order in memory, unless that divides what reduces them.

        See `result_orders`.
        """
        if on_streams(self.fusion) or any(value.sharding for value in self.fusion.values.values()):
            return
        orders, guards = result_orders(self.fusion, layouts, self.sizes, strides)
        positions = {number: k for k, number in enumerate(self.fusion.outputs)}
        ordered = with_orders(self.fusion, orders) if orders else self.fusion
        whole = self.segmentation
        self.take(ordered, guards)
        reduces = any(isinstance(node.op, Reduction) for node in ordered.nodes)
        if orders and reduces and len(self.segmentation.segments) > len(whole.segments):
            self.replace(whole)  # a kernel that reduces along both axes follows one order of memory
            return
        places = ((positions.get(number), order) for number, order in orders.items())
        self.result_orders = {ordered.outputs[place]: order for place, order in places if place is not None}

    def order_inputs(self, layouts: Sequence[Strided | None]) -> None:
        """Copies the inputs that kernels would read across their loops. layouts: of the tensor inputs."""
        fusion = self.segmentation.fusion
        if any(value.stream or value.sharding for value in fusion.values.values()):
            return
        parts = [part for part in self.segmentation.segments if part.library is None and part.slices is None]
        copied, guards = inputs_to_copy(fusion, parts, layouts, self.sizes)
        self.take(with_copies(self.fusion, copied) if copied else self.fusion, guards)
