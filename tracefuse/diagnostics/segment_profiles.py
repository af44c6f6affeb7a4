"""Measurements of the segments of one call: time, bytes and operations, and the limits of the device."""

from __future__ import annotations

from segments.lazy_dataclasses import dataclass
from tracefuse.partition import segment_table


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """The measurements of one segment.

    name: its template and position. time_ms: milliseconds. bytes: those that it reads and writes, every tensor of its
    interface once. copy_time_ms: the time of a copy that reads and writes as many. operations: the arithmetic
    operations of its ops, as written.
    """

    name: str
    time_ms: float
    bytes: int
    copy_time_ms: float
    operations: int = 0

    @property
    def gigabytes_per_second(self) -> float:
        return self.bytes / self.time_ms / 1e6 if self.time_ms else 0.0

    @property
    def gigaflops_per_second(self) -> float:
        """Operations in units of 1e9 a second."""
        return self.operations / self.time_ms / 1e6 if self.time_ms else 0.0

    @property
    def fraction_of_copy(self) -> float:
        """The speed of the segment over that of a copy; 0 for a segment that moves no bytes."""
        return self.copy_time_ms / self.time_ms if self.time_ms else 0.0


@dataclass(frozen=True, slots=True)
class FusionProfile:
    """The measurements of one call. fusion_id: the number of the definition. kernel_profiles: one for each segment."""

    fusion_id: int
    kernel_profiles: tuple[KernelProfile, ...]

    @property
    def segments(self) -> int:
        """The number of segments."""
        return len(self.kernel_profiles)

    @property
    def kernel_time_ms(self) -> float:
        """The time of all segments, in milliseconds."""
        return sum(kernel.time_ms for kernel in self.kernel_profiles)

    def __str__(self) -> str:
        rows = [
            [k.name, f"{1e3 * k.time_ms:.1f} us", segment_table.bytes_text(k.bytes),
             f"{k.gigabytes_per_second:.1f} GB/s", f"{k.fraction_of_copy:.2f}"]
            for k in self.kernel_profiles
        ]  # fmt: skip
        return segment_table.table(["segment", "time", "bytes", "speed", "fraction of a copy"], rows)

    def _repr_html_(self) -> str:
        return segment_table.html_of(self)


@dataclass(frozen=True, slots=True)
class Roofline:
    """A profile beside the two limits of its device.

    profile: of the segments. copy_rate: bytes a second of a large copy, read and written. product_rate: operations a
    second of a large float32 matrix product.
    """

    profile: FusionProfile
    copy_rate: float
    product_rate: float

    def least_ms(self, position: int) -> float:
        """Returns the milliseconds that a segment takes at least, by the nearer of the two limits."""
        kernel = self.profile.kernel_profiles[position]
        return 1e3 * max(kernel.bytes / self.copy_rate, kernel.operations / self.product_rate)
