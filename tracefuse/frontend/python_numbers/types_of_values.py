"""The types that traced values have in NumPy, CuPy and Python, which `type`, `isinstance` and `hasattr` ask for."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from tracefuse import dtypes
from tracefuse.frontend.python_numbers.number_arithmetic import kind_of
from tracefuse.frontend.tracer.array_ops.number_where import is_mixed, with_numbers
from tracefuse.frontend.tracer.record.loop_counters import NotInEveryIteration
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced

_MIXED = "the type of a variable that is a number of Python in some iterations only"


def stands_for_object(value: Any) -> bool:
    """Whether a value stands for an object of a type of Python that is no number, as a range of sizes does."""
    return hasattr(type(value), "python_type")


def is_scalar(value: Any) -> bool:
    """Whether a value is a traced number, a size or a traced scalar of NumPy, which have fewer methods than arrays."""
    if isinstance(value, Traced):
        return value.weak is not None or value.is_immutable
    return isinstance(value, SymbolicSize)


def type_in_numpy(value: Any) -> type:
    """Returns the type that a traced value has in NumPy and Python.

    Raises NotInEveryIteration for one that is a number of Python in some iterations of a recorded loop only.
    """
    if is_mixed(value):
        raise NotInEveryIteration(_MIXED)
    kind = kind_of(value)
    if kind is not None:
        return cast("type", dtypes.PYTHON_TYPES[kind])
    return cast("type", value.value.dtype.numpy.type if value.is_immutable else value.array_class)


def is_instance(value: Any, classes: Any) -> Any:
    """Returns `isinstance(value, classes)`; NotImplemented for a value that Python can be asked about.

    Raises NotInEveryIteration if the iterations of a recorded loop have several answers.
    """
    is_array = isinstance(value, Traced) and value.array_class is not np.ndarray
    if stands_for_object(value):
        types = [type(value).python_type]
    elif isinstance(value, Traced) and value.number_where is not None:
        types = [dtypes.PYTHON_TYPES[value.number_where.kind], type_in_numpy(with_numbers(value, False, None))]
    elif is_array or is_scalar(value):
        types = [type_in_numpy(value)]
    else:
        return NotImplemented
    try:
        answers = {issubclass(one, classes) for one in types}
    except TypeError:
        return NotImplemented
    if len(answers) > 1:
        raise NotInEveryIteration(_MIXED)
    return answers.pop()
