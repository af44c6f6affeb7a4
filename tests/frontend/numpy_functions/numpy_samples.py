"""At least one call of each NumPy function that records, for the coverage page and its test.

`NAMES` are arrays by name; each sample is an expression over them, with the module of np.linalg's and np.fft's.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

X = np.linspace(-2, 3, 12).reshape(3, 4).astype(np.float32)
N = X.astype(np.float64)
N[0, 1] = N[2, 2] = np.nan
NAMES: dict[str, Any] = {
    "X": X,
    "D": np.linspace(-3, 4, 12).reshape(3, 4) ** 3 / 7,
    "V": np.array([0.5, -1.0, 2.0, 3.0], np.float32),
    "W": np.array([1.5, 0.25, -2.0, 4.0, 0.0, 1.0, 3.5]),
    "S": np.array([-1.0, 0.0, 0.0, 1.5, 2.0, 7.0]),
    "I": np.arange(-6, 6).reshape(3, 4),
    "J": np.array([3, 0, 2, 2, 1]),
    "U": np.array([[7, 200, 0], [1, 33, 255]], np.uint8),
    "B": np.arange(12).reshape(3, 4) % 3 == 0,
    "N": N,
    "P": np.array([[4.0, 1.0, 0.5], [1.0, 3.0, -1.0], [0.5, -1.0, 2.0]]),
    "Q": np.arange(9.0).reshape(3, 3) / 4 - 1,
    "A": np.arange(24.0, dtype=np.float32).reshape(2, 3, 4) - 7,
    "Z": (np.linspace(-2, 3, 12) + 1j * np.linspace(1, -2, 12)).reshape(3, 4),
    "C": (np.linspace(-2, 3, 6) + 1j * np.linspace(1, -2, 6)).astype(np.complex64),
    "R": np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e200, -3.5, 5e-324]),
}

SAMPLES: dict[str, list[str]] = {}


def _read(text: str, where: str) -> None:
    for line in text.strip().splitlines():
        name, _, arguments = line.strip().partition(": ")
        for one in arguments.split(" | "):
            call = one if one.startswith("=") else f"={where}{name}({one})"
            SAMPLES.setdefault(f"{where}{name}".removeprefix("np."), []).append(call[1:].strip())


_read(
    """
argwhere: X > 0 | V | I % 3
flatnonzero: X > 0 | I % 2
intersect1d: J, I % 5 | J, I % 5, return_indices=True | W, S
nonzero: X > 0 | J | Z
polydiv: W, V | Q[2], V[2:]
polymul: V, W | J, J
roots: W | V
setdiff1d: J, I % 2 | W, S
setxor1d: J, I % 4 | W, S
trim_zeros: J % 3 | W[1:5], 'b' | S, trim='f'
union1d: J, I % 4 | W, S
unique: J | I % 4, return_counts=True | N, equal_nan=False | U % 2, True, True, True | I % 2, axis=0 | N
unique_all: I % 4 | W
unique_counts: J | N
unique_inverse: I % 5
unique_values: J
abs: X | I | Z
absolute: X
acos: V / 4
acosh: V + 5
add: X, V | I, 2 | X, I | =np.add.reduce(X, axis=1) | =np.add.accumulate(X, 1) | =np.add.outer(V, V)
add: X, V, dtype=float
arccos: V / 4
arccosh: V + 5
arcsin: V / 4
arcsinh: X
arctan: X
arctan2: X, V
arctanh: V / 4
asin: V / 4
asinh: X
atan: X
atan2: X, V
atanh: V / 4
bitwise_and: I, 3
bitwise_count: I | U | I.astype(np.int8) | -I
bitwise_invert: I
bitwise_left_shift: I, 2
bitwise_not: I
bitwise_or: I, 8
bitwise_right_shift: I, 1
bitwise_xor: I, 5
cbrt: X | D * 1e60 | R | U
ceil: X
conj: X | Z
conjugate: X
copysign: X, -V
cos: X
cosh: X
deg2rad: X
degrees: X
divide: X, V | I, 4
divmod: X, 0.75 | I, 4
equal: X, V | X, None | None, X
exp: X | Z
exp2: X
expm1: X
fabs: X
float_power: V + 2, 2
floor: X
floor_divide: I, 4 | X, 0.7
fmax: N, 1.0
fmin: N, 1.0
fmod: X, 0.7
frexp: X | D | R | I
gcd: I, 4
greater: X, V
greater_equal: X, V
heaviside: X, 0.5 | N, 0.5 | I, 2
hypot: X, V | R, 3.0 | D * 1e200, 1e200 | I, 2
invert: I
isfinite: R
isinf: R
isnan: R
ldexp: X, I | D, 3 | R, -1060
lcm: I, 4 | U, U | I, -I
left_shift: I, 2
less: X, V
less_equal: X, V
log: V + 2
log10: V + 2
log1p: V + 2
log2: V + 2
logaddexp: X, V | R, 0.5 | R, R | =np.logaddexp.reduce(D, axis=1) | =np.logaddexp.reduce(X, axis=0, keepdims=True)
logaddexp2: X, V | R, 0.5 | =np.logaddexp2.reduce(D, axis=-1)
logical_and: I, B | =np.logical_and.reduce(B, axis=0) | =np.logical_and.accumulate(B, axis=0)
logical_not: I
logical_or: I, B | =np.logical_or.accumulate(I, axis=1)
logical_xor: I, B | =np.logical_xor.reduce(B, axis=1) | =np.logical_xor.reduce(I, axis=0)
matmul: X, V | X, X.T
matvec: X, V
maximum: X, V | =np.maximum.reduce(X, axis=None) | =np.maximum.accumulate(X, axis=0)
minimum: X, V
mod: I, 4
modf: X | D | R | I
multiply: X, V | =np.multiply.outer(I, V)
negative: X
nextafter: X, 9.0
not_equal: X, V | X, None
positive: X
pow: V + 2, 2.5
power: X, 2 | V + 2, V | I, 3
rad2deg: X
radians: X
reciprocal: V
remainder: I, 4
right_shift: I, 1
rint: X
sign: X | I | Z
signbit: R
sin: X
sinh: X
spacing: D | R | X
sqrt: V + 2 | Z
square: X | I | Z
subtract: X, V
tan: X
tanh: X
true_divide: X, V
trunc: X
vecdot: X, V | X, X, axis=0 | Z, Z
vecmat: V, X.T
""",
    "np.",
)
_read(
    """
all: B, 0
allclose: X, X + 1e-9
amax: X, 0
amin: X, 0
angle: X | X, deg=True | Z | C, deg=True
any: B
append: X, I | X, X, 0
apply_along_axis: np.sort, 1, A | np.ptp, 0, X
apply_over_axes: np.sum, A, [0, 2]
argmax: X, 1 | N | A, keepdims=True | I, -2 | B, 0 | R | U, axis=0, keepdims=True
argmin: X, 1 | N | A, 1 | B | R | R[3:5]
argpartition: S, 3
argsort: X, 0 | J, kind="stable" | I % 3, axis=None, stable=True
around: X, 1
array_equal: X, X | X, V | N, N, equal_nan=True | X, None
array_equiv: X, X | X, V | X, None
array_split: X, 3, 1
astype: X, int
atleast_1d: X
atleast_2d: V
atleast_3d: V | X | A | V, X
average: C, None, C * C
average: X, 0 | X, 1, V | A, (2, 1), np.ones((4, 3)) + X.T | X, None, X * X | I, 1, returned=True | I, 0, I * I, True
block: [[X, X], [V, V]] | [V, 1.0] | X | [[V], [V]]
bincount: J | J, minlength=5 | J, V[[0, 1, 2, 3, 0]], minlength=6
broadcast_arrays: X, V
broadcast_to: V, (3, 4)
can_cast: X, np.float16
choose: J % 3, [J, J * 2, 9] | J, [S[:5], 2.5, J], mode='clip' | J, [J, J + 1], mode='wrap'
clip: X, -1, 1
column_stack: (V, V)
common_type: X, D
compress: X[0] > -1, X, 1 | [True, False, True], X, 0 | [0, 1, 1], V
concat: (X, X), axis=1
concatenate: (X, I)
convolve: W, V | V, W | W, V, 'same' | V, W, 'same' | W, V, 'valid' | J, J | S, S, 'same' | Z[0], C
copy: X
corrcoef: Z | D | D, rowvar=False | W, W * W
correlate: W, V | W, V, 'full' | W, V, 'same' | V, W, 'full' | S, S[1:], 'same' | Z[0], C, 'full'
count_nonzero: I, axis=0
cov: D, fweights=[1, 2, 0, 3] | D, aweights=V * V | D, ddof=2, fweights=[1, 2, 1, 3], aweights=V * V | D | X
cov: D, rowvar=False, bias=True | W | V, V * V | Z
cross: Q, Q[::-1] + 1 | Q, Q[0] | Q, Q * Q, axis=0
cumprod: X, 1
cumsum: X | Z, 1
cumulative_prod: V | X, axis=0, include_initial=True
cumulative_sum: X, axis=1 | I, axis=-1, include_initial=True
delete: V, V > 0 | X, J[:2], 1 | X, 1, 0 | X, [0, 2], axis=1 | W, slice(1, 5, 2)
diag: V | X | V, -2 | V, 1
diag_indices_from: Q
diagflat: X, 1
diagonal: X, 1
diff: X | X, 2, 0 | V, prepend=0 | X, append=X[:, :2] | X, axis=0, prepend=1.0, append=2.0 | Z
digitize: X, [-1.0, 0.5, 2] | X, [2, 0.5, -1.0], True | W, np.array([0.25, 1.5]), right=True
dot: X, V | Z, Z.T
dsplit: A, 2 | A, [1, 3]
dstack: (X, X) | (V, V)
ediff1d: J | W, to_begin=9.0, to_end=[1.0, 2.0]
einsum: 'ij,j->i', X, V
empty_like: =np.empty_like(X).shape
expand_dims: X, 1
extract: X > 0, X | np.array([True, False, True, True]), V
fix: X
flip: X, 0
fliplr: X
flipud: X
full_like: X, 2.5 | X, None | B, None
geomspace: V + 2, 9.0, 5 | -1.0 - S * S, -8.0, num=4 | V + 2, 9.0, 5, endpoint=False, axis=1
gradient: W | D | D, axis=1 | W, 0.5, edge_order=2 | D, 2.0, axis=0 | W, np.array([0, 1, 3, 4, 7, 8, 9.5]) | I, axis=0
gradient: C
histogram: W | W, 5, range=(-3, 5) | X, [-2.0, 0, 0.5, 3] | W, 4, density=True
histogram2d: W, W * W, 3 | W, W * 2, bins=[[-2, 0, 4], [-4, 1, 8]], weights=W | X[0], V, density=True
histogram_bin_edges: W, 4 | S, 3, (0, 6)
histogramdd: X, 2 | (W, W), bins=(2, [-2.0, 0.0, 4.0])
hsplit: X, [1, 3]
hstack: (X, X)
imag: X | Z
inner: V, V
insert: W, 1, 5.0 | X, 1, V, axis=0 | X, [0, 2], 9.0, axis=1 | X, 2, 7.0, axis=1 | W, [1, 1, 3], [7.0, 8.0, 9.0]
interp: X, S, S * S | V, S, S * 1j, period=5.0 | W, [0.0, 1.0, 3.0], [1.0, 4.0, 2.0], left=-5.0
interp: N, np.array([0.0, 2.0]), np.array([3.0, 5.0])
isclose: X, X + 1e-9 | Z, Z + 1e-9
i0: V | X
iscomplex: X | Z | C
iscomplexobj: X | Z
isin: I, [1, 2, -3] | X, V, invert=True | X, None | I, 'a', invert=True
isneginf: R
isposinf: R
isreal: X
isrealobj: X
ix_: J, J[:2]
kron: X, V | V, X | Q, X | I, J | Z, C
lexsort: (J, J % 2) | (X, -X)
linspace: V, 9.0, 5 | S, 2.0, num=4, axis=1 | V, 9.0, 5, endpoint=False | X, X * X, 3, retstep=True | C, C * C, 3
linspace: W, 9, 4, dtype=int
logspace: V, 2.0, 5 | V, 2.0, 4, base=2.0
matrix_transpose: X
max: X, 1
may_share_memory: X, X * 2 | X, X.T | X, [1, 2]
mean: X, 1 | X, 0, where=B | I, where=B | A, (0, 2), where=A > 1 | X, 1, keepdims=True, where=V > 0 | Z, 1
mean: X, dtype=float, where=B
median: X | D, 0 | X, 1, keepdims=True | N, 1 | I, 1 | A, (0, 2) | Z | C
meshgrid: V, S | V, S, J, indexing='ij' | V, S, sparse=True | V
min: X
min_scalar_type: X
moveaxis: A, 0, -1
nan_to_num: N
nanargmax: N, 1
nanargmin: N, 0
nancumprod: N, 1
nancumsum: N
nanmax: N, 1 | I | N
nanmean: N | N, 0 | N, 1, keepdims=True | I | Z
nanmedian: N | N, 0 | N, 1, keepdims=True | I, 1
nanmin: N, 0, keepdims=True
nanpercentile: N, 30 | N, [10.0, 50.0], axis=1
nanprod: N, 0
nanquantile: N, 0.3 | N, [0.1, 0.5, 1.0], axis=0
nanstd: N, 0 | N, ddof=1 | Z, 1
nansum: N | N, 1 | I, 0 | Z
nanvar: N | N, 1, ddof=1 | X | I | Z | C
ndim: X
ones_like: X
outer: V, S
packbits: B | B, axis=1 | B, axis=0, bitorder='little'
pad: X, 1 | X, (1, 2), 'edge' | X, 5, 'reflect' | X, (2, 7), mode='symmetric' | X, 3, mode='wrap'
pad: W, (2, 1), constant_values=(5, 7)
partition: S, 3
percentile: X, 30 | D, [25, 75] | N, 40, 1 | I, 33 | D, 75, axis=0, keepdims=True
permute_dims: X, (1, 0)
piecewise: X, [X < 0, X > 1], [-1.0, lambda v: v * v, 5.0] | W, W > 0, [np.exp, 2.0]
piecewise: W, [W < 0], [lambda v, k: v * k], 3.0
poly: V
polyadd: V, S
polyder: V | S, 2
polyint: V | S, 2, k=[1.0, 2.0]
polyfit: W, W * W, 2 | V, X.T, 1 | V, V, 1, w=V
polysub: S, V
polyval: V, X | [1.0, 2.0, 3.0], X | V, 2.0 | C, Z
prod: X, 0 | Z, 0
ptp: X
quantile: W, 0.3, weights=W * W, method="inverted_cdf" | W, np.array([0.25, 0.5]) | X, 0.4 | D, [0.25, 0.5], axis=1
quantile: D, 0.6, method='lower' | D, 0.6, method='higher', axis=0
quantile: W, 0.35, method='nearest' | W, 0.35, method='midpoint' | D, 0.6, method='hazen'
quantile: D, 0.2, method='median_unbiased' | N, 0.5, axis=0
ravel: X
ravel_multi_index: (J, J % 2), (4, 2) | (J, J), (3, 2), mode='wrap' | (J, J), (3, 2), mode='clip'
real: X | Z
real_if_close: X
repeat: V, abs(I[0]) | X, J[:3], axis=0 | X, 2, 1 | V, [1, 0, 3, 2]
reshape: X, (4, 3) | X, None | X, range(12, 13)
resize: X, (5, 4) | V, 3
result_type: X, I
roll: X, 1 | X, range(1, 3), range(2) | X, np.array([1, 2]), (0, 1)
rollaxis: A, 2
rot90: X | X, 2 | A, -1, (1, 2)
round: X | X, 2 | D * 100, -1 | I
searchsorted: S, X | W, X, sorter=np.argsort(W) | S, W, side='right' | [0.0, 1.0], X | S, N | S, 2.0
select: [X < 0, X > 1], [X, X * X], 7 | [B, I > 2], [I, I * 2.0]
shape: X
shares_memory: X, X[1:] | X, X + 1 | X, 2.0
sinc: X | I
size: X
sort: X, 0 | Z
sort_complex: J | W
split: X, 2, 1
squeeze: X[None]
stack: (X, X), 1
std: X | X, 1, ddof=1, where=B | I, 0, mean=np.mean(I, 0, keepdims=True) | D, where=X > 0
sum: X, 1
swapaxes: X, 0, 1
take: X, [2, 0], 1 | X, [7, -1, 13], mode='wrap' | X, [5, -2], 0, mode='clip'
take_along_axis: X, I % 3, 0
tensordot: X, X.T, 1
tile: V, 2 | V, range(1, 3) | V, np.array([2, 1])
trace: Q
transpose: X
trapezoid: X | D, dx=0.5, axis=0 | W, [0, 1, 3, 4, 5, 7, 9] | D, X * 2 | Z
tril: X
tril_indices_from: X, 1
triu: X
triu_indices_from: X
unpackbits: U | U, axis=1 | U, axis=0, bitorder='little' | U, count=9
unravel_index: J, (3, 2)
unstack: X
unwrap: D * 3 | W * 5, 4.0 | J * 3, period=5 | J * 3, period=4 | W
vander: V | J, 3 | V, 3, increasing=True | C
var: X, 1 | X, 0, where=B | I, where=B | A, (0, 2), ddof=2, where=A > 1
var: A, 1, mean=np.ones((2, 1, 4)) | D, 1, correction=1, where=V > 0
vdot: V, V | Z, Z
vsplit: X, 3
vstack: (X, V)
where: X > 0 | X > 0, X, V
zeros_like: X
""",
    "np.",
)
_read(
    """
cholesky: P
cond: Q + P | D | P, 1
cross: Q, Q[::-1] + 1
det: P | Z[:, :3]
diagonal: A
eig: Z[:, :3]
eigh: P
eigvals: Z[:, :3]
eigvalsh: P, 'U'
inv: P | C[:4].reshape(2, 2)
lstsq: D.T, V | X, X[:, 0]
matmul: X, X.T
matrix_norm: D | A, ord=1 | A, ord=-np.inf, keepdims=True
matrix_power: P, -2 | Q, 5 | Q, 0 | Q, 1 | Z[:, :3], 3
matrix_rank: D | Q
matrix_transpose: A
multi_dot: [X, X.T, X, V] | [V, X.T, X, X.T, Q]
norm: D, 2 | A, "nuc", axis=(1, 2) | X | D, axis=1 | V, 1 | D, np.inf | D, -1, axis=(0, 1) | D, 3, axis=0 | V, 0
norm: W, -np.inf | Z | Z, 1 | C
norm: X, 'fro', keepdims=True | I
outer: V, V
pinv: D | X
qr: D | D, "r" | Z, mode="complete"
slogdet: P | Z[:, :3]
solve: P, D | P, D[:, 0]
svd: D | X, compute_uv=False | Z, full_matrices=False
svdvals: D
tensordot: X, X.T, axes=1
tensorinv: (X @ X.T + P).reshape(3, 3), ind=1
tensorsolve: P, D[:, 0]
trace: A
vecdot: X, X
vector_norm: D | D, axis=1, ord=1 | I
""",
    "np.linalg.",
)
_read(
    """
fft: X | W, 5 | Z, axis=0, norm='ortho'
fft2: D
fftn: A | A, s=(2, 5), axes=(0, 1)
fftshift: X | X, 1
hfft: C
ifft: W | C
ifft2: X
ifftn: A
ifftshift: W | X
ihfft: W
irfft: C | W, 9
irfft2: Z
irfftn: A, axes=(0, 1)
rfft: W | X | I, axis=0
rfft2: X
rfftn: A
""",
    "np.fft.",
)

CHANGES = {
    "copyto": ["np.copyto(t, X * 2)", "np.copyto(t, 5.0, where=B)"],
    "fill_diagonal": ["np.fill_diagonal(t, 9.0)", "np.fill_diagonal(t, [1.0, 2.0])"],
    "place": ["np.place(t, B, 5.0)"],
    "put": ["np.put(t, [0, 5, -1], [1.0, 2.0])", "np.put(t, J, 9)"],
    "put_along_axis": ["np.put_along_axis(t, I[:, :2] % 4, 9.0, 1)"],
    "putmask": ["np.putmask(t, B, 5.0)", "np.putmask(t, B, X * 2)", "np.putmask(t, B, [1.0, 2.0, 3.0])"],
    "x.sort": ["t.sort(0)"],
    "x.partition": ["t.partition(1, axis=0)"],
    "x.fill": ["t.fill(2.5)"],
    "add.at": ["np.add.at(t, [0, 2, 0], X)", "np.add.at(t, J % 3, 1.0)"],
    "subtract.at": ["np.subtract.at(t, [0, 2, 0], V)"],
}
"""Functions that change their argument: statements over a copy `t` of X."""


def used(expression: str) -> list[str]:
    """The arrays that an expression names."""
    return [name for name in NAMES if re.search(rf"(?<![\w.]){name}(?![\w(])", expression)]
