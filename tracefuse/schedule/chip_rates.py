"""The constants of the cost model by chip model: one file each in `chips/`.

`tests/bench/calibrate.py` measures a CPU and writes its file. A CPU without a file has the constants of `generic`.

Must not know: kernels, targets, sizes.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from tracefuse.caches import memoized
from tracefuse.schedule.cost import Rates, rates_from

CHIPS = Path(__file__).parent / "chips"

GENERIC = "generic"


@memoized("the constants of a chip model", key="name, workers, other name", most=64, clears=False)
def rates_of(name: str, workers: int, otherwise: str = GENERIC) -> Rates:
    """Returns the constants of a chip model, by the name of its file, for a number of workers.

    otherwise: the file of a model without one.
    """
    path = CHIPS / f"{name}.toml"
    if not path.is_file():
        path = CHIPS / f"{otherwise}.toml"
    return rates_from(tomllib.loads(path.read_text()), workers)
