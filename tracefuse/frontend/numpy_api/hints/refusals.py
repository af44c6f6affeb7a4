"""Hints for NumPy functions that cannot be fused: what to write instead."""

from __future__ import annotations

OUTSIDE = "compute it outside the fused function"
OF_ARRAYS = "write the function on whole arrays, with np.where for its cases"
_TEXT = "use str(x) or repr(x), or return the array and format it outside"
_FILE = "return the array and save it outside"
_DATES = "traced arrays hold no dates; pass integers"

INSTEAD = {
    "asnumpy": "return the array and call cupy.asnumpy on the result",
    "array2string": _TEXT, "array_repr": _TEXT, "array_str": _TEXT, "datetime_as_string": _DATES,
    "busday_count": _DATES, "busday_offset": _DATES, "is_busday": _DATES,
    "einsum_path": "call it outside the fused function; einsum needs no path here",
    "save": _FILE, "savetxt": _FILE, "savez": _FILE, "savez_compressed": _FILE,
}  # fmt: skip
"""The hint for each refused function, by name."""
