"""Measured tilings on disk: for each kernel, device and size class, the microseconds of each tiling that was measured.

A record is found by the kernels of the model's choice, so that equal segments of all programs share it, and by the
chip, its number of workers and the guarded size classes. It is a file of the cache of compiled kernels: written at
once, read after a check of owner and checksum, and evicted like them. Its content is a JSON object, which nothing
executes.

Must not know: sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from segments.lazy_dataclasses import dataclass
from tracefuse.kernel.cache.disk_cache import DiskCache, hashed
from tracefuse.schedule.cost import Rates
from tracefuse.schedule.launch_spec import Lowered
from tracefuse.schedule.tiling_choice import PricedTiling
from tracefuse.schedule.tilings import Tiling


@dataclass(frozen=True, slots=True)
class TuningRecords:
    """The records of one folder. any_order: tilings may change the order of reductions."""

    disk: DiskCache
    rates: Rates
    any_order: bool

    def key(self, kernels: Sequence[str], lowered: Lowered) -> str:
        """Returns the key of a segment. kernels: what identifies its kernels under the model's choice."""
        chip = (self.rates.name, str(self.rates.workers), str(self.any_order))
        return hashed("tuned", (*chip, *map(str, lowered.guards), *kernels))

    def load(self, key: str, offered: Sequence[PricedTiling]) -> Mapping[Tiling, float] | None:
        """Returns the microseconds of the offered tilings that were measured; None without a record that fits."""
        content = self.disk.load(key)
        if content is None:
            return None
        try:
            known = json.loads(content)
            times = {
                priced.tiling: float(known[str(priced.tiling)]) for priced in offered if str(priced.tiling) in known
            }
        except (ValueError, TypeError) as error:
            self.disk.discard(key, f"holds no measured tilings: {error}")
            return None
        return times or None

    def store(self, key: str, times: Mapping[Tiling, float]) -> None:
        """Stores the microseconds of the tilings of a segment."""
        self.disk.store(key, json.dumps({str(tiling): time for tiling, time in times.items()}).encode())
