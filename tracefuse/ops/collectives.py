"""Exchanges between the ranks along a mesh axis. Each runs on equal extents; a leading axis has an entry for each rank."""

from __future__ import annotations

from typing import Any

from tracefuse.ir.collective_kinds import EXCHANGES, GROUP, CoalescedExchanges, Collective, collective_types
from tracefuse.ir.fusion import Attributes, Require, Shape
from tracefuse.ops.families import register


def _runs_in_call(*_: Any, **__: Any) -> Any:
    """Is never called: `Collective.call` runs the exchange."""
    raise NotImplementedError


def _collective(name: str, result_shape: Any, doc: str, *parameters: str) -> Collective:
    return register(  # type: ignore[no-any-return]
        Collective(
            name=name, numpy=_runs_in_call, result_shape=result_shape, shape=result_shape, doc=doc, arity=None, effect=True,
            distinct=True, dtypes=collective_types, parameters=parameters, attributes=((GROUP, None),),
        )
    )  # fmt: skip


def _same(shape: Shape, attributes: Attributes, require: Require) -> Shape:
    return shape


def _entry_for_each_rank(shape: Shape, attributes: Attributes, require: Require) -> Shape:
    size = attributes[GROUP].size
    require(shape[0], "==", size, "a leading extent of {left} among {right} ranks", "give an entry for each rank")
    return shape


all_reduce = _collective(
    "all_reduce", _same, "The elementwise sum, maximum or minimum over all ranks.", "combine"
)  # fmt: skip
reduce_scatter = _collective(
    "reduce_scatter", lambda *given: _entry_for_each_rank(*given)[1:],
    "The sum, maximum or minimum over all ranks of the entry of this rank.", "combine",
)  # fmt: skip
all_gather = _collective(
    "all_gather", lambda shape, attributes, require: (attributes[GROUP].size, *shape),
    "The operands of all ranks, along a new leading axis.",
)  # fmt: skip
all_to_all = _collective(
    "all_to_all", _entry_for_each_rank, "The entries for this rank of the operands of all ranks."
)  # fmt: skip
send_receive = _collective(
    "send_receive", _same, "The operand of the rank that sends to this one, zeros without one.", "pairs"
)

broadcast_from = _collective(
    "broadcast_from", _same, "The operand of the rank at the place `root`, on every rank.", "root"
)  # fmt: skip
coalesced_exchanges: CoalescedExchanges = register(
    CoalescedExchanges(
        name="coalesced_exchanges", numpy=_runs_in_call, result_shape=_same, shape=_same, arity=None, effect=True,
        distinct=True, dtypes=collective_types, attributes=((GROUP, None), (EXCHANGES, ())),
        doc="Exchanges that do not depend on each other, which start together.",
    )
)  # fmt: skip
