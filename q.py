import sys
import warnings

import a as A
import numpy as np

from tracefuse import fuse

name = sys.argv[1]
f, make, big = A.CASES[name]
g = fuse(f)
args = make(np.random.default_rng(0), 9)
warnings.simplefilter("always")
g(*args)
e = g.explain(*args) if len(sys.argv) > 2 else ""
print(e)
