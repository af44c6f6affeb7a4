"""Element types of PyTorch and of Python as nvFuser names them."""

from __future__ import annotations

from typing import Any

from tracefuse.dtypes import DataType, data_type_of, dtype_of
from tracefuse.errors import UnsupportedError, shown

_PYTHON_TYPES = {
    bool: DataType.Bool,
    int: DataType.Int,
    float: DataType.Double,
    complex: DataType.ComplexDouble,
}


def torch_dtype_to_nvfuser_dtype(dtype: Any) -> DataType:
    """Returns the DataType of a torch.dtype, of bool, int, float or complex, or of anything that NumPy takes.

    Raises UnsupportedError for the types of 8 and 4 bits, DtypeError for any other value.
    """
    if isinstance(dtype, type) and dtype in _PYTHON_TYPES:
        return _PYTHON_TYPES[dtype]
    name = str(dtype)
    if name.startswith(("torch.float8", "torch.float4")):
        raise UnsupportedError(f"{shown(dtype)} has no DataType", hint="use torch.bfloat16 or torch.float16")
    return data_type_of(dtype_of(name.removeprefix("torch.") if name.startswith("torch.") else dtype))


def python_scalar_to_nvfuser_dtype(a: bool | int | float | complex) -> DataType:
    """Returns the DataType of a Python number."""
    return torch_dtype_to_nvfuser_dtype(type(a))
