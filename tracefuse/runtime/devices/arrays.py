"""Kinds of arrays: what a function is given, how it crosses into NumPy or CuPy, and back.

NumPy and CuPy arrays are used as they are; JAX and PyTorch arrays come and go through DLPack without a copy. What
tracefuse does not take is refused here, with the type, the argument's path and what to write.

Knows: array libraries, by the names of their types. Must not know: tracing, kernels.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from tracefuse import source
from tracefuse.caches import CLEAR_CACHES, BoundedTable, Cache, register
from tracefuse.dtypes import DType, dtype_of
from tracefuse.errors import DeviceError, DtypeError, ShapeError, UnsupportedError, shown
from tracefuse.runtime.devices import cuda_arrays


@dataclass(frozen=True)
class ShapeDtype:
    """Stands for an array of `shape` and `dtype` where no data is needed (`explain`, `segments`, `definition`).

    shape: sizes, or one size; ShapeError for what is none. dtype: as for NumPy.
    """

    shape: tuple[int, ...]
    dtype: Any
    pytree_leaf: ClassVar[bool] = True

    def __post_init__(self) -> None:
        given: Any = self.shape
        try:
            shape = tuple(map(operator.index, given if isinstance(given, (tuple, list)) else (given,)))
        except TypeError:
            raise ShapeError(f"ShapeDtype: shape cannot be {shown(given)}", hint="give a tuple of integers") from None
        for extent in shape:
            if not 0 <= extent < 2**63:
                raise ShapeError(f"ShapeDtype: shape cannot hold {shown(extent)}", hint="sizes are 0 to 2**63 - 1")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype_of(self.dtype).numpy)

    @property
    def ndim(self) -> int:
        return len(self.shape)


FOREIGN = ("jax", "torch")

MOST_TYPES = 1024
"""Types whose kind of array is remembered; the oldest goes first."""
_kinds: BoundedTable[type, str | None] = BoundedTable(MOST_TYPES)
register(Cache(
    "runtime.devices.arrays._kinds", "which kind of array a type is", "type", f"{MOST_TYPES}, the oldest go",
    cleared_by=CLEAR_CACHES, clear=_kinds.clear,
))  # fmt: skip


def kind_of(value: Any) -> str | None:
    """ "numpy", "cupy", "jax", "torch", "spec" (a ShapeDtype) or "refused"; None for what is no array."""
    cls = type(value)
    try:
        return _kinds[cls]
    except KeyError:
        _kinds[cls] = kind = _kind_of_class(cls)
        return kind


def is_own(value: Any) -> bool:
    """Whether a value is an array of NumPy or CuPy, of the class itself."""
    cls = type(value)
    return cls is np.ndarray or (kind_of(value) == "cupy" and cls.__name__ == "ndarray")


def _kind_of_class(cls: type) -> str | None:
    if cls is np.ndarray:
        return "numpy"
    if cls is ShapeDtype:
        return "spec"
    for base in cls.__mro__:
        module = base.__module__.partition(".")[0]
        if base in (np.ma.MaskedArray, np.matrix):
            return "refused"
        if module == "cupy" and base.__name__ == "ndarray":
            return "cupy"
        if module == "torch" and base.__name__ == "Tensor":
            return "torch"
        if module in ("jaxlib", "jax") and base.__name__ in ("ArrayImpl", "Array"):
            return "jax"
        if module in ("pandas", "scipy", "polars", "xarray", "sparse") and hasattr(cls, "shape"):
            return "refused"
        if base is np.ndarray:
            return "numpy"
    return None


_INSTEAD = {
    "MaskedArray": "pass {0}.filled(value) and the mask as arrays", "matrix": "pass np.asarray({0})",
    "pandas": "pass {0}.to_numpy()", "polars": "pass {0}.to_numpy()", "xarray": "pass {0}.values",
    "scipy": "pass {0}.toarray()", "sparse": "pass {0}.todense()",
}  # fmt: skip
"""By the name of the class or of the library."""

_INSTEAD_OF_DTYPE = {
    "O": "pass np.asarray({0}, dtype=float), or the numbers in it", "U": "pass integers that stand for the strings",
    "S": "pass integers that stand for the strings", "T": "pass integers that stand for the strings",
    "V": "pass the fields one by one, as in {0}['name']", "M": "pass {0}.astype('int64')",
    "m": "pass {0}.astype('int64')", "f": "pass {0}.astype('float64')", "c": "pass {0}.astype('complex128')",
}  # fmt: skip
"""By the kind of NumPy's dtype."""


def dtype_of_argument(value: Any, path: str) -> DType:
    """The element type of an array argument; refuses what tracefuse does not take."""
    name = type(value).__name__
    if not hasattr(value, "dtype") or not isinstance(getattr(value, "shape", None), tuple):
        raise DtypeError(f"{path} is a {name}, no array", hint="pass an array")
    if kind_of(value) == "refused":
        library = type(value).__module__.partition(".")[0]
        instead = _INSTEAD.get(name) or _INSTEAD.get(library, "pass np.asarray({0})")
        raise UnsupportedError(f"{path} is a {library} {name}", hint=instead.format(path))
    if kind_of(value) == "torch":
        if value.requires_grad:
            raise UnsupportedError(f"{path} is a tensor that requires grad", hint=f"pass {path}.detach()")
        return dtype_of(str(value.dtype).removeprefix("torch."))
    dtype = value.dtype
    if not dtype.isnative:
        raise DtypeError(
            f"{path} has foreign byte order ({dtype!r})", hint=f"pass {path}.astype({dtype.newbyteorder('=').name!r})"
        )
    try:
        return dtype_of(dtype)
    except DtypeError as error:
        known = _INSTEAD_OF_DTYPE.get(dtype.kind)
        hint = error.hint if known is None else known.format(path)
        raise DtypeError(f"{path} has dtype {dtype}, which is not supported", hint=hint) from None


def dtype_of_array(array: Any) -> DType:
    """The element type of an array of any library, or of a NumPy scalar."""
    dtype = getattr(array, "dtype", None)
    name = str(dtype)
    # PyTorch's dtypes are no NumPy dtypes; their names are NumPy's.
    if name.startswith("torch."):
        return dtype_of(name.removeprefix("torch."))
    return dtype_of(type(array) if dtype is None else dtype)


def common_kind(kinds: Sequence[tuple[str, str]]) -> str:
    """The kind of the results, from (kind, path) of the array arguments; errors for kinds that do not go together."""
    found: dict[str, str] = {}
    for kind, path in kinds:
        found.setdefault(kind, path)
    found.pop("spec", None)
    foreign = [kind for kind in found if kind in FOREIGN]
    if len(foreign) > 1:
        first, second = foreign[:2]
        raise DeviceError(
            f"arrays of two libraries: {found[first]} is {first}, {found[second]} is {second}",
            hint="convert one of them",
        )
    if "cupy" in found and "numpy" in found:
        path = found["numpy"]
        raise DeviceError(
            f"{path} is a NumPy array beside CuPy arrays ({found['cupy']})", hint=f"pass cupy.asarray({path})",
            where=source.user_line(),
        )  # fmt: skip
    if foreign:
        return foreign[0]
    return "cupy" if "cupy" in found else "numpy"


def device_of(value: Any) -> int | None:
    """The number of the GPU that holds an array, None for the host. Raises DeviceError for other accelerators."""
    kind = kind_of(value)
    if kind == "cupy":
        return int(value.device.id)
    if kind == "torch":
        return _number_of(value.device.type, value.device.index)
    if kind == "jax":
        found = value.devices()
        if len(found) > 1:
            raise DeviceError(f"a JAX array is spread over {len(found)} devices", hint="pass an array of one device")
        (device,) = found
        return _number_of(device.platform, device.local_hardware_id)
    return None


def _number_of(platform: str, number: int | None) -> int | None:
    if platform == "cpu":
        return None
    if platform not in ("cuda", "gpu"):
        raise DeviceError(f"an array is on {platform!r}", hint="move it to the CPU or to a CUDA device")
    return number or 0


def place_of(named: Sequence[tuple[Any, str]]) -> tuple[str, int | None]:
    """(kind of the results, GPU or None for the host) of array arguments, each with its path.

    Raises DeviceError for kinds that do not go together and for arrays on two devices.
    """
    if all(type(value) is np.ndarray for value, _ in named):
        return "numpy", None
    kind = common_kind([(kind_of(value) or "numpy", path) for value, path in named])
    found: dict[int | None, str] = {}
    for value, path in named:
        if kind_of(value) != "spec":
            found.setdefault(device_of(value), path)
    if len(found) > 1:
        (one, first), (two, second) = list(found.items())[:2]
        raise DeviceError(
            f"arrays on two devices: {first} is {_spelled(one)}, {second} is {_spelled(two)}",
            hint="copy one of them to the other's device",
        )
    return kind, next(iter(found), None)


def device_number(device: Any) -> int | None:
    """The GPU that a `device=` names, None for the host: "cpu", "cuda", "cuda:1", a number, or a device of CuPy.

    "cuda" is the current GPU. Raises DeviceError for anything else.
    """
    if device is None or device == "cpu":
        return None
    if device == "cuda":
        return cuda_arrays.current_device()
    if isinstance(device, str) and device.startswith("cuda:") and device[5:].isdigit():
        return int(device[5:])
    number = getattr(device, "id", device)
    if isinstance(number, int) and not isinstance(number, bool):
        return number
    raise DeviceError(f"unknown device {device!r}", hint="write 'cpu', 'cuda' or 'cuda:0'")


def device_name(device: int | None) -> str:
    """What `device=` takes."""
    return "cpu" if device is None else f"cuda:{device}"


def _spelled(device: int | None) -> str:
    return "on the host" if device is None else f"on GPU {device}"


def entering(kind: str) -> Callable[[Any], Any]:
    """How an array of a kind becomes a NumPy or CuPy array that shares its memory."""
    return {"jax": _from_jax, "torch": _from_torch}.get(kind, _as_it_is)


def check_can_change(kind: str | None, what: str) -> None:
    """UnsupportedError for arrays of a kind that never change."""
    if kind == "jax":
        raise UnsupportedError(
            f"{what}: a JAX array never changes", hint="return the new value, or pass a NumPy or CuPy array"
        )


def check_can_donate(kind: str) -> None:
    """UnsupportedError for arrays of a kind whose memory cannot be taken."""
    if kind in FOREIGN:
        name = {"jax": "a JAX array never changes", "torch": "PyTorch may hold other tensors of the same memory"}[kind]
        raise UnsupportedError(f"a donated argument: {name}", hint="donate NumPy or CuPy arrays")


def leaving(kind: str) -> Callable[[Any], Any]:
    """How a NumPy or CuPy array becomes one of a kind that shares its memory."""
    return {"jax": _to_jax, "torch": _to_torch}.get(kind, _as_it_is)


def hold(kind: str | None, arguments: Sequence[Any]) -> None:
    """Keeps the memory of a call's arguments until its kernels have run, for libraries that would take it before.

    JAX frees a buffer in the order of its own stream. CuPy frees in the order of the stream that the call ran on, and
    so does PyTorch, whose stream is the call's.
    """
    if kind == "jax":
        cuda_arrays.hold_until_done([array for array in arguments if cuda_arrays.is_array(array)])


def _as_it_is(array: Any) -> Any:
    return array


def _from_jax(array: Any) -> Any:
    if not type(array).__module__.startswith(("jax", "jaxlib")):
        return array
    if next(iter(array.devices())).platform == "cpu":
        # NumPy's view of a CPU buffer; bfloat16, which NumPy's DLPack does not know, included.
        return np.asarray(array)
    import cupy

    return cupy.from_dlpack(array)


def _to_jax(array: Any) -> Any:
    import jax

    if isinstance(array, np.ndarray) and array.dtype == ml_dtypes.bfloat16:
        bits = jax.dlpack.from_dlpack(array.view(np.uint16))
        return jax.lax.bitcast_convert_type(bits, jax.numpy.bfloat16)
    if array.dtype == np.bool_ or array.dtype.itemsize == 8 or array.dtype == np.complex128:
        # Through jax's own rules for 64-bit types, and bool, that old versions do not take.
        return jax.numpy.asarray(array)
    return jax.dlpack.from_dlpack(array)


def _from_torch(tensor: Any) -> Any:
    if not type(tensor).__module__.startswith("torch"):
        return tensor
    import torch

    half = tensor.dtype == torch.bfloat16
    plain = tensor.view(torch.uint16) if half else tensor
    if plain.is_cuda:
        import cupy

        shared = cupy.from_dlpack(plain)
    else:
        shared = plain.numpy()
    return shared.view(ml_dtypes.bfloat16) if half else shared


def _to_torch(array: Any) -> Any:
    import torch

    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_dlpack(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_dlpack(array)
