"""Attention by groups of four warps: the products of a tile of keys go on during the softmax of the next one.

In a step of the loop, a group starts the product of its queries with a tile of keys and that of the weights of the tile
before with its values. During the latter it computes the new weights, and then it scales the sums. The next keys, and
the values of this tile, are on their way to shared memory meanwhile.

Must not know: CUDA C++.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import field
from functools import partial

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import float32
from tracefuse.ir.extents import Extent, ceildiv, maximum, minimum, symbol
from tracefuse.ir.fusion import Shape
from tracefuse.kernel.kernel_ir import (
    Assign,
    AwaitCopies,
    AwaitProducts,
    Barrier,
    Buffer,
    Constant,
    Copy,
    EndBatch,
    Expression,
    MultiplyTiles,
    Variable,
    call,
)
from tracefuse.kernel.scalar_code import convert
from tracefuse.schedule.gpu.gpu_attention import MOST_KEPT_FEATURES, AttentionForward, ScoreRow
from tracefuse.schedule.gpu.gpu_group_products import GroupProducts, start_spread_tile
from tracefuse.schedule.gpu.gpu_tiles import MATRIX, SharedTile, load, registers, start_tile, zeros

MOST_GROWTH = 5.5
"""How much the largest logit of a row may grow before its sums are scaled: weights stay below 256."""


@dataclass(frozen=True, slots=True)
class Mask:
    """The elements of an input for a thread's scores of a tile, in their order. width: how many one access reads."""

    buffer: Buffer
    width: int


@dataclass
class GroupAttention(AttentionForward):
    """The emission of the kernel."""

    groups: GroupProducts = field(init=False)
    masks: dict[int, Mask] = field(init=False)

    def _products(self) -> GroupProducts:
        self.groups = GroupProducts(self.body, self.at, self.tiles.matrices, self.dtype)
        return self.groups

    def _run(self) -> None:
        body, tiles, match = self.body, self.tiles, self.attention
        keeps = tiles.query_features <= MOST_KEPT_FEATURES
        rows = 0 if keeps else MultiplyTiles.ROWS
        self.query = self.tile("queries", match.query, tiles.queries, tiles.query_features, together=rows)
        tile = partial(self.tile, together=tiles.keys)
        self.key = tile("keys", match.key, tiles.keys, tiles.query_features, tiles.stages)
        self.value = tile("values", match.value, tiles.keys, tiles.value_features, tiles.stages)
        complete = self._bound_keys()
        self.masks = self._mask_inputs()
        self._start_first_tiles()
        self.query_rows = self.products.load_rows(self.query) if keeps else None
        self.sums = registers(body, "sums", tiles.value_features // 2, float32)
        zeros(body, self.sums)
        self.scores = registers(body, "scores", tiles.keys // 2, float32)
        self.weights = self.products.operands("weights", tiles.keys // MATRIX)
        self._load_masks(0, is_inside=not tiles.single)
        self.groups.scores(self.scores, self.query, self.key, self.query_rows)
        self._weigh(0, is_complete=not tiles.single and self.visible_offset is None)
        self.groups.round(self.weights, self.scores, tiles.keys)
        if not tiles.single:
            self._loop(tiles.keys, complete, is_complete=True)
            self._loop(maximum(complete, tiles.keys), self.visible, is_complete=False)
        last = maximum(ceildiv(self.visible, tiles.keys) - 1, 0) * tiles.keys
        body.append(AwaitCopies())
        body.append(Barrier())
        self.groups.add(self.sums, self.weights, self.value, self._stage(last))
        body.append(AwaitProducts((self.sums,)))
        self._finish()

    def _mask_inputs(self) -> dict[int, Mask]:
        """Allocates registers for the inputs with an element for each key, of one row or all."""
        match, problem, masks = self.attention, self.problem, {}
        factors = {factor.number for factor in (match.query, match.key, match.value)}
        for number in (n for n in problem.fusion.tensor_inputs if n not in factors):
            shape, strides = problem.fusion.shape_of(number), problem.memory.strides[number]
            if (
                not shape
                or shape[-1] != self.keys
                or strides[-1] != 1
                or problem.fusion.values[number].dtype.itemsize > 4
            ):
                continue
            rows = (self.keys, *strides[:-1])
            paired = number in problem.memory.aligned and all(
                problem.sizes.is_multiple(extent, 2, "rows of a mask are read in pairs") for extent in rows
            )
            dtype = problem.fusion.values[number].dtype
            masks[number] = Mask(registers(self.body, "mask", self.tiles.keys // 2, dtype), 2 if paired else 1)
        return masks

    def _load_masks(self, start: Extent, *, is_inside: bool) -> None:
        """Loads the inputs at the scores of the keys from `start` on, while their products go on."""
        body, keys = self.body, self.tiles.keys
        for number, mask in self.masks.items():
            first = self.bound("mask_column", start + self.at.column, None)
            with body.loop(n := symbol(body.fresh("n"), extent=keys // MATRIX), keys // MATRIX, "unroll"):
                for row in self.rows:
                    for place, at in list(self.places(row, n, keys))[:: mask.width]:
                        key = first + at if is_inside else minimum(first + at, self.keys - mask.width)
                        offset = body.offset(number, self._of_input(number, self.coordinates(row.row, key)))
                        source = (body.buffer_of(number), body.index.code(offset))
                        body.append(Copy(mask.buffer, body.index.code(place), *source, mask.width))

    def _recall_inputs(self, place: Extent, coordinates: Shape) -> None:
        """See AttentionForward._recall_inputs."""
        for number, mask in self.masks.items():
            dtype = mask.buffer.dtype
            element = convert(load(self.body, mask.buffer, place), float32 if dtype.is_half else dtype)
            self.body.levels[-1].memo[number, self._of_input(number, coordinates)] = self.body.name("mask", (element,))

    def _of_input(self, number: int, coordinates: Shape) -> Shape:
        """Returns the coordinates of an input that is broadcast to the scores."""
        shape = self.problem.fusion.shape_of(number)
        own = coordinates[len(coordinates) - len(shape) :]
        return tuple(0 if extent == 1 else c for c, extent in zip(own, shape, strict=True))

    def _start(self, tile: SharedTile, start: Extent) -> None:
        """See AttentionForward._start."""
        start_spread_tile(self.body, tile, start, self.keys, self.at.thread, self.threads, self._stage(start))

    @property
    def keeps_maxima(self) -> bool:
        """Whether nothing but the weights depends on the maximum of a row, so that a smaller number serves as well."""
        match = self.attention
        return match.divisor == match.total and not match.inverted and tuple(match.outputs) == (match.result,)

    def _keep_maximum(self, row: ScoreRow, new: Variable) -> Expression:
        """Keeps the row's maximum unless the new one is much larger; returns whether it is.

        Weights are at most exp(MOST_GROWTH) then, and the sums need no scaling.
        """
        growth = call("gt", new, call("add", row.largest, Constant(MOST_GROWTH, float32)))
        (grown,) = self.body.name("grown", (growth,))
        self.body.append(Assign(new, call("select", grown, new, row.largest)))
        return grown

    def _start_first_tiles(self) -> None:
        """Starts the copies of the queries, the first values and the first two tiles of keys; awaits the first keys."""
        body, keys = self.body, self.tiles.keys
        start = start_spread_tile if self.query.together == self.query.rows else start_tile
        start(body, self.query, self.first, self.queries, self.at.thread, self.threads)
        self._start(self.key, 0)
        body.append(EndBatch())
        self._start(self.value, 0)
        if not self.tiles.single:
            with body.condition(body.index.compare("lt", keys, self.visible)):
                self._start(self.key, keys)
        body.append(EndBatch())
        body.append(AwaitCopies(1))
        body.append(Barrier())

    def _loop(self, first: Extent, stop: Extent, *, is_complete: bool) -> None:
        """See AttentionForward._loop. The weights of the tile before `first` are in registers."""
        body, keys = self.body, self.tiles.keys
        start = symbol("start")
        with body.loop(start, stop, start=first, step=keys):
            body.append(AwaitCopies())
            body.append(Barrier())
            self.groups.scores(
                self.scores, self.query, self.key, self.query_rows, self._stage(start), awaited=False
            )  # fmt: skip
            self.groups.add(self.sums, self.weights, self.value, self._stage(start - keys))
            with body.condition(body.index.compare("lt", start + keys, self.visible)):
                self._start(self.key, start + keys)
            self._start(self.value, start)
            self._load_masks(start, is_inside=is_complete)
            body.append(AwaitProducts((self.scores,), 1))
            scales, grown = [], []
            for row, new in zip(self.rows, self._logits(start, is_complete=is_complete), strict=True):
                if self.keeps_maxima:
                    grown.append(self._keep_maximum(row, new))
                scale, shift = self._rescale(row, new)
                self._weights(row, shift)
                scales.append(scale)
            body.append(AwaitProducts((self.sums,)))
            with body.condition(call("or", *grown)) if grown else nullcontext():
                for row, scale in zip(self.rows, scales, strict=True):
                    self._scale_sums(row, scale)
            self.groups.round(self.weights, self.scores, keys)
