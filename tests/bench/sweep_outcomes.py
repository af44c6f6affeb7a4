"""What a sweep makes of its measurements: strata, the rule for passing, and the times of peers, kept in a file.

A draw belongs to one of three strata, which are reported apart, since other limits apply to each: `memory`, whose
arrays are at least four times the last cache; `launch`, which a copy would take less than LAUNCH_SECONDS for; and
`cache`, the rest.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from functions import geometric_mean

STRATA = ("memory", "cache", "launch")
LAUNCH_SECONDS = {"gpu": 5e-6, "cpu": 20e-6}
ROOFLINE = {"gpu": 0.92, "cpu": 0.9}
"""The fraction of the rate of a copy from which a draw passes, however fast the peers are."""

BAR = 0.9
"""The ratio to the faster compiler from which a draw passes."""


@dataclass(frozen=True)
class Outcome:
    """One draw. ratio: the faster compiler's time over tracefuse's. fraction: of the rate of a copy.

    numpy: NumPy's time over tracefuse's, on the CPU. static: the time with static sizes over the time with symbolic
    ones; None if it was not measured.
    """

    family: str
    stratum: str
    ratio: float
    fraction: float
    numpy: float | None = None
    static: float | None = None

    def passes(self, machine: str) -> bool:
        """Whether it is as fast as the peers, or as the memory allows. machine: "gpu" or "cpu"."""
        return self.ratio >= BAR or (self.stratum == "memory" and self.fraction >= ROOFLINE[machine])


def stratum_of(moved: int, cache_bytes: int, rate: float, machine: str) -> str:
    """The stratum of a draw that moves so many bytes. rate: of a copy, in bytes a second."""
    if moved >= 4 * cache_bytes:
        return "memory"
    return "launch" if moved / rate < LAUNCH_SECONDS[machine] else "cache"


def summary(outcomes: Sequence[Outcome], machine: str) -> Iterator[str]:
    """A line for each stratum and family, then one for static sizes if they were measured."""
    for stratum in STRATA:
        families = dict.fromkeys(o.family for o in outcomes if o.stratum == stratum)
        for family in families:
            own = [o for o in outcomes if (o.stratum, o.family) == (stratum, family)]
            ratios = [o.ratio for o in own]
            library = [o.numpy for o in own if o.numpy is not None]
            passed = sum(o.passes(machine) for o in own)
            yield (
                f"{stratum:7} {family:13} n {len(own):3}  mean {geometric_mean(ratios):5.2f}  "
                f"5th {float(np.percentile(ratios, 5)):5.2f}  median {statistics.median(ratios):5.2f}  "
                f"worst {min(ratios):5.2f}  of copy {statistics.median(o.fraction for o in own):4.2f}  "
                f"passed {passed}/{len(own)}" + (f"  worst to NumPy {min(library):5.2f}" if library else "")
            )
    static = [o.static for o in outcomes if o.static is not None]
    if static:
        yield (
            f"static sizes over symbolic ones: n {len(static)}  mean {geometric_mean(static):4.2f}  "
            f"5th {float(np.percentile(static, 5)):4.2f}  worst {min(static):4.2f}"
        )


class PeerTimes:
    """Seconds of peers by machine, peer, version and draw, in a JSON file that grows with each measurement."""

    def __init__(self, path: str, machine: str, versions: Mapping[str, str]) -> None:
        self._path = Path(path) if path else None
        self._machine, self._versions = machine, versions
        self._seconds: dict[str, float] = {}
        if self._path is not None and self._path.exists():
            self._seconds = json.loads(self._path.read_text())

    def _key(self, peer: str, draw: str) -> str:
        return f"{self._machine} | {peer} {self._versions[peer]} | {draw}"

    def known(self, draw: str) -> dict[str, float]:
        """The kept times of a draw, by peer."""
        keys = {peer: self._key(peer, draw) for peer in self._versions}
        return {peer: self._seconds[key] for peer, key in keys.items() if key in self._seconds}

    def keep(self, draw: str, times: Mapping[str, float]) -> None:
        """Adds the times of a draw, and writes the file."""
        self._seconds.update({self._key(peer, draw): seconds for peer, seconds in times.items()})
        if self._path is not None:
            self._path.write_text(json.dumps(self._seconds, indent=0, sort_keys=True) + "\n")
