"""Templates of random programs that compose functions: chains of methods, factorizations, windows, functions, rows.

The placeholders are those of program_statements.py and of program_drawn_texts.py.
"""

from __future__ import annotations

from tests.random_programs.program_calls import REDUCING, UFUNCS, UNARY_UFUNCS
from tests.random_programs.program_statements import split, words

COMPOSED: list[str] = [
    *["{chain}"] * 30,
    *["np.einsum({einsum})"] * 10,
    *(f"np.{name}({{chain}})" for name in words("sum mean max min sort abs sqrt exp cumsum ravel isnan var")),
    *(f"{{chain}} {operator} {{c}}" for operator in words("+ - * / // % ** < >= == & | ^ <<")),
    *(f"{{x}} {operator} {{chain}}" for operator in words("+ - * / < ==")),
    *(f"np.{name}({{x}}, {{structure}})" for name in words("sum prod max min any all mean std var amax amin")),
    *(f"np.nan{name}({{x}}, {{structure}})" for name in words("sum prod max min mean std var")),
    *(f"{{x}}.{name}({{structure}})" for name in words("sum prod max min any all mean std var")),
    *(f"np.{name}.reduce({{x1}}, {{structure}})" for name in REDUCING),
    *(f"np.{name}({{x}}, axis={{several_axes}})" for name in words("""
        median count_nonzero flip squeeze ptp nanmedian expand_dims argmax average
    """)),
    *(f"np.{name}({{x}}, {{many_keywords}})" for name in UNARY_UFUNCS),
    *(f"np.{name}({{x}}, {{y}}, {{many_keywords}})" for name in UFUNCS),
    *split("""
        np.quantile({x}, 0.4, axis={several_axes}, keepdims=True); np.percentile({x}, [20, 60], axis={several_axes});
        np.roll({x}, (1, -1), axis=(0, -1)); np.fft.fftshift({x}, axes={several_axes}); np.linalg.norm({x2}, axis=(0,
        1)); np.linalg.norm({x2}, 'fro', axis=(-2, -1), keepdims=True); np.linalg.norm({x1}, 3, axis={axis},
        keepdims=True); np.linalg.norm({x2}, 'nuc'); np.linalg.norm({x2}, -2); np.linalg.norm({x2}, 2, axis=(0, 1));
        np.linalg.vector_norm({x}, ord=1, axis={axis}); np.linalg.vector_norm({x}, axis={several_axes}, ord=np.inf);
        np.linalg.matrix_norm({x2}, ord=1, keepdims=True); np.linalg.matrix_norm({x2}, ord='nuc');
        np.linalg.cond({x2}); np.linalg.matrix_rank({x2}); np.linalg.pinv({x2}) @ {last}; np.linalg.det({x2} @
        {last}.T); np.linalg.svdvals({x2}); np.linalg.multi_dot([{x2}, {last}.T, {last}]); np.linalg.trace({x2},
        offset={k}); np.linalg.diagonal({x2}); np.linalg.solve({x2} @ {last}.T + 40 * np.eye({last}.shape[-2]),
        {last}); np.linalg.outer({x1}.ravel(), {last}.ravel()); np.linalg.lstsq({x2}, {last}[:, 0])[0].shape;
        np.linalg.eigvalsh({x2} @ {last}.T.conj()); np.fft.fft({x1}, n=3); np.fft.fft({x1}, axis={axis},
        norm='ortho'); np.fft.ifft({x1}, 5, {axis}, 'forward'); np.fft.rfft({x1}, n=4, axis={axis});
        np.fft.irfft({x1}, n=5, norm='backward'); np.fft.hfft({x1}, 4); np.fft.fft2({x2}, s=(2, 3)); np.fft.ifftn({x},
        axes={several_axes}); np.fft.rfft2({x2}, norm='ortho'); np.fft.rfftn({x2}, axes=(1, 0)); np.fft.irfftn({x2},
        s=(2, 4), axes=(0, 1)); np.fft.irfft2({x2}, norm='forward'); np.fft.fftn({x}, norm='ortho');
        np.fft.ifft2({x2}, axes=(-1, 0)); np.fft.ihfft({x1}); np.pad({x1}, {k}, {pad_mode}); np.pad({x1}, (1, 2),
        {pad_mode}); np.pad({x2}, ((1, 0), (0, 2)), {pad_mode}); np.sort({x1}, kind={sort_kind}); np.sort({x1},
        {axis}, kind={sort_kind}); np.searchsorted([-1, 0, 2], {x}, 'right'); np.searchsorted(np.sort({x1}.ravel()),
        {c}, side='left'); np.partition({x1}, 0, kind='introselect')[..., 0]; np.convolve({x1}, [1, 0, -1], 'full');
        np.correlate({x1}.ravel(), [1, 2], mode='full'); np.take({x1}, [0, 7], mode='wrap', axis={axis}); np.clip({x},
        {c}, {c}, casting='unsafe', out=np.zeros({last}.shape, {dt})); np.lib.stride_tricks.sliding_window_view({x1},
        2, axis={axis}).sum(-1); np.lib.stride_tricks.sliding_window_view({x2}, (2, 2), axis=(0, 1)).max(axis=(-1,
        -2)); np.lib.stride_tricks.sliding_window_view({x1}.ravel(), 3)[::2].mean(1);
        np.lib.stride_tricks.sliding_window_view({x2}, (1, 2), (0, 1)) * {c}; np.lib.stride_tricks.as_strided(({x1} +
        0).ravel(), ({last}.size, 1)) * 2; np.lib.stride_tricks.broadcast_to({x}, (2, *{last}.shape)).sum(0);
        np.broadcast_to({x}, {last}.shape)[::-1]; np.array([v.sum() for v in {x1}]); np.stack([v * k for k, v in
        enumerate({x1})]); [v.max() for v in {x2}]; np.array([v[0] for v in {x2}]); np.array([v for v in {x1}.T]);
        sum(v.sum() for v in {x1}); [u + 1 for u in {x1}[:3]]; np.concatenate([v.ravel() for v in {x2}]);
        np.array([{c} if v else 0 for v in ({x1} > 0).ravel()[:4]]); max([v.sum() for v in {x1}]); {c} in [1, 2] and
        {x}; np.vstack([v for v in {x1}]); np.hstack([v[:1] for v in {x2}]); np.full_like({x}, {c},
        dtype={type_name}); {x}.astype({type_name}); np.array({x}, {type_name}); {x}.view({type_name}).shape;
        np.add({x}.T, {last}.T, order='F'); np.multiply({x}[::-1], {last}, order='C') if {last}.ndim else {last};
        np.subtract({x1}[::-1], {last}[::-1], out=np.zeros({last}.shape, complex)[::-1]); np.where({mask}, {last}.T.T,
        {c}); np.argsort({x1}.T, axis=0, kind='stable'); np.where({x} > {c}, {chain}, {c}); np.dot({x2}.T, {last}[:,
        ::-1]); np.zeros((0, 3)) + {c}; np.zeros((0,)).sum() * {x}; {x}[:0].sum() if {last}.ndim else {last};
        {x1}[:0].mean(0); {x1}[:0].max(initial={c}); np.concatenate([{x1}[:0], {last}]); np.stack([{x1}[:0],
        {last}[:0]]); {x1}[:0].cumsum(); np.dot({x1}[:0], {last}[:0].T); {x2}[:, :0] @ {last}[:, :0].T;
        {x1}[:0].argmax() if {last}.size > 600 else {last}; {x1}[:1] * {last}; {x1}[:1].T + {last}[:1]; {x2}[:, :1] -
        {last}[:1]; np.outer({x1}[:1], {last}); {x1}[:1].squeeze(); np.ptp({x}, axis={several_axes}, keepdims=True);
        np.logical_xor.reduce({x2}, axis=(0, 1)); np.trapezoid({x1}, {last}, axis={axis}); np.diff({x1}, 2, {axis});
        np.unwrap({chain}); np.nan_to_num({chain}, nan={c}); np.array_equal({chain}, {x}); np.allclose({chain}, {c});
        np.histogram({chain}, 3)[1]; np.interp({chain}, [0, 1], [1, 2]); np.apply_along_axis(lambda v: v.sum(), 0,
        {x1}); np.apply_along_axis(lambda v: v[::-1] * 2, -1, {x1}); np.piecewise({x}, [{last} > {c}, {last} < 0],
        [{c}, {c}, {c}]); np.select([{mask}, {last} == 0], [{chain}, {c}], {c}); np.choose(({x} > 0) * 1, [{c},
        {chain}]); np.meshgrid({x1}.ravel(), {chain}.ravel())[0]; np.kron({x1}, {chain}); np.tensordot({x}, {last},
        axes=0); np.inner({chain}, {c}); np.cross({x1}[:3], [1, 0, 2]);
    """),
]  # fmt: skip
"""Values of a new name."""

WRITES_THROUGH_VIEWS: list[str] = [
    *(f"{{w1}}.T[...] {operator} {{v}}" for operator in words("+= -= *= /= //= %= |= &= **= <<=")),
    *(f"{{w1}}[{{key}}].T[...] {operator} {{v}}" for operator in ("+=", "=", "*=")),
    *(f"{{w1}}.reshape(-1)[::2] {operator} {{c}}" for operator in ("=", "-=", "/=")),
    *(f"{{w1}}[::-1][{{key}}] {operator} {{v}}" for operator in ("=", "+=", "//=")),
    *(f"np.{name}({{w}}, {{y}}, {{last}}, casting='unsafe')" for name in UFUNCS),
    *(f"np.{name}({{w}}, out={{last}}, where={{mask}}, casting='unsafe')" for name in UNARY_UFUNCS),
    *split("""
        {w1}.swapaxes(0, -1)[0] += {c}; {w2}.T[0] *= {scalar}; {w2}.diagonal().copy()[0:1] += 1; {w1}.ravel()[1:3] =
        {c}; {w1}[..., ::-1] += {last}; {w1}[...] = {chain}; {w1}[{mask}] = {chain}; {w1}[0] = {chain}; {w}.real[...]
        = {v}; {w1}[:, None][...] += {c}; {w2}[::-1, ::-1] -= {last}; {w1}.squeeze()[...] = {c};
        {w1}.reshape({reshape})[...] *= 2; np.copyto({w1}.T, {c}, casting='unsafe'); np.copyto({w}, {chain},
        where={mask}, casting='unsafe'); {w1}.T.fill({c}); np.put({w1}.T, [0, -1], {c}); np.putmask({w1}[::-1],
        {mask}, {list}); np.fill_diagonal({w2}.T, {list}); {w1}[::-1].sort(); {w1}.T.sort(axis=0); {w1}.flat[::2] =
        {c}; {w1}.flat[-1] += {c}; {w1}.T.flat[1:3] = {list}; np.add.at({w1}.T, 0, {c}); np.sum({w1}, axis=0,
        out={last}[0]); np.matmul({w2}, {last}.T.copy(), out={last}); np.einsum('...->...', {w1})[...] += 1;
        np.lib.stride_tricks.sliding_window_view({w1} + 0, 2).sum(-1);
    """),
]  # fmt: skip
"""Statements that change an array through a view, or by a ufunc into another type."""

BLOCKS: list[str] = [
    "def g(v):\n    return v * 2 + {c}\nu = g({x})\nv = g(u)",
    "def g(v, k={c}):\n    v = v + k\n    v *= 2\n    return v\nu = g({x1}[::-1])\nv = g({last}, k={scalar})",
    "def g(v):\n    def h(p):\n        return p - v\n    return h(v.T) if v.ndim == 1 else h(v)\nu = g({x})",
    "def g(v):\n    v[...] = v * 2\n    return v.sum()\nu = g({w})\nv = {last} + u",
    "def g(v):\n    if v.ndim == 0:\n        return v\n    return g(v.sum(0)) * 2\nu = g({x})",
    "def g(*parts, by={c}):\n    return [part * by for part in parts]\nu, v = g({x}, {y})",
    "def g(v):\n    for row in v:\n        yield row * 2\nu = sum(g({x1}))",
    "u = (lambda v: v - v.mean(0))({x1})\nv = (lambda v, k: v ** k)({last}, 2)",
    "for row in {w1}:\n    u = row + 1\n    v = u.sum()",
    "for row in {w2}:\n    row += {c}\n    row[0] = {c}",
    "for row in {w2}:\n    row[...] = row[::-1]",
    "for k, row in enumerate({x1}):\n    u = row * k",
    "for row, other in zip({x1}, {last}[::-1]):\n    u = row - other",
    "u = []\nfor row in {x1}:\n    u.append(row.sum())\nv = np.array(u)",
    "u = [row.T for row in {x2}]\nv = sum(u)",
    "u = {k2: row.sum() for k2, row in enumerate({x1})}\nv = u[0]",
    "try:\n    u = {x} + np.ones((3, 9, 4))\nexcept ValueError:\n    u = {last} * 2",
    "try:\n    u = np.linalg.inv({x2})\nexcept (ValueError, np.linalg.LinAlgError):\n    u = {last} + 1",
    "try:\n    u = {x1}[99]\nexcept IndexError:\n    u = {last}[0]",
    "try:\n    u = {x}.reshape(7, -1)\nexcept ValueError as error:\n    u = {last}.ravel()",
    "try:\n    u = np.concatenate([{x1}, {y}])\nexcept (ValueError, TypeError):\n    u = {last} - 1",
    "try:\n    u = {x} & {y}\nexcept TypeError:\n    u = {last} * 1\nelse:\n    u = u + 1",
    "try:\n    {w} += {y}\nexcept (TypeError, ValueError):\n    {last}[...] = 0",
    "try:\n    u = {x}.sum(axis=5)\nexcept np.exceptions.AxisError:\n    u = {last}.sum()\nfinally:\n    v = u * 2",
    "try:\n    u = np.int8({c}) + np.int8(1)\n    v = {x} + 300\nexcept OverflowError:\n    v = {last} + 1",
    "u = {w1}.T\nu += {c}\nv = u[::-1]\nv *= 2",
    "u = {w1}[::-1]\nu -= {v}\nv = u.reshape(-1)\nv[:1] = {c}",
    "u = {w2}[:, ::-1]\nu[0] += {c}\nv = u.T\nv[...] = v * 2",
    "u = {x1}.copy()\nv = u[1:]\nv -= u[:-1].copy()\nu[0] = {c}",
    "u = {x1} * 1\nv = u.swapaxes(0, -1)\nv += 1\nv[0] **= 2",
    "u, s1, v = np.linalg.svd({x2}, full_matrices=False)\nu = (u * s1[..., None, :]) @ v\nv = s1",
    "u, s1, v = np.linalg.svd({x2})\nv = np.abs(np.linalg.det(u))\nu = s1 * 2",
    "u = np.linalg.svd({x2}, compute_uv=False)\nv = u.max()",
    "q, r = np.linalg.qr({x2})\nu = q @ r\nv = q.shape",
    "q, r = np.linalg.qr({x2}, mode='complete')\nu = q @ r\nv = np.abs(np.tril(r, -1)) < 1e-3",
    "u = np.linalg.qr({x2}, mode='r')\nu = u.T.conj() @ u",
    "p, q = np.linalg.eigh({x2} @ {last}.T.conj())\nu = (q * p) @ q.conj().T if q.ndim == 2 else p",
    "u = np.linalg.cholesky({x2} @ {last}.T.conj() + 50 * np.eye({last}.shape[-2]))\nv = np.tril(u)",
    "u = np.fft.ifft(np.fft.fft({x1}, norm='ortho'), norm='ortho')\nv = u.real",
    "u = np.fft.irfft(np.fft.rfft({x1}.real), n={last}.shape[-1])\nv = u + 0",
    "u = np.fft.ifftn(np.fft.fftn({x}))\nv = np.fft.fftfreq(4, 0.5)",
    "u = {chain}\nv = u + {c}",
    "u = {x1}.T.reshape({reshape1})\nu = u.sum(0).clip({c}, {c})",
    "u, v = np.frexp({f})\nu = np.ldexp(u, v)",
    "u, v = np.unique({x}, return_counts=True)\nv = v * 2",
    "u, v = np.histogram({x}, bins=4, range=(-3, 3))\nu = u / 2",
    "u, v = np.meshgrid({x1}.ravel(), {last}.ravel(), indexing='ij')\nu += v",
    "u, *v = np.array_split({x1}, 3)\nv = v[-1] * 2",
    "u = np.zeros((0, {x1}.shape[0]))\nv = u.sum(0) + {last}.sum()\nu = u.T @ u",
    "with np.errstate(divide='ignore'):\n    u = np.divide({x}, {y}, out=np.zeros({last}.shape, {dt}))",
    "k = 0\nwhile k < {x1}.shape[0]:\n    u = {last}[k] * k\n    k += 2",
    "for k in range({w1}.shape[0] - 1, -1, -1):\n    {last}[k] -= {last}[0]",
    "u = {x} + 0\nu[...], v = u * 2, u.sum()",
    "u = {x1}[0]\nfor row in {last}[1:]:\n    u = np.maximum(u, row)",
    "assert {x}.ndim >= 0\nu = {last} + 1",
]  # fmt: skip
"""Statements of several lines; `u` and `v` are names that later ones may use."""
