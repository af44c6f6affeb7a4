"""The ops that compiler passes build nodes of, by their role.

A pass asks the definition of an op what it needs to know, and names no op. When it adds a node, the op comes from here.
"""

from __future__ import annotations

from tracefuse.ops import movement, pointwise, reduction

COPY = pointwise.set
"""Copies a value: another number, buffer or sharding."""

CAST = pointwise.cast
"""Converts a value to the type in its attribute `dtype`."""

EXTENT = pointwise.extent
"""An integer expression of extents as a host scalar."""

BROADCAST = movement.broadcast
"""Inserts axes of extent 1."""

SQUEEZE = movement.squeeze
"""Removes axes of extent 1."""

PERMUTE = movement.permute
"""Orders axes as its attribute `dims` does."""

MULTIPLY = pointwise.mul
"""The product of two elements."""

SUM = reduction.sum
"""The sum over the axes in its attribute `dims`."""
