"""Transposes of Fourier transforms, and of cosine and sine transforms.

That of a Fourier transform is the transform itself, since its matrix is symmetric, cut or padded to the operand; that
of an orthogonal transform is its inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracefuse.ir.derivatives import Application
from tracefuse.ir.extents import Extent
from tracefuse.ir.fusion import Shape

Cotangents = Sequence[Any]

_REVERSED = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}
"""The normalization of the forward transform with the factor of an inverse one."""


def _axes(node: Application) -> list[int]:
    """The transformed axes, in their order."""
    rank = len(node.shapes[0])
    if "axis" in node.attributes:
        return [node.attributes["axis"] % rank]
    axes, lengths = node.attributes["axes"], node.attributes["s"]
    if axes is None:
        axes = range(rank) if lengths is None else range(rank - len(lengths), rank)
    return [axis % rank for axis in axes]


def _resized(node: Application, value: Any, shape: Shape) -> Any:
    """Cuts the end of each axis, or pads it with zeros."""
    widths = tuple(width for length, extent in zip(value.extents, shape, strict=True) for width in (0, extent - length))
    return value if all(width == 0 for width in widths) else node.emit("pad", value, pad_widths=widths, value=0)


def _transformed(node: Application, value: Any, name: str, axes: Sequence[int], norm: Any) -> Any:
    if len(axes) == 1 and "axis" in node.attributes:
        return node.emit(name, value, n=None, axis=axes[0], norm=norm)
    return node.emit(f"{name}n", value, s=None, axes=tuple(axes), norm=norm)


def complex_transform(name: str) -> Any:
    """The transpose of fft or ifft along one or more axes."""

    def transpose(node: Application, cotangents: Cotangents) -> Cotangents:
        result = _transformed(node, cotangents[0], name, _axes(node), node.attributes["norm"])
        return (_resized(node, result, node.shapes[0]),)

    return transpose


def _length(node: Application, axis: int) -> Extent:
    """The transformed length of the last axis."""
    length: Extent | None = node.attributes["n"] if "n" in node.attributes else (node.attributes["s"] or (None,))[-1]
    return node.shapes[0][axis] if length is None or length == -1 else length


def real_to_complex(node: Application, cotangents: Cotangents) -> Cotangents:
    """The frequencies that rfft leaves out have no cotangent."""
    axes = _axes(node)
    shape = list(node.result_shapes[0])
    shape[axes[-1]] = _length(node, axes[-1])
    result = _transformed(node, _resized(node, cotangents[0], tuple(shape)), "fft", axes, node.attributes["norm"])
    return (_resized(node, node.emit("real", result), node.shapes[0]),)


def complex_to_real(node: Application, cotangents: Cotangents) -> Cotangents:
    """Every frequency represents itself and its conjugate, but the first, and the last of an even length."""
    axes, shape = _axes(node), node.result_shapes[0]
    last = axes[-1]
    result = _transformed(node, cotangents[0], "rfft", axes, _REVERSED[node.attributes["norm"]])
    line = node.emit("iota", 0, 1, length=result.extents[last])
    is_single = (line == 0) | (line * 2 == node.emit("extent", value=shape[last]))
    count = node.emit("where", is_single, 1.0, 2.0)
    count = node.emit("broadcast", count, is_broadcast_dim=tuple(k != last for k in range(len(shape))))
    weighted = node.emit("conj", result * count.astype(cotangents[0].value.dtype))
    return (_resized(node, weighted, node.shapes[0]),)


def by_inverse(inverse: str, node: Application, cotangents: Sequence[Any]) -> Cotangents:
    """The inverse of a cosine or sine transform, an op by name, along as many elements as the operand has."""
    lengths = node.attributes.get("n", node.attributes.get("s"))
    is_orthogonal = node.attributes["norm"] == "ortho" and node.attributes["orthogonalize"] in (None, True)
    node.require(is_orthogonal and lengths is None, "such arguments", "pass norm='ortho', and neither n nor s")
    return (node.emit(inverse, cotangents[0], **node.attributes),)
