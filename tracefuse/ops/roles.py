"""The ops that compiler passes build nodes of, by their role.

A pass asks the definition of an op what it needs to know, and names no op. When it adds a node, the op comes from here.
"""

from __future__ import annotations

from tracefuse.ops import collectives, library, loop_ops, movement, movement_resizes, pointwise, reduction

ENDING_COPY = pointwise.segment_set
"""A copy that ends a segment."""

COPY = pointwise.set
"""Copies a value: another number, buffer or sharding."""

ORDERED_COPY = pointwise.ordered_set
"""Copies a value, and keeps its order in memory where results do (`partition/result_orders.py`)."""

CAST = pointwise.cast
"""Converts a value to the type in its attribute `dtype`."""

EXTENT = pointwise.extent
"""An integer expression of extents as a host scalar."""

BROADCAST = movement.broadcast
"""Inserts axes of extent 1."""

EXPAND = movement.expand
"""Repeats axes of extent 1."""

PERMUTE = movement.permute
"""Permutes axes."""

RESHAPE = movement.reshape
"""Merges and splits axes in row-major order."""

SLICE = movement_resizes.slice
"""Takes a range of positions of each axis."""

JOIN = movement_resizes.cat
"""Joins arrays along an axis."""

SQUEEZE = movement.squeeze
"""Removes axes of extent 1."""

ALL_GATHER, ALL_REDUCE, ALL_TO_ALL = collectives.all_gather, collectives.all_reduce, collectives.all_to_all
"""Gather parts of all ranks, combine values of all ranks, and exchange parts."""

REDUCE_SCATTER = collectives.reduce_scatter
"""Combines values of all ranks into the parts of each."""

DIVIDE = pointwise.div
"""Divides elementwise."""

ADD = pointwise.add
"""The sum of two elements."""

MULTIPLY = pointwise.mul
"""The product of two elements."""

POSITIVE_PART = pointwise.relu
"""An element where it is positive, else 0; NaN stays."""

PERMUTED_PRODUCT = library.permuted_matmul
"""The product of (stacks of) matrices whose axes are permuted first."""

COUNTED_STEPS = loop_ops.range_loop
"""Runs a body for each integer of a range, and updates the arrays that it carries in place."""

SUM, LARGEST = reduction.sum, reduction.max
"""The sum, and the largest element, over the axes in their attribute `dims`."""

EXPONENTIAL, SUBTRACT = pointwise.exp, pointwise.sub
"""The exponential, and the difference of two elements."""

CHOICE = pointwise.where
"""Takes each element from one of two operands by a condition."""

PAD = movement_resizes.pad
"""Elements of a value before and after each axis."""

ROLL = movement_resizes.roll
"""Moves elements along an axis, from one end to the other."""

FLIP = movement_resizes.flip
"""Reverses axes."""

JOIN = movement_resizes.cat
"""Operands one after another along an axis."""

BROADCAST_FROM = collectives.broadcast_from
"""Sends the operand of one rank to all."""

COALESCED_EXCHANGES = collectives.coalesced_exchanges
"""Several exchanges that start together."""

SEND_RECEIVE = collectives.send_receive
"""Sends a value along pairs of ranks."""

POSITIONS = pointwise.iota
"""start, start + step, ...: as many as its attribute `length`."""

AT_LEAST, LESS, BOTH = pointwise.ge, pointwise.lt, pointwise.logical_and
"""Comparisons of integers, and their conjunction."""

AT_MOST, MORE = pointwise.le, pointwise.gt
"""AT_LEAST and LESS with their operands exchanged."""

COMBINERS = {"add": pointwise.add, "mul": pointwise.mul, "maximum": pointwise.maximum, "minimum": pointwise.minimum}
"""The ops that join two states of a reduction, by its field `combine`."""

WITH_EFFECTS = loop_ops.WITH_EFFECTS
"""For a loop or a branch, the op whose bodies have effects."""
