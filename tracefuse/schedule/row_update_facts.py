"""The facts of a row update as a segment: rows of a table combined with other rows, at positions that are data.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

from segments.lazy_dataclasses import dataclass
from tracefuse.dtypes import DType
from tracefuse.ir.fusion import Fusion, Node
from tracefuse.ir.library_kinds import Library
from tracefuse.ir.op_kinds import Pointwise


@dataclass(frozen=True, slots=True)
class RowUpdateFacts:
    """The facts of a row update.

    table, index, rows: its operands by number. result: its value. combine: the op that combines an element of the table
    with one of the rows; None: the element is replaced. axes: the number of axes of the table, joined, that a position
    is in.
    """

    node: Node
    table: int
    index: int
    rows: int
    result: int
    combine: Pointwise | None
    axes: int = 1


def row_update_of(fusion: Fusion, node: Node) -> RowUpdateFacts | None:
    """Returns the facts of a node that a kernel computes bit for bit as the op's reference; None for other nodes."""
    op = node.op
    if not isinstance(op, Library) or op.row_update is None or not all(isinstance(o, int) for o in node.operands):
        return None
    table, index, rows = (int(o) for o in node.operands if isinstance(o, int))
    kind, dtypes = node.compute, fusion.values
    combine = None if op.combiner is None else op.combiner(node.attributes)
    assigns = op.row_update(node.attributes) == "assign"
    is_plain = dtypes[table].dtype is kind and dtypes[node.outputs[0]].dtype is kind and dtypes[rows].dtype is kind
    if not is_plain or not (assigns or (combine is not None and _keeps(combine, kind))):
        return None
    return RowUpdateFacts(
        node, table, index, rows, node.outputs[0], None if assigns else combine, node.attributes.get("joined_axes", 1)
    )


def _keeps(op: Pointwise, kind: DType) -> bool:
    """Whether the op takes and gives elements of this type."""
    return kind in op.domain and op.result_type(kind) is kind
