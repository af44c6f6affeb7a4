"""Stand-ins for arrays, of which only the shape and the dtype are known."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tracefuse.dtypes import dtype_of
from tracefuse.errors import ShapeError, UnsupportedError, shown

FOREIGN = ("jax", "torch")
"""The libraries whose arrays share memory through DLPack."""


@dataclass(frozen=True)
class ShapeDtype:
    """A stand-in for an array where no data is needed, as in `explain`, `segments`, `definition` and `trace`.

    shape: a tuple of sizes, or one size. dtype: anything that NumPy takes as a dtype. library: "numpy", "jax" or
    "torch", for an array of that library on the host; None: as the arrays beside it. A jax.ShapeDtypeStruct is taken
    as a stand-in for an array of JAX. Raises ShapeError for a shape that is not made of integers from 0 to 2**63 - 1,
    DtypeError for an unsupported dtype, UnsupportedError for another library.
    """

    shape: tuple[int, ...]
    dtype: Any
    library: str | None = field(default=None, repr=False, kw_only=True)
    pytree_leaf: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.library not in (None, "numpy", *FOREIGN):
            raise UnsupportedError(
                f"ShapeDtype: library cannot be {shown(self.library)}", hint="use 'numpy', 'jax', 'torch' or None"
            )
        sizes: Any = self.shape
        try:
            shape = tuple(map(operator.index, sizes if isinstance(sizes, (tuple, list)) else (sizes,)))
        except TypeError:
            raise ShapeError(f"ShapeDtype: shape cannot be {shown(sizes)}", hint="give a tuple of integers") from None
        for extent in shape:
            if not 0 <= extent < 2**63:
                raise ShapeError(f"ShapeDtype: shape cannot hold {shown(extent)}", hint="sizes are 0 to 2**63 - 1")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype_of(self.dtype).numpy)

    @property
    def has_elements(self) -> bool:
        """Whether there are elements behind it."""
        return False

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes, as of a C-contiguous array."""
        return tuple(self.dtype.itemsize * math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))
