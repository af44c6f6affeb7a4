"""The inspection functions of the array API: the capabilities, devices and types of the namespace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tracefuse.errors import DtypeError, OptionError
from tracefuse.runtime.devices import arrays, cuda_arrays

API_VERSION = "2025.12"
SUPPORTED_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12", API_VERSION)
"""Versions of the standard that the namespace conforms to; a later one only adds to an earlier one."""

MOST_AXES = 64

_KINDS = {
    "bool": ("bool",),
    "signed integer": ("int8", "int16", "int32", "int64"),
    "unsigned integer": ("uint8", "uint16", "uint32", "uint64"),
    "real floating": ("float32", "float64"),
    "complex floating": ("complex64", "complex128"),
}
_KINDS["integral"] = _KINDS["signed integer"] + _KINDS["unsigned integer"]
_KINDS["numeric"] = _KINDS["integral"] + _KINDS["real floating"] + _KINDS["complex floating"]
_DEFAULTS = {"real floating": "float64", "complex floating": "complex128", "integral": "int64", "indexing": "int64"}


def check_version(api_version: str | None) -> None:
    """Raises OptionError, a ValueError, for a version of the standard that is not supported."""
    if api_version is not None and api_version not in SUPPORTED_VERSIONS:
        raise OptionError(
            f"version {api_version!r} of the array API is not supported", hint=f"use {', '.join(SUPPORTED_VERSIONS)}"
        )


class NamespaceInfo:
    """The inspection functions of the standard."""

    def capabilities(self) -> dict[str, Any]:
        """What arrays support outside of a trace: boolean indices, sizes that data decide, and the most axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": MOST_AXES}

    def default_device(self) -> str:
        """The device of new arrays."""
        return "cpu"

    def devices(self) -> list[str]:
        """The names of the devices that `device=` accepts."""
        count = 0 if cuda_arrays.unavailable() is not None else cuda_arrays.namespace().cuda.runtime.getDeviceCount()
        return ["cpu", *(arrays.device_name(number) for number in range(count))]

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        """The types of new arrays, by kind. Raises DeviceError for an unknown device."""
        arrays.device_number(device)
        return {kind: np.dtype(name) for kind, name in _DEFAULTS.items()}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        """The types of a kind, of several kinds, or all of them, by name.

        Raises DeviceError for an unknown device, DtypeError for an unknown kind.
        """
        arrays.device_number(device)
        return {name: np.dtype(name) for name in _names_of(kind)}


def _names_of(kind: Any) -> Iterable[str]:
    if kind is None:
        return (*_KINDS["bool"], *_KINDS["numeric"])
    kinds = kind if isinstance(kind, tuple) else (kind,)
    for group in kinds:
        if group not in _KINDS:
            raise DtypeError(f"unknown kind of types: {group!r}", hint=f"use one of {', '.join(map(repr, _KINDS))}")
    return dict.fromkeys(name for group in kinds for name in _KINDS[group])
