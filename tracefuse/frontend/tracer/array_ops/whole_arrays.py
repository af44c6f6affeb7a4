"""Records library ops on whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse import source
from tracefuse.errors import DtypeError, ShapeError, UnsupportedError
from tracefuse.frontend.tracer.record.recorder import Recorder
from tracefuse.frontend.tracer.values.operands import located_error
from tracefuse.frontend.tracer.values.traced import Traced
from tracefuse.ir.library_kinds import WholeArrayOp


def record_whole(
    recorder: Recorder, op: WholeArrayOp, operands: Sequence[Traced], **attributes: Any
) -> tuple[Traced, ...]:
    """Records a library op on traced arrays and returns its results.

    Raises ShapeError, DtypeError or UnsupportedError, with the user's line, for operands that the op does not take.
    """
    recorder.check_alive()
    where = source.user_line()
    resolved = [recorder.resolve(operand) for operand in operands]
    plain = {name: recorder.plain(value) for name, value in attributes.items()}
    numbers = [entry.operand for entry in resolved]
    recorder.builder.reading, recorder.builder.named = numbers, [entry.traced for entry in resolved]
    try:
        types = op.dtypes(
            [entry.dtype for entry in resolved if entry.dtype is not None], {**dict(op.attributes), **plain}
        )
        results = recorder.builder.node(op, numbers, plain, types[0], types, where=where)
    except DtypeError as error:
        raise located_error(error, recorder.describe, resolved, where) from None
    except (ShapeError, UnsupportedError) as error:
        error.locate(where)
        raise
    finally:
        recorder.builder.reading, recorder.builder.named = (), ()
    return tuple(recorder.traced_type(recorder, number) for number in results)
