"""Converts arrays of supported libraries to NumPy or CuPy arrays and back.

NumPy and CuPy arrays need no conversion. JAX and PyTorch arrays are shared through DLPack without a copy. The errors
for unsupported arrays name the type, the path of the argument and a replacement. Types are recognized by name, so that
no library is imported that the program does not use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from tracefuse import source
from tracefuse.caches import CLEAR_CACHES, BoundedTable, Cache, register
from tracefuse.dtypes import DType, dtype_of
from tracefuse.errors import DeviceError, DtypeError, UnsupportedError
from tracefuse.runtime.devices import cuda_arrays, jax_arrays, torch_arrays
from tracefuse.runtime.devices.masked_arrays import is_masked_array, is_masked_class
from tracefuse.runtime.devices.shape_dtype import FOREIGN, ShapeDtype


def element_strides(array: Any) -> tuple[int, ...]:
    """Returns the strides of an array of any library in elements; those of a C-contiguous array if it has none."""
    strides = getattr(array, "strides", None)
    if isinstance(strides, tuple):
        return tuple(stride // array.dtype.itemsize for stride in strides)
    stride = getattr(array, "stride", None)  # of a torch tensor
    if callable(stride):
        return tuple(stride())
    return tuple(math.prod(array.shape[axis + 1 :]) for axis in range(len(array.shape)))


MOST_TYPES = 1024
"""Types whose kind of array is remembered; the oldest goes first."""
_kinds: BoundedTable[type, str | None] = BoundedTable(MOST_TYPES)
register(Cache(
    "runtime.devices.arrays._kinds", "which kind of array a type is", "type", f"{MOST_TYPES}, the oldest go",
    cleared_by=CLEAR_CACHES, clear=_kinds.clear,
))  # fmt: skip


def kind_of(value: Any) -> str | None:
    """Returns "numpy", "cupy", "jax", "torch", "spec" (a ShapeDtype), "jax type" (a jax.ShapeDtypeStruct), "refused"
    (unsupported), or None for objects that are no arrays.
    """
    cls = type(value)
    try:
        return _kinds[cls]
    except KeyError:
        _kinds[cls] = kind = _kind_of_class(cls)
        return kind


def as_described(value: Any) -> Any:
    """Returns a jax.ShapeDtypeStruct as a ShapeDtype, and any other object as it is."""
    if kind_of(value) != "jax type":
        return value
    return ShapeDtype(tuple(value.shape), value.dtype, library="jax")


def is_own(value: Any) -> bool:
    """Whether a value is a NumPy or CuPy array and not an instance of a subclass."""
    cls = type(value)
    return cls is np.ndarray or (kind_of(value) == "cupy" and cls.__name__ == "ndarray")


def _kind_of_class(cls: type) -> str | None:
    if cls is np.ndarray:
        return "numpy"
    if issubclass(cls, ShapeDtype):
        return "spec"
    for base in cls.__mro__:
        module = base.__module__.partition(".")[0]
        if base is np.matrix or is_masked_class(base):
            return "refused"
        if module == "cupy" and base.__name__ == "ndarray":
            return "cupy"
        if module == "torch" and base.__name__ == "Tensor":
            return "torch"
        if module in ("jaxlib", "jax") and base.__name__ in ("ArrayImpl", "Array"):
            return "jax"
        if module == "jax" and base.__name__ == "ShapeDtypeStruct":
            return "jax type"
        if module in ("pandas", "scipy", "polars", "xarray", "sparse") and hasattr(cls, "shape"):
            return "refused"
        if base is np.ndarray:
            return "numpy" if cls in _AS_PLAIN else "refused"
    return None


_AS_PLAIN = (np.memmap, np.recarray)
"""Subclasses of ndarray whose operations are those of ndarray. A class of another library may have its own."""


def is_of_subclass(value: Any) -> bool:
    """Whether a value is an instance of a subclass of ndarray that has no op here, other than masks and matrices."""
    is_other = isinstance(value, np.ndarray) and not isinstance(value, np.matrix) and not is_masked_array(value)
    return is_other and kind_of(value) == "refused"


def without_subclass(value: Any) -> Any:
    """Returns an instance of such a subclass as a plain array: for the buffer of a result, and for a definition, whose
    ops no subclass can change.
    """
    return value.view(np.ndarray) if is_of_subclass(value) else value


TABLES = ("pandas", "polars", "xarray")
"""Libraries whose tables and columns hold arrays under names."""

_INSTEAD = {
    "MaskedArray": "pass {0}.filled(value) and the mask as arrays", "matrix": "pass np.asarray({0})",
    "DataFrame": "pass the columns that it reads as arrays: {0}[name].to_numpy()",
    "pandas": "pass {0}.to_numpy()", "polars": "pass {0}.to_numpy()", "xarray": "pass {0}.values",
    "scipy": "pass {0}.toarray()", "sparse": "pass {0}.todense()",
}  # fmt: skip
"""The replacement for an unsupported array, by the name of its class or library."""

_INSTEAD_OF_DTYPE = {
    "O": "pass np.asarray({0}, dtype=float), or the numbers in it", "U": "pass integers that stand for the strings",
    "S": "pass integers that stand for the strings", "T": "pass integers that stand for the strings",
    "V": "pass the fields one by one, as in {0}['name']", "M": "pass {0}.astype('int64')",
    "m": "pass {0}.astype('int64')", "f": "pass {0}.astype('float64')", "c": "pass {0}.astype('complex128')",
}  # fmt: skip
"""The replacement for an array of an unsupported dtype, by `dtype.kind`."""


def dtype_of_argument(value: Any, path: str) -> DType:
    """Returns the dtype of an array argument. path: the name of the argument in errors.

    Raises DtypeError for an unsupported dtype or byte order, UnsupportedError for an unsupported kind of array.
    """
    name = type(value).__name__
    if not hasattr(value, "dtype") or not isinstance(getattr(value, "shape", None), tuple):
        library = type(value).__module__.partition(".")[0]
        if library in TABLES:
            raise UnsupportedError(
                f"{path} is a {library} {name}", hint=_INSTEAD.get(name, _INSTEAD[library]).format(path)
            )
        raise DtypeError(f"{path} is a {name}, not an array", hint="pass an array")
    if kind_of(value) == "refused":
        library = type(value).__module__.partition(".")[0]
        if is_of_subclass(value):
            raise UnsupportedError(
                f"{path} is a {name}, a subclass of np.ndarray, whose own operations a trace cannot run",
                hint=f"use np.asarray({path}), and make a {name} of the result outside",
            )
        instead = _INSTEAD.get(name) or _INSTEAD.get(library, "pass np.asarray({0})")
        raise UnsupportedError(f"{path} is a {library} {name}", hint=instead.format(path))
    if kind_of(value) == "torch":
        if value.requires_grad:
            raise UnsupportedError(f"{path} is a tensor that requires grad", hint=f"pass {path}.detach()")
        return dtype_of(str(value.dtype).removeprefix("torch."))
    dtype = value.dtype
    if not dtype.isnative:
        raise DtypeError(
            f"{path} has non-native byte order ({dtype!r})",
            hint=f"pass {path}.astype({dtype.newbyteorder('=').name!r})",
        )
    try:
        return dtype_of(dtype)
    except DtypeError as error:
        replacement = _INSTEAD_OF_DTYPE.get(dtype.kind)
        hint = error.hint if replacement is None else replacement.format(path)
        raise DtypeError(f"{path} has dtype {dtype}, which is not supported", hint=hint) from None


def dtype_of_array(array: Any) -> DType:
    """Returns the dtype of an array of any library, or of a NumPy scalar."""
    dtype = getattr(array, "dtype", None)
    name = str(dtype)
    # PyTorch's dtypes are not NumPy dtypes, but they have the same names.
    if name.startswith("torch."):
        return dtype_of(name.removeprefix("torch."))
    return dtype_of(type(array) if dtype is None else dtype)


def common_kind(kinds: Sequence[tuple[str, str]]) -> str:
    """Returns the kind of the results, from the (kind, path) of each array argument.

    Raises DeviceError if the kinds cannot be combined.
    """
    paths: dict[str, str] = {}
    for kind, path in kinds:
        paths.setdefault(kind, path)
    paths.pop("spec", None)
    foreign = [kind for kind in paths if kind in FOREIGN]
    if len(foreign) > 1:
        first, second = foreign[:2]
        raise DeviceError(
            f"arrays of two libraries: {paths[first]} is {first}, {paths[second]} is {second}",
            hint="convert one of them",
        )
    if "cupy" in paths and "numpy" in paths:
        path = paths["numpy"]
        raise DeviceError(
            f"{path} is a NumPy array beside CuPy arrays ({paths['cupy']})", hint=f"pass cupy.asarray({path})",
            where=source.user_line(),
        )  # fmt: skip
    if foreign:
        return foreign[0]
    return "cupy" if "cupy" in paths else "numpy"


def device_of(value: Any) -> int | None:
    """Returns the number of the GPU that holds an array, None for the host.

    Raises DeviceError for other accelerators and for arrays on several devices.
    """
    kind = kind_of(value)
    if kind == "cupy":
        return int(value.device.id)
    if kind == "torch":
        return _gpu_number(value.device.type, value.device.index)
    if kind == "jax":
        devices = value.devices()
        if len(devices) > 1:
            raise DeviceError(f"a JAX array is sharded over {len(devices)} devices", hint="pass an array on one device")
        (device,) = devices
        return _gpu_number(device.platform, device.local_hardware_id)
    return None


def _gpu_number(platform: str, number: int | None) -> int | None:
    if platform == "cpu":
        return None
    if platform not in ("cuda", "gpu"):
        raise DeviceError(f"an array is on {platform!r}", hint="move it to the CPU or to a CUDA device")
    return number or 0


def place_of(named: Sequence[tuple[Any, str]]) -> tuple[str, int | None]:
    """Returns the kind of the results and the GPU (None for the host) of array arguments, each with its path.

    Raises DeviceError if the kinds cannot be combined, or for arrays on two devices.
    """
    if all(type(value) is np.ndarray for value, _ in named):
        return "numpy", None
    kind = common_kind([(_library_of(value), path) for value, path in named])
    paths: dict[int | None, str] = {}
    for value, path in named:
        if kind_of(value) != "spec":
            paths.setdefault(device_of(value), path)
    if len(paths) > 1:
        (device, first), (second_device, second) = list(paths.items())[:2]
        raise DeviceError(
            f"arrays on two devices: {first} is {device_text(device)}, {second} is {device_text(second_device)}",
            hint="copy one of them to the other's device",
        )
    return kind, next(iter(paths), None)


def _library_of(value: Any) -> str:
    """Returns the kind of an array, and of a ShapeDtype that of its library."""
    kind = kind_of(value) or "numpy"
    return value.library or kind if kind == "spec" else kind


def device_number(device: Any) -> int | None:
    """Returns the GPU that `device` names, None for the host.

    device: "cpu", "cuda" (the current GPU), "cuda:1", a number or a CuPy device. Raises DeviceError for anything else.
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
    """Returns the name of a device, as `device=` takes it."""
    return "cpu" if device is None else f"cuda:{device}"


def device_text(device: int | None) -> str:
    """Returns the device of an array as text for messages."""
    return "on the host" if device is None else f"on GPU {device}"


def entering(kind: str) -> Callable[[Any], Any]:
    """Returns the conversion from arrays of a kind to NumPy or CuPy arrays that share their memory."""
    return {"jax": _from_jax, "torch": _from_torch}.get(kind, _return_unchanged)


def entering_after_test(kind: str) -> Callable[[Any], Any]:
    """Returns the conversion of arrays of a kind that passed `place_test`, as `entering` does."""
    return np.asarray if kind == "jax" else entering(kind)


def can_enter(kind: str, array: Any) -> bool:
    """Whether an array of JAX or PyTorch is on one device, and no variable whose gradient is recorded."""
    return len(array.devices()) == 1 if kind == "jax" else not array.requires_grad


def is_shared_at_once(kind: str, device: int | None) -> bool:
    """Whether a test of each array, its conversion and the kernels are all of a call with arrays of JAX or PyTorch.

    device: the GPU of the arrays, None for the host. Arrays of JAX on a GPU have to be held as well, see `hold`.
    """
    return device is None or kind == "torch"


def place_test(array: Any) -> tuple[str, Any]:
    """Returns the text of a test that an array of JAX or PyTorch is in the same place as this one, and is no variable.

    The text has {0} for the array, and {1} for the object that is returned with it.
    """
    if kind_of(array) == "jax":
        weak = "" if array.weak_type else "not "
        return f"{{0}}.devices() == {{1}} and {weak}{{0}}.weak_type", array.devices()
    return "{0}.device == {1} and not {0}.requires_grad", array.device


def check_can_change(kind: str | None, name: str) -> None:
    """Raises UnsupportedError for arrays of an immutable kind. name: of the array, for the error."""
    if kind == "jax":
        raise UnsupportedError(
            f"{name}: JAX arrays are immutable", hint="return the new value, or pass a NumPy or CuPy array"
        )


def check_can_donate(kind: str) -> None:
    """Raises UnsupportedError for arrays of a kind that cannot be donated."""
    if kind in FOREIGN:
        name = {"jax": "JAX arrays are immutable", "torch": "PyTorch may hold other tensors that share its memory"}[
            kind
        ]
        raise UnsupportedError(f"a donated argument: {name}", hint="donate NumPy or CuPy arrays")


def leaving(kind: str, is_weak: bool = False) -> Callable[[Any], Any]:
    """Returns the conversion from NumPy or CuPy arrays to arrays of a kind that share their memory.

    is_weak: arrays of JAX promote as Python numbers.
    """
    to_jax = jax_arrays.given_out_weakly if is_weak else jax_arrays.given_out
    return {"jax": to_jax, "torch": torch_arrays.given_out}.get(kind, _return_unchanged)


def release(kind: str) -> Callable[[], Any] | None:
    """Returns what releases the memory of dropped results, before a call allocates; None if nothing has to."""
    return jax_arrays.release_dropped() if kind == "jax" else None


def left(kind: str, outputs: Sequence[Any], weak: Collection[int]) -> list[Any]:
    """Returns outputs as arrays of a kind; see `leaving`. weak: the positions of those that are weak."""
    if kind not in FOREIGN:
        return list(outputs)
    return [leaving(kind, position in weak)(output) for position, output in enumerate(outputs)]


def dtype_leaving(kind: str, dtype: DType) -> Any:
    """Returns the NumPy dtype that arrays of a dtype have once they leave as arrays of a kind."""
    if kind != "jax":
        return dtype.numpy
    import jax

    return jax.dtypes.canonicalize_dtype(dtype.numpy)


def hold(kind: str | None, arguments: Sequence[Any]) -> None:
    """Keeps the arguments of a call alive until its kernels have run, if their library would free them earlier.

    JAX frees buffers in the order of its own stream. CuPy and PyTorch free them in the order of the stream that the
    call runs on, so their arrays need no such protection.
    """
    if kind == "jax":
        cuda_arrays.hold_until_done([array for array in arguments if cuda_arrays.is_array(array)])


def _return_unchanged(array: Any) -> Any:
    return array


def _from_jax(array: Any) -> Any:
    return jax_arrays.entered(array) if kind_of(array) == "jax" else array


def _from_torch(tensor: Any) -> Any:
    return torch_arrays.entered(tensor) if kind_of(tensor) == "torch" else tensor
