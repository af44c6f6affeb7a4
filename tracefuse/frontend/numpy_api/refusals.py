"""Hints for NumPy functions that cannot be fused: what to write instead."""

from __future__ import annotations

OUTSIDE = "compute it outside the fused function"
_SIZE = "the size of its result depends on the data: "
_SETS = _SIZE + "call it outside the fused function, or mark elements with np.isin and np.where"
_SOLVE = "the data decide the size and the type of its result: solve outside the fused function"
_TEXT = "return the array and print it outside; repr(x) shows type and line"
_FILE = "return the array and save it outside"
_DATES = "traced arrays hold no dates; pass integers"

INSTEAD = {
    "apply_along_axis": "write the function for the whole array, with axis=",
    "argwhere": _SIZE + "use a mask in np.where(mask, x, other)",
    "array2string": _TEXT, "array_repr": _TEXT, "array_str": _TEXT, "datetime_as_string": _DATES,
    "busday_count": _DATES, "busday_offset": _DATES, "is_busday": _DATES,
    "einsum_path": "call it outside the fused function; einsum needs no path here",
    "flatnonzero": _SIZE + "use a mask in np.where(mask, x, other)",
    "nonzero": _SIZE + "use a mask in np.where(mask, x, other)",
    "intersect1d": _SETS, "setdiff1d": _SETS, "setxor1d": _SETS, "union1d": _SETS,
    "unique": _SETS, "unique_all": _SETS, "unique_counts": _SETS, "unique_inverse": _SETS, "unique_values": _SETS,
    "trim_zeros": _SIZE + "trim outside the fused function",
    "polydiv": _SIZE + "leading zeros are dropped; divide outside the fused function",
    "roots": _SOLVE,
    "polymul": _SIZE + "leading zeros are dropped; write np.convolve(a, b)",
    "may_share_memory": "traced values have no memory; results share none with arguments",
    "shares_memory": "traced values have no memory; results share none with arguments",
    "save": _FILE, "savetxt": _FILE, "savez": _FILE, "savez_compressed": _FILE,
}  # fmt: skip
"""The hint for each refused function, by name."""
