"""More templates of random programs: calls with keywords, methods of ufuncs, lists, numbers of Python, wrong calls.

The placeholders are those of tests/random_programs/program_statements.py.
"""

from __future__ import annotations

from tests.random_programs.program_statements import BINARY, REDUCTIONS, SCANS, UNARY, split, words

REDUCING = words("add multiply maximum minimum logical_and logical_or logical_xor logaddexp logaddexp2")
SCANNING = words("add multiply maximum minimum logical_and logical_or")
UFUNCS = [name for name in BINARY if name not in words("divmod isclose allclose array_equal array_equiv")]
UNARY_UFUNCS = [
    name for name in UNARY
    if name not in words("""
        angle real imag fix isneginf isposinf isreal iscomplex nan_to_num sinc real_if_close atleast_1d atleast_2d
        atleast_3d ravel copy transpose squeeze ones_like zeros_like ndim size shape diagflat asarray
        ascontiguousarray array
    """)
]  # fmt: skip
METHODS = words("sum prod max min mean std var any all argmax argmin")

CALLS: list[str] = [
    *(f"np.{name}({{x}}, {{reduction}})" for name in REDUCTIONS for _ in range(2)),
    *(f"np.nan{name}({{x}}, {{reduction}})" for name in words("sum prod max min mean std var")),
    *(f"{{x}}.{name}({{reduction}})" for name in METHODS),
    *(f"np.{name}({{x1}}, {{scan}})" for name in SCANS),
    *(f"{{x1}}.{name}({{scan}})" for name in ("cumsum", "cumprod")),
    *(f"np.{name}.reduce({{x1}}, {{reduction}})" for name in REDUCING),
    *(f"np.{name}.accumulate({{x1}}, {{scan}})" for name in SCANNING),
    *(f"np.{name}.outer({{x}}, {{y}})" for name in UFUNCS),
    *(f"np.{name}({{x}}, {{y}}, {{ufunc}})" for name in UFUNCS),
    *(f"np.{name}({{x}}, {{ufunc}})" for name in UNARY_UFUNCS),
    *(f"np.{name}({{list}}, {{x}})" for name in UFUNCS[::3]),
    *(f"{{x}} {operator} {{list}}" for operator in words("+ - * / // % ** < == & |")),
    *(f"{{scalar}} {operator} {{x}}" for operator in words("+ - * / // % ** < == & ^ << >>")),
    *(f"{{x}} {operator} {{scalar}}" for operator in words("+ - * / // % ** < == & ^ << >>")),
    *split(
        """
        np.{binary}.reduce({x1}); np.{binary}.accumulate({x1}); np.{binary}.reduceat({x1}, [0, 1]);
        np.add.reduce({list}); np.sum([{x}, {same}], axis=0); np.max([{x}, {same}]); np.mean(({x}, {same}), axis=-1);
        np.where({mask}, {last}, {list}); np.where({list}, {x1}, {scalar}); np.clip({x}, a_min={scalar}, a_max={c});
        np.clip({x}, {c}, {c}, {ufunc}); {x}.clip(min={c}); {x}.clip(max={scalar}); np.clip({x}, min={c}, max={c});
        np.concatenate([{x1}, {list}]); np.stack(({x}, {list})); np.append({x}, {list});
        np.append({x1}, {same}, axis=0); np.concatenate([{x1}, {same}], axis={axis}, dtype={dt}, casting='unsafe');
        np.stack([{x}, {same}], dtype={dt}); np.concatenate([{x}, {same}], axis=None); np.hstack([{x}, {scalar}]);
        np.vstack([{x}, {scalar}]); np.array({x}, dtype={dt}); np.array({x}, ndmin=3); np.asarray({x}, dtype={dt});
        np.array({x}, copy=True, order='F'); np.array([{scalar}, {x}.max()]); np.array([{c}, {scalar}, {c}]);
        np.array([{x}, {list}]); np.full({x}.shape, {scalar}, dtype={dt}); np.full_like({x}, {scalar}, dtype={dt});
        np.full_like({x}, {list}); {x}.astype({dt}, order='F'); {x}.astype({dt}, casting='same_kind');
        {x}.astype({dt}, copy=False); np.reshape({x}, {reshape}, order='F'); {x}.reshape({reshape}, order='F');
        {x}.flatten('F'); {x}.ravel('F'); {x}.ravel('A'); np.ravel({x}, order='K'); {x}.copy('F');
        {x2}.transpose(1, 0); np.transpose({x2}, axes=(1, 0)); np.transpose({x2}, (-1, 0)); {x2}.swapaxes(0, 1);
        np.moveaxis({x2}, source=0, destination=1); np.rollaxis({x2}, 1); np.permute_dims({x2}, (1, 0));
        np.matrix_transpose({x2}); {x2}.mT; np.roll(a={x}, shift=2); np.roll({x2}, (1, -1), axis=(0, 1));
        np.roll({x2}, 1, axis=(0, 1)); np.flip({x2}, (0, 1)); np.rot90({x2}, k={k}); np.rot90({x2}, axes=(1, 0));
        np.expand_dims({x}, (0, -1)); np.squeeze({x}, axis={k}); np.take({x1}, [0, 5, -7], mode='wrap');
        np.take({x1}, [0, 9], mode='clip', axis=0); np.take({x}, 0); np.take({x1}, {i} % 8, mode='wrap');
        np.take({x1}, {i}, mode='clip');
        {x1}.take([[0, -1]], axis={axis}); np.choose({i} % 2, [{x}, {c}], mode='wrap');
        np.take_along_axis({x1}, np.argsort({last}, axis=-1, kind='stable'), -1); np.extract({mask}, {last});
        np.compress([True, False], {x1}, axis={axis}); np.repeat({x1}, [1, 0, 2][:{last}.shape[0]], axis=0);
        np.tile({x}, (1, 2, 1)); np.resize({x}, {k}); np.resize({x}, (2, {k})); np.insert({x1}, [0, 1], {list});
        np.insert({x1}, 0, {same}, axis=0); np.delete({x1}, [0, -1]); np.delete({x1}, slice(0, 2), axis={axis});
        np.delete({x1}, 0, axis={axis}); np.split({x1}, 1, axis={axis})[0]; np.hsplit({x1}, [1])[1];
        np.vsplit({x2}, [1])[0]; np.array_split({x1}, 3)[2]; np.unstack({x1})[0]; np.block([{x}, {same}]);
        np.broadcast_arrays({x}, {y})[1]; np.broadcast_arrays({x}, {list})[0]; np.diff({x1}, n=2);
        np.diff({x1}, prepend={c}); np.diff({x1}, append={same}, axis=-1); np.diff({x1}, n=0);
        np.ediff1d({x}, to_begin={c}); np.ediff1d({x}, to_end=[1, 2]); np.gradient({x1}, 2.0);
        np.gradient({x1}, edge_order=2); np.trapezoid({x1}, dx=0.5); np.trapezoid({x1}, {same});
        np.trapezoid({x1}, axis=0); np.cross({x1}, [1, 2, 3]);
        np.cumulative_sum({x1}, axis={axis}, include_initial=True); np.cumulative_prod({x1}, axis=0);
        np.pad({x1}, {k}, constant_values=({c}, {c})); np.pad({x1}, 1, mode='maximum'); np.pad({x1}, 1, mode='mean');
        np.pad({x1}, (2, 0), mode='median'); np.pad({x1}, 1, mode='minimum');
        np.pad({x1}, 3, mode='reflect', reflect_type='odd'); np.pad({x1}, ((1, 0),), mode='edge');
        np.pad({x1}, 2, mode='linear_ramp', end_values={c}); np.pad({x1}, 1, mode='empty').shape;
        np.sort({x1}, axis=0, kind='stable'); np.sort({x1}, axis=None); np.argsort({x1}, axis=0, kind='stable');
        np.argpartition({x1}, 0)[..., 0] * 0; np.partition({x1}, -1)[..., -1];
        np.partition({x1}, (0, -1), axis=-1)[..., 0]; np.sort_complex({x1});
        np.searchsorted(np.sort({x1}.ravel()), {same}, side='right'); np.searchsorted([0, 1, 2], {x});
        np.searchsorted(np.sort({x1}.ravel()), {list}); np.digitize({x}, [2, 1, 0], right=True);
        np.percentile({x}, [10, 90], {reduction}); np.quantile({x}, 0.3, {reduction});
        np.quantile({x}, 0.4, method='{method}'); np.percentile({x}, 70, method='{method}', axis=0);
        np.nanquantile({x}, 0.5, {reduction}); np.median({x}, {reduction}); np.average({x1}, weights={list});
        np.average({x1}, axis={axis}, weights={same}, returned=True)[1]; np.average({x1}, axis=0, keepdims=True);
        np.average({x1}, axis={axis}, weights={list}); np.histogram({x}, bins=[-2, 0, 1, 3])[0];
        np.histogram({x}, 3, (0, 2), density=True)[0]; np.histogram({x}, 4)[1];
        np.histogram({x1}.ravel(), bins=3, weights={same}.ravel())[0]; np.histogram_bin_edges({x}, 3, (0, 1));
        np.bincount({i}.ravel() % 4, minlength=6);
        np.bincount(np.abs({i}.ravel()) % 3, minlength=3, weights={same}.ravel());
        np.interp({x}, [0, 1, 2], [1, 3, 2], left=-1, right={c}); np.interp({list}, np.arange({x1}.shape[0]), {last});
        np.interp({x}, [0, 1], [1j, 2]); np.isin({x}, {list}, invert=True); np.isin({x}, {same}); np.cov({x1}, {same});
        np.cov({x2}, rowvar=False, bias=True); np.cov({x2}, ddof=0); np.corrcoef({x2}, rowvar=False);
        np.convolve({x1}, {list}, mode='same'); np.convolve({x1}, [1, 2], 'valid'); np.correlate({x1}, [1, 2, 3]);
        np.correlate({x1}, {same}, 'full'); {x1} @ {list}; {list} @ {x1}; np.dot({x1}, {list});
        np.matmul({x2}, {last}.T); np.vecdot({x1}, {same}); np.matvec({x2}, {last}[0]); np.vecmat({x2}[:, 0], {last});
        np.inner({x}, {c}); np.tensordot({x2}, {last}, axes=2); np.tensordot({x2}, {same}, axes=([1], [1]));
        np.outer({x}, {list}); np.einsum('ij,kj->ik', {x2}, {same}); np.einsum('ij->', {x2}); np.einsum('ij->j', {x2});
        np.einsum('i,i', {x1}, {same}); np.einsum('...j,...j->...', {x1}, {same}); np.einsum({x2}, [0, 1], [1, 0]);
        np.einsum('ij,ij->i', {x2}, {same}, optimize=True); np.kron({x}, {same}); np.trace({x2}, offset={k});
        np.trace({x2}, dtype={dt}); {x2}.trace(1); {x2}.diagonal({k}); np.linalg.norm({x}, {reduction});
        np.linalg.norm({x2}, 'fro'); np.linalg.norm({x2}, 1); np.linalg.norm({x1}, {c}, axis=-1);
        np.linalg.vector_norm({x}, axis=None, keepdims=True); np.linalg.norm({x1}, -np.inf, axis=0);
        np.linalg.norm({x1}, 0, axis=-1); np.tril({x2}, k={k}); np.triu({x2}, k={k}); np.diag({x1}, k={k});
        np.diagonal({x2}, offset={k}); np.diagflat({x}, {k}); np.vander({x1}, increasing=True); np.vander({x1}, N=2);
        np.zeros({x}.shape, {dt}) + {last}; np.empty({x}.shape).shape; np.arange({x1}.shape[0], dtype={dt});
        np.arange(0, {x1}.shape[0], 2); np.arange({x1}.shape[0], 0, -1); np.arange(0.5, {k}, 0.5);
        np.linspace(-1, {c}, 5); np.linspace(0, 1, {x1}.shape[0], endpoint=False); np.linspace({x}, {c}, 3);
        np.linspace(0, {x1}, 4, axis=-1); np.linspace(1, 3, 3, dtype={dt}); np.eye({x1}.shape[0], {k});
        np.eye(3, k={k}, dtype={dt}); np.tri(3, 4, {k}, dtype={dt});
        np.meshgrid({x1}.ravel(), {same}.ravel(), indexing='ij')[1]; np.meshgrid({x1}.ravel(), [1, 2], sparse=True)[0];
        np.indices((2, 3))[{k} % 2] + {x1}.shape[0]; np.ones_like({x}, shape=(2, 2));
        np.zeros_like({x}, dtype={dt}, order='F'); np.fromiter((k * 2 for k in range({x1}.shape[0])), float);
        np.ix_([0, 1], [1, 0])[0] + {x}; np.nan_to_num({x}, nan=1.0, posinf={c}); np.nan_to_num({x}, nan={c});
        np.unwrap({f}, period=2); np.unwrap({f}, discont=1); np.angle({x}, deg=True); np.round({x}, decimals={k});
        np.around({x}, -1); {x}.round({k}); np.fix({f}); np.select([{mask}, {mask}], [{x}, {c}], default={c});
        np.select([{mask}], [{list}]); np.piecewise({f}, [{last} > 0, {last} < -1], [{c}, lambda v: v + 1, {c}]);
        np.apply_over_axes(np.max, {x2}, (0, 1)); np.isclose({x}, {y}, rtol=0.5, atol={k});
        np.isclose({x}, {last}, equal_nan=True); np.allclose({x}, {same}, equal_nan=True);
        np.array_equal({x}, {last}, equal_nan=True); np.ldexp({f}, {k}); np.frexp({f})[1]; np.frexp({f})[0];
        np.modf({x})[1]; np.i0({f}); np.polyval({x1}.ravel(), {c}); np.polyval({list}, {x});
        np.polyadd({x1}.ravel(), [1, 2]); np.polysub([1], {x1}.ravel()); np.polymul({x1}.ravel(), [1, 2]);
        np.polyder({x1}.ravel()); np.polyint({x1}.ravel()); np.unravel_index({i} % 6, (2, 3))[1];
        np.ravel_multi_index(({i} % 2, {last} % 3), (2, 3)); np.packbits({x} != 0, axis=-1);
        np.packbits({x} > 0, bitorder='little'); np.unpackbits(({x} != 0).astype(np.uint8), axis=-1);
        np.flatnonzero({x}); np.argwhere({x}); np.nonzero({x})[0]; {x1}[{last} > 0]; {x1}[{mask}] * 2; np.unique({x});
        np.union1d({x}, [1, 2]); np.intersect1d({x}, {list}); np.setdiff1d({x}, [0]); np.trim_zeros({x1}.ravel());
        np.unique({x}, return_counts=True)[1]; {x2}[[0, -1], [0, 0]]; {x2}[np.array([[0]]), [0, -1]]; {x2}[:, [0, 0]];
        {x1}[[True] * {last}.shape[0]]; {x2}[..., None, [0]]; {x1}[np.int64(0)]; {x1}[np.array(0)];
        {x1}[None, [0, -1]]; {x1}[-1:0:-1]; {x}[()]; {x}[..., None]; {x}[True]; {x1}[[]];
        {x}.item() if {last}.size == 1 else {last}; {x}.max() > {c}; -{x}.min(); {x}.sum() ** 2; {x}.sum() // 2;
        {x}.prod() % 3; abs({x}.min()); {x}.sum() * np.float32(0.5); {x}.sum() + {scalar}; {x}.mean() * {scalar};
        {x}.max() - {c}; {x}.any() + 1; ~{x}.any(); {x}.all() & {c}; {x1}[0] * {scalar}; {x1}[0] + {c};
        {x1}[-1] - {list}; round({x}.sum(), 1); divmod({x}.sum(), 2)[1]; {x}.sum().astype({dt}); {x}.max().real;
        np.float32({x}.sum()); np.int16({k}) * {x}.max(); ({x} * 0).sum() + {scalar}; {x}.dtype.type({c}) * {last};
        np.result_type({x}, np.float32).itemsize * {last}; {x}.shape == {x}.shape; {x}.ndim == 1 and {last};
        {x}.size and {last}.sum(); np.can_cast({x}.dtype, np.float32) * {last}; np.iinfo(np.int8).max + {x};
        np.finfo(np.float32).eps * {x}; np.pi * {x}; np.e ** {x}; np.inf * {x}; {x} - np.nan;
        np.newaxis is None and {x}; {x}.T.dot({same}.T) if {x}.ndim == 1 else {x}; {x}.dot({c});
        {x1}.searchsorted({c}); {x}.nonzero()[0]; {x1}.compress([True, False]); {x1}.repeat(2, axis={axis});
        {x}.conjugate(); {x}.byteswap().shape; {x2}.sum(axis=-1)[::-1]; {x2}.T[0]; {x2}[0][::-1] * 2;
        {x1}.T.reshape(-1); {x1}[::-1].cumsum(); {x2}.T.ravel(); {x2}.T.flatten(); {x2}[::2, ::-1].ravel();
        np.sum({x1}, axis={axis}).reshape({reshape1}); np.mean({x2}, 0) - np.mean({last}, 1).sum();
        np.add({x}, {y}) * np.subtract({x}, {c});
        """
    ),
]
"""Values of a new name."""

CHANGES: list[str] = [
    *(f"np.{name}.at({{w1}}, {{places}}, {{v}})" for name in words("add subtract multiply maximum minimum")),
    *(f"np.{name}({{w}}, {{y}}, out={{last}}, {{casting}})" for name in UFUNCS[::2]),
    *(f"np.{name}({{w}}, {{y}}, {{last}})" for name in UFUNCS[1::4]),
    *(f"np.{name}({{w}}, out={{last}})" for name in UNARY_UFUNCS),
    *(f"{{w1}}[{{key}}] {operator} {{list}}" for operator in ("=", "+=", "*=")),
    *(f"{{w1}}[{{key}}] {operator} {{scalar}}" for operator in ("=", "-=", "/=", "//=", "**=", "&=")),
    *(f"{{w}} {operator} {{scalar}}" for operator in words("+= -= *= /= //= **= %= &= |= <<= >>=")),
    *(f"{{w}} {operator} {{list}}" for operator in words("+= *= -= /=")),
    *split(
        """
        np.{binary}.at({w1}, [0, 0], {c}); np.negative.at({w1}, [0, -1]); np.sum({w1}, axis=0, out={last}[0]);
        np.cumsum({w1}, axis=-1, out={last}); np.cumprod({w1}, 0, out={last}); np.maximum.accumulate({w1}, out={last});
        np.copyto({w}, {list}); np.copyto({w}, {v}, casting='unsafe');
        np.copyto({w1}, {scalar}, where={mask}, casting='unsafe'); np.put({w1}, [0, 9, -8], [1, 2], mode='wrap');
        np.put({w1}, [0, 99], {list}, mode='clip'); {w1}.put([0], {scalar}); np.putmask({w}, {mask}, {list});
        np.place({w}, {mask}, {list}); np.put_along_axis({w1}, np.argmax({last}, axis=0)[None], {c}, 0);
        np.fill_diagonal({w1}, {list}); np.fill_diagonal({w1}, {scalar}, wrap=True); {w}.fill({scalar});
        {w1}.sort(axis=0); {w1}.sort(kind='stable'); {w1}.partition(0); {w1}[..., 0] = {scalar};
        {w1}[[0, -1]] += {list}; {w1}[[0, 0]] *= 2; {w1}[{mask}] = {list}; {w1}[{mask}] -= {scalar}; {w1}[{mask}] /= 2;
        {w1}[{mask}] //= 2; {w1}[{mask}] **= 2; {w1}[{fancy}] //= 2; {w1}[{fancy}] = {list}; {w1}[{fancy}] /= 3;
        {w1}[None, 0] = {c}; {w1}[::2], {last}[1::2] = {last}[::2] * 2, {c}; {w1}[1:] += {last}[:-1];
        {w1}[:-1] -= {last}[1:]; {w1}[::-1] += {last}; {w1}.T[0] = {scalar}; {w1}[0] = {last}[-1];
        {w1}.ravel()[:] = {c}; {w1}.reshape(-1)[::2] += 1; {w1}.flat[1:3] = {c}; {w1}.flat = {list};
        {w1}[{key}].T[...] *= 2; np.add({w1}[1:], {last}[:-1], out={last}[1:]);
        np.multiply({w1}, 2, out={last}, where={mask}); np.sqrt({w}, out={last}, where={mask});
        np.where({w} > 0, {last}, 0).sum(out={w}[...]); np.clip({w}, {c}, {scalar}, out={last});
        {w}.clip(0, 1, out={last}); np.round({w}, out={last}); {w}.imag = {c}; {w}.real = {list}; {w}.real += {v};
        {w}.imag[...] *= 2; np.nan_to_num({w}, copy=False, nan={c}); np.conjugate({w}, out={last});
        np.dot({w1}, {last}, out={w}); np.matmul({w1}, {w1}, out={w});
        np.take({w1}, [0] * {last}.shape[0], axis=0, out={last}); {w} @= {y}; {w1}[0, ...] = {list};
        {w1}[np.arange({last}.shape[0]) % 2 == 0] = {c}; {w1}[:2] = {last}[:2][::-1]; {w1}[-2:] = {last}[:2];
        {w2}[[0], [0]] = {c}; {w2}[:, 0] += {last}[:, -1]; {w2}[np.tril_indices(2)] = {c};
        {w2}[np.diag_indices(2)] += {c}; {w2}[0], {last}[-1] = {c}, {last}[0]; {w2}[:, [0, -1]] = {c};
        np.frexp({w})[0].sum(); {w1}[{key}] = {last};
        {w1}[...] = {last}[::-1];
        """
    ),
]
"""Statements that change an array."""

OF_NUMBERS: list[str] = [
    *(f"s {operator} {{c}}" for operator in words("+ - * / // % ** < == & << >>")),
    *(f"{{c}} {operator} s" for operator in words("+ - * / // % ** < == & << >>")),
    *split(
        """
        {x} * (1 / s); {x} * (1.0 / s) + s % 2; {x} + s ** 0.5; {x} + (s - 1) ** 2; round(s, 1); round(s, 1) * {x};
        round(s) + {x}; divmod(s, 2)[0] * {x}; abs(s) * {x}; -s * {x}; (s + 1) / 2 * {x}; int(s) + {x}; float(s) * {x};
        bool(s) + {x}; complex(s) * {x}; max(s, 1) * {x}; min(s, {c}) + {x};
        {x} + 1 if isinstance(s, float) else {x} - 1; {x} * 2 if isinstance(s, int) else {x};
        {x} if isinstance(s, (int, float)) else {x} + 1; {x} if isinstance(s, np.generic) else {x} * 3;
        {x} if isinstance(s, np.floating) else {x} * 3; {x} if isinstance(s, complex) else {x} * 4;
        {x} if type(s) is float else {x} + 2; {x} if s > 0 else -{x}; {x} if s else {x} * 2; {x} * s.real;
        {x} * s.imag; {x} + s.conjugate(); math.sqrt(abs(s)) * {x}; math.exp(s) * {x}; math.floor(s) + {x};
        math.hypot(s, 1) * {x}; math.log(abs(s) + 1) * {x}; math.pi * s; math.log(s) + {x}; math.sqrt(s) + {x};
        np.sqrt(s) * {x}; np.exp(s) + {x}; np.add(s, {x}); np.power({x}, s); np.power(s, {x}); {x} ** s; s ** {x};
        np.multiply(s, s); np.maximum({x}, s); np.full_like({x}, s); np.full({x}.shape, s); np.array(s) + {x};
        np.asarray([s, s]); np.float32(s) * {x}; np.where({x} > 0, s, {last}); np.clip({x}, s, None); np.round(s, 1);
        np.abs(s); np.sign(s); np.isnan(s); np.floor_divide(s, 2); np.divide(1, s); np.divide({x}, s); {x} / s;
        {x} // s; {x} % s; s / {x}; s // {x}; np.linspace(0, s, 3); np.arange(3) * s; np.zeros(3) + s; {x}.clip(s);
        np.heaviside({x}, s); [s, s + 1] * {x1}[:2]; sum([s, 1, s]) * {x}; (s if s > 1 else 1) * {x}; s == {c};
        np.isclose({x}, s); np.equal(s, {x}); s.is_integer() + {x}; hash(s) % 3 + {x}; str(s) != '' and {x};
        f'{s}'[:1] != '-' and {x};
        """
    ),
]
"""Values of a new name from `s`, a number that the call passes."""

NUMBERS_OF_ARRAYS: list[str] = split(
    """
    float({x}.sum()); int({x}.max()); bool({x}.any()); {x}.sum().item(); float({x}.mean()) / 3; 1 / float({x}.max());
    round(float({x}.sum()), 2); float({x}.sum()) ** 2 * {last}; float({x}.sum()) // 2; int({x}.sum()) % 3 + {last};
    complex({x}.sum()) + 1; float({x}.max()) > 0; max(float({x}.max()), 1.0) * {last};
    math.sqrt(float(np.abs({x}).sum())) * {last}; math.isnan(float({x}.sum())); {x}.tolist(); np.array({x}.tolist());
    len({x1}.tolist()) * {last}; {x}.sum().tolist() + {last}; [v + 1 for v in {x1}.ravel().tolist()];
    sum({x1}.ravel().tolist()); max({x1}.ravel().tolist()) * {last}; isinstance({x}.sum(), np.generic);
    isinstance({x}.sum(), float) * {last}; isinstance({x}, np.ndarray); isinstance({x}.sum().item(), float) * {last};
    {x}.item(0) + 1; {x1}.item(-1) * {last}; int(np.argmax({x})) * {last};
    {x1}[int(np.argmax({last}[:, ...].ravel())) % {last}.shape[0]]; float({x1}.ravel()[0]) * {last};
    abs(float({x}.min())); -float({x}.min()); divmod(float({x}.max()), 2)[1]; float({x}.max()) ** 0.5;
    {x} / float({last}.sum()); int({x}.any()) + {last};
    """
)
"""Values of a new name that are numbers of Python, or made of them."""

LINES: list[str] = [
    "u = {w1}[{key}]\nv = u[..., None]\nv *= 2\n{w1}[0] = {c}",
    "u = {w2}.T\nu[0] = {c}\nv = {last}[::-1]\nv += 1",
    "u = {w1}.reshape({reshape})\nu += {c}\nv = {last} * 2",
    "u = {x1}[::-1]\nv = u[::2].copy()\nv += {scalar}",
    "u = {x} + 0\nv = u.ravel()\nv[:1] = {c}\nu = u * 2",
    "u = np.asarray({w})\nu += 1\nv = {last} - u",
    "u = {x1} * 1\nfor k in range(2):\n    u[k:] += {c}\n    u[:k] *= 2",
    "u = {x} * 1\nu.shape = (-1,)\nu[:1] = {c}",
    "u = {x}.copy()\nu.resize((2, 3))\nu += {c}",
    "u = np.zeros_like({x1})\nu[{key}] = {last}[{key}]\nu[{mask}] += 1",
    "u = np.zeros({x1}.shape, {dt})\nu[...] = {last}\nu += {c}",
    "u = np.empty((2, *{x}.shape), {last}.dtype)\nu[0] = {last}\nu[1] = {c}\nv = u.sum(axis=0)",
    "u = [{x}, {c}]\nu.append({x})\nv = u[0] * u[1] + u[-1]",
    "u, v = np.divmod({x}, {y})\nu += v",
    "u, v = divmod({x}, {c})\nv = v * u",
    "u = v = {x} + 0\nu += {c}\nv = v * 2",
    "u = {x1} + 0\nu[0], u[-1] = u[-1], u[0]\nv = u[[0, -1]]",
    "u = {x}.sum()\nv = u\nu += {c}\nv = v - u",
    "u = {x1}[0]\nv = {last} * u\nu = u + {scalar}",
    "u = np.add({x}, {y})\nv = np.multiply(u, {c}, out=u)\nv += 1",
    "with np.errstate(all='ignore'):\n    u = {x} / {y}\n    v = u * 0",
    "u = {x}\nu = u + {c}\nu = u.astype({dt})\nu = u * {scalar}",
    "u = ({x1} + 0).swapaxes(0, -1)\nu[...] += {c}",
    "u = ({x2} + 0)[:, ::-1]\nv = u.diagonal()\nu[0] = {c}\nv = v + 1",
    "u = {x} + 0\nnp.add.at(u.reshape(-1), [0, 0], {c})",
    "if {x}.sum() > 0:\n    u = {last} + 1\nelse:\n    u = {last} * 2",
    "u = 0\nfor v in {x1}.ravel().tolist()[:3]:\n    u += v",
    "u = {x}.max()\nwhile 4 < u < 1e6:\n    u = u / 2 - 1",
]  # fmt: skip
"""Statements of several lines; `u` and `v` are names that later ones may use."""
