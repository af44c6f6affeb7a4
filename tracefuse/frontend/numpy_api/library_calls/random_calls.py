"""Random generators while a function is traced: twins whose methods record draws as effects.

A draw in a fused function happens at every call, in program order, with the generator's state of that moment: the
values are those of the plain program. NumPy's methods that draw no array (`bytes`, `spawn`, the state) are refused.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from tracefuse import dtypes, source
from tracefuse.dtypes import DType, dtype_of
from tracefuse.errors import DtypeError, UnsupportedError
from tracefuse.frontend.numpy_api.library_calls.whole_array_calls import as_attribute, op_named
from tracefuse.frontend.tracer.array_ops import shaping
from tracefuse.frontend.tracer.array_ops.in_place import into
from tracefuse.frontend.tracer.array_ops.masked_elements import with_elements
from tracefuse.frontend.tracer.array_ops.traced_ops import as_tensor
from tracefuse.frontend.tracer.array_ops.whole_arrays import record_whole
from tracefuse.frontend.tracer.captured.captures import GENERATORS, ArgumentTwin
from tracefuse.frontend.tracer.record.recorder import Recorder, current
from tracefuse.frontend.tracer.values.settled_extents import broadcast_shape
from tracefuse.frontend.tracer.values.symbolic_size import SymbolicSize
from tracefuse.frontend.tracer.values.traced import Traced, holds_traced
from tracefuse.ir.fusion import Shape
from tracefuse.ops.random_draws import OperandPlace, RandomSource, SharedSource, SourceOfCall

_INTEGERS = frozenset(
    ("binomial", "geometric", "hypergeometric", "logseries", "multinomial", "multivariate_hypergeometric",
     "negative_binomial", "poisson", "zipf", "integers", "randint", "random_integers", "tomaxint")
)  # fmt: skip
_OF_AN_ARRAY = frozenset(("choice", "permutation", "permuted"))
_VECTORS = {
    "multinomial": "pvals", "dirichlet": "alpha", "multivariate_normal": "mean",
    "multivariate_hypergeometric": "colors",
}  # fmt: skip
"""Distributions of vectors: the parameter whose last axis is that of a draw."""
_REFUSED = frozenset(("bytes", "spawn", "get_state", "set_state", "set_bit_generator", "get_bit_generator"))


def drawing_methods(kind: Any) -> list[str]:
    """Returns the names of the methods of a generator, or of the functions of `np.random`, that draw or seed."""
    names = (name for name in dir(np.random.RandomState if kind is np.random else kind) if not name.startswith("_"))
    return [name for name in names if name != "bit_generator" and hasattr(kind, name)]


class RecordingGenerator(ArgumentTwin):
    """The twin of a generator in a trace. Its methods record; it passes for an instance of the generator's class."""

    def __init__(self, original: Any, random_source: RandomSource) -> None:
        self.original, self._source = original, random_source

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self.original)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.__dict__["original"], name)
        if not callable(method):
            _refuse(name)
        return recording_method(method, name, self._source)

    def __repr__(self) -> str:
        return repr(self.original)


def recording_method(method: Callable[..., Any], name: str, random_source: RandomSource) -> Callable[..., Any]:
    """Returns what records a method of a generator; outside of a trace it calls the method."""

    def call(*arguments: Any, **keywords: Any) -> Any:
        recorder = current.get()
        if recorder is None:
            return method(*arguments, **keywords)
        return record_draw(recorder, method, name, random_source, arguments, keywords)

    call.__name__, call.__doc__ = name, method.__doc__
    return call


def _refuse(name: str) -> NoReturn:
    raise UnsupportedError(
        f"{name} of a random generator cannot be fused",
        hint="call it outside the fused function", where=source.user_line(), runs_function=True,
    )  # fmt: skip


def record_draw(
    recorder: Recorder, method: Callable[..., Any], name: str, random_source: RandomSource,
    arguments: Sequence[Any], keywords: Mapping[str, Any],
) -> Any:  # fmt: skip
    """Records a call of a generator's method."""
    if name in _REFUSED:
        _refuse(name)
    if (recorder.device is None) != (random_source.zeros is np.zeros):
        raise UnsupportedError(
            f"{name} of a generator of NumPy in a function of GPU arrays, or of CuPy in one of NumPy arrays",
            hint="draw with the library of the arrays", where=source.user_line(),
        )  # fmt: skip
    parameters = _by_name(method, name, with_elements(tuple(arguments)), with_elements(dict(keywords)))
    if name == "shuffle":
        return _shuffled(recorder, random_source, parameters)
    if name == "seed":
        seeds = tuple(as_attribute("np.random.seed", "seed", v) for v in parameters.values())
        return _effect(
            recorder, "random_draw", [], source=random_source, method=name, shape=(), dtype=dtypes.bool_,
            arguments=seeds,
        )  # fmt: skip
    out = parameters.pop("out", None)
    if out is not None and name not in _OF_AN_ARRAY:
        parameters.setdefault("size", _size_of_output(recorder, name, parameters, out))
    shape, dtype = _drawn_shape(recorder, name, parameters), _drawn_type(recorder, name, parameters)
    operands: list[Traced] = []
    values = tuple(_argument(name, key, value, operands) for key, value in parameters.items())
    (drawn, *_) = _effect(
        recorder, "random_draw", operands, source=random_source, method=name, arguments=values,
        names=() if name in ("rand", "randn") else tuple(parameters), shape=shape, dtype=dtype,
    )  # fmt: skip
    if not shape and parameters.get("size") is None:
        kind = _kind_of_number(recorder, name, parameters, dtype)
        drawn = drawn if kind is None else recorder.python_number(drawn, kind)
    return drawn if out is None else into(out, drawn)


def _by_name(
    method: Callable[..., Any], name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the arguments that the caller gives, by parameter."""
    if name in ("rand", "randn"):
        return {f"d{k}": size for k, size in enumerate(arguments)}
    parameters = inspect.signature(method).bind(*arguments, **keywords).arguments
    return {key: value for key, value in parameters.items() if not (value is None and key in ("size", "out"))}


def _effect(recorder: Recorder, op: str, operands: Sequence[Traced], **attributes: Any) -> tuple[Traced, ...]:
    """Records an effect after the last one."""
    last = recorder.last_effect
    ordered = [] if last is None else [last]
    results = record_whole(recorder, op_named(op), [*ordered, *operands], ordered=bool(ordered), **attributes)
    recorder.last_effect = results[-1]
    return results


def _argument(function: str, name: str, value: Any, operands: list[Traced]) -> Any:
    """Returns an argument as an attribute; a traced array, or an array, becomes the next operand."""
    if isinstance(value, (np.dtype, type)):
        return value
    if isinstance(value, Traced) and value.on_host:
        return _operand(value, operands)
    if isinstance(value, (Traced, np.ndarray)) and name != "size":
        return _operand(as_tensor(value), operands)
    if isinstance(value, (list, tuple)) and holds_traced(value) and name != "size":
        return tuple(_argument(function, name, element, operands) for element in value)
    return as_attribute(function, name, value)


def _operand(value: Traced, operands: list[Traced]) -> OperandPlace:
    operands.append(value)
    return OperandPlace(len(operands) - 1)


def _shape_of(recorder: Recorder, value: Any) -> Shape:
    """Returns the shape of an argument of a distribution."""
    if isinstance(value, Traced):
        return value.extents
    return () if isinstance(value, SymbolicSize) else np.shape(value)


def _size_of_output(recorder: Recorder, name: str, parameters: Mapping[str, Any], out: Any) -> tuple[Any, ...]:
    """Returns the shape of the array that a draw fills, which has the type of the draw."""
    wanted, found = _drawn_type(recorder, name, parameters), as_tensor(out).value.dtype
    if wanted is not found:
        raise DtypeError(
            f"Supplied output array has the wrong type. Expected {wanted}, got {found}",
            hint=f"give dtype={found}, or an array of {wanted}", where=source.user_line(),
        )  # fmt: skip
    return tuple(out.shape)


def _drawn_shape(recorder: Recorder, name: str, parameters: Mapping[str, Any]) -> Shape:
    if name in ("rand", "randn"):
        return shaping.new_shape(tuple(parameters.values()), recorder) if parameters else ()
    size = parameters.get("size")
    sized = () if size is None else shaping.new_shape(size, recorder)
    if name in _OF_AN_ARRAY:
        return _shape_from_array(recorder, name, parameters, sized)
    vector = _VECTORS.get(name)
    shapes = [_shape_of(recorder, v) for key, v in parameters.items() if key not in _NO_PARAMETERS]
    if vector is not None:
        events = _shape_of(recorder, parameters[vector])
        if size is not None:
            return (*sized, *events[-1:])
        shapes_of_parameters = [
            events[:-1],
            *(_shape_of(recorder, parameters[key]) for key in ("n", "nsample") if key in parameters),
        ]
        return (*broadcast_shape(shapes_of_parameters, recorder), *events[-1:])
    return sized if size is not None else broadcast_shape(shapes, recorder)


_NO_PARAMETERS = frozenset(("size", "dtype", "method", "endpoint", "check_valid", "tol"))
"""Parameters of distributions that do not broadcast."""


def _shape_from_array(recorder: Recorder, name: str, parameters: Mapping[str, Any], sized: Shape) -> Shape:
    array = parameters["a" if name == "choice" else "x"]
    shape = _shape_of(recorder, array)
    if name != "choice":
        return shape or shaping.new_shape(array, recorder)
    axis = parameters.get("axis", 0)
    return (*shape[:axis], *sized, *shape[axis + 1 :]) if shape else sized


def _drawn_type(recorder: Recorder, name: str, parameters: Mapping[str, Any]) -> DType:
    if name in _OF_AN_ARRAY:
        array = parameters["a" if name == "choice" else "x"]
        if not _shape_of(recorder, array):
            return dtypes.int64
        return array.value.dtype if isinstance(array, Traced) else dtype_of(np.asarray(array).dtype)
    dtype = parameters.get("dtype")
    if dtype is not None:
        return dtype_of(np.dtype(dtype))
    return dtypes.int64 if name in _INTEGERS else dtypes.float64


def _kind_of_number(recorder: Recorder, name: str, parameters: Mapping[str, Any], dtype: DType) -> str | None:
    """Returns the kind of Python number that a draw of one number is; None for NumPy's scalars."""
    is_strong = name == "integers" or (name in _OF_AN_ARRAY and bool(_shape_of(recorder, parameters.get("a", 0))))
    if is_strong or (name == "randint" and parameters.get("dtype", int) is not int):
        return None
    return "int" if dtype.is_integer else dtype.kind


def _shuffled(recorder: Recorder, random_source: RandomSource, parameters: Mapping[str, Any]) -> None:
    array = parameters["x"]
    if not isinstance(array, Traced):
        raise UnsupportedError(
            f"shuffle of a {type(array).__name__} that is not traced",
            hint="shuffle an array that the function makes or gets", where=source.user_line(),
        )  # fmt: skip
    into(array, _effect(recorder, "random_shuffle", [array], source=random_source, axis=parameters.get("axis"))[0])


# ---------------------------------------------------------------------------------------------------------------------
# twins


def twin_of(generator: Any, random_source: RandomSource | None = None) -> RecordingGenerator:
    """Returns the twin of a generator that exists outside of the function. random_source: of an argument."""
    return RecordingGenerator(generator, random_source or SharedSource(generator))


def default_rng(seed: Any = None) -> Any:
    """Records a generator that every call creates from its seed, in place of `np.random.default_rng`."""
    return _generator_of_call(_make_default_rng, seed)


def _random_state(seed: Any = None) -> Any:
    """Records a generator that every call creates from its seed, in place of `np.random.RandomState`."""
    return _generator_of_call(np.random.RandomState, seed)


def _generator_of_call(make: Callable[..., Any], seed: Any) -> Any:
    recorder = current.get()
    if recorder is None or isinstance(seed, GENERATORS):
        return seed if isinstance(seed, RecordingGenerator) else make(seed)
    recorder.makes_generators.add(make.__name__)
    answers = recorder.answers
    random_source = SourceOfCall(make) if answers is None else answers.source_of_call(make)
    attribute = as_attribute(f"np.random.{make.__name__}", "seed", seed)
    _effect(recorder, "random_start", [], source=random_source, seed=attribute)
    return RecordingGenerator(make(0), random_source)


_make_default_rng = np.random.default_rng
CALLED: dict[int, Any] = {id(np.random.RandomState): _random_state}


def functions_of_cupy() -> dict[int, Callable[..., Any]]:
    """Returns the twins of the functions of `cupy.random`, by the id of each."""
    module = sys.modules.get("cupy.random")
    if module is None:
        return {}
    everything = SharedSource(module, sys.modules["cupy"].zeros)
    drawing = (name for name in drawing_methods(np.random) if callable(getattr(module, name, None)))
    return {id(getattr(module, name)): recording_method(getattr(module, name), name, everything) for name in drawing}


def recording_functions() -> dict[int, Callable[..., Any]]:
    """Returns the twins of the functions of `np.random`, by the id of each."""
    everything = SharedSource(np.random.mtrand._rand)
    twins = {
        id(method): recording_method(method, name, everything)
        for name in drawing_methods(np.random)
        if callable(method := getattr(np.random, name))
    }
    for alias in ("ranf", "sample"):
        twins[id(getattr(np.random, alias))] = recording_method(np.random.random_sample, "random_sample", everything)
    return {**twins, id(np.random.default_rng): default_rng}
