"""What random programs are written of: templates of statements.

Placeholders: `{x}` an array, `{x1}` and `{x2}` one with so many axes, `{i}` of integers, `{f}` of floats, `{w}` one
that may be changed; the others stand beside the array before them: `{y}` an operand, `{v}` a value to assign, `{c}` a
number, `{k}` a small integer, `{axis}`, `{axes}` keywords of a reduction, `{dt}` a type, `{mask}`, `{key}` and
`{fancy}` keys, `{same}` an array of the same shape, `{last}` the array itself.
"""

from __future__ import annotations


def words(text: str) -> list[str]:
    """The words of a text."""
    return text.split()


def split(text: str) -> list[str]:
    """The templates of a text, which ends each with a semicolon."""
    return [" ".join(one.split()) for one in text.split(";") if one.strip()]


UNARY = words("""
    abs absolute acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh bitwise_count
    bitwise_not cbrt ceil conj conjugate cos cosh deg2rad degrees exp exp2 expm1 fabs floor invert isfinite isinf
    isnan log log10 log1p log2 logical_not negative positive rad2deg radians reciprocal rint sign signbit sin sinh
    spacing sqrt square tan tanh trunc angle real imag fix isneginf isposinf isreal iscomplex nan_to_num sinc
    real_if_close atleast_1d atleast_2d atleast_3d ravel copy transpose squeeze ones_like zeros_like ndim size shape
    diagflat asarray ascontiguousarray array
""")
BINARY = words("""
    add arctan2 atan2 bitwise_and bitwise_or bitwise_xor copysign divide equal float_power floor_divide fmax fmin
    fmod gcd greater greater_equal heaviside hypot lcm left_shift less less_equal logaddexp logaddexp2 logical_and
    logical_or logical_xor maximum minimum mod multiply nextafter not_equal power remainder right_shift subtract
    true_divide divmod isclose allclose array_equal array_equiv
""")
REDUCTIONS = words("sum prod max min mean std var any all argmax argmin count_nonzero ptp median amax amin")
NAN_REDUCTIONS = words("nansum nanprod nanmax nanmin nanmean nanstd nanvar nanmedian nanargmax nanargmin")
SCANS = words("cumsum cumprod nancumsum nancumprod")
METHODS = words("sum prod max min mean std var any all")
OPERATORS = words("+ - * / // % ** < > <= >= == != & | ^ << >>")

EXPRESSIONS: list[str] = [
    *(f"np.{name}({{x}})" for name in UNARY),
    *(f"np.{name}({{x}}, {{y}})" for name in BINARY),
    *(
        f"np.{name}({{y}}, {{x}})".replace("{y}", "{c}")
        for name in ("add", "power", "divide", "subtract", "floor_divide")
    ),
    *(f"{{x}} {operator} {{y}}" for operator in OPERATORS),
    *(f"{{c}} {operator} {{x}}" for operator in OPERATORS),
    *(f"np.{name}({{x}}, {{axes}})" for name in REDUCTIONS),
    *(f"np.{name}({{x}}, {{axes}})" for name in NAN_REDUCTIONS),
    *(f"{{x}}.{name}({{axes}})" for name in METHODS),
    *(f"np.{name}({{x1}}, axis={{axis}})" for name in SCANS),
    *split(
        """
        -{x}; +{x}; abs({x}); ~{x}; {x} + [1, 2, 3]; [0.5, 1, 2] * {x}; round({f}, 1); {x1}.cumsum({axis});
        {x1}.argmax({axis}); {x1}.argmin({axis}); {x}.argmax(); {x}.cumsum(); np.sum({x}, dtype={dt});
        np.mean({x}, dtype={dt}); np.prod({x}, dtype={dt}); np.var({x}, ddof=1); np.sum({x}, where={mask});
        np.max({x}, initial={c}, {axes}); np.min({x}, where={mask}, initial={c}); np.sum({x}, initial={c});
        np.mean({x}, where={mask}); {x}.std(ddof=1); np.any({x}, where={mask}); np.add.reduce({x1});
        np.multiply.reduce({x1}, axis={axis}); np.maximum.accumulate({x1}); np.add.accumulate({x1}, axis={axis});
        np.add.outer({x}, {y}); np.minimum.reduce({x1}, axis={axis}); np.logical_and.reduce({x1});
        np.subtract.outer({x}, {x}); np.multiply.outer({x}, {c}); np.add({x}, {y}, dtype={dt});
        np.multiply({x}, {y}, dtype={dt}, casting='unsafe'); np.sqrt({x}, dtype={dt}); np.where({mask}, {last}, {y});
        np.where({x}, {y}, {c}); np.clip({x}, {c}, {c}); {x}.clip({c}, {c}); np.clip({x}, None, {c});
        np.select([{x} > 1, {last} < 0], [{last}, {y}], {c}); np.piecewise({f}, [{last} > 0], [lambda v: v * 2, 1]);
        {x}.astype({dt}); {x}.astype(float); {x}.astype(int); {x}.real; {x}.imag; {x}.T; {x}.conj(); {x}.copy();
        {x}.flatten(); {x}.ravel(); {x}.squeeze(); {x}.reshape({reshape}); np.reshape({x}, {reshape}); {x}[{key}];
        {x1}[{key}]; {x1}[{fancy}]; {x1}[{key}][::-1]; {x1}[...]; {x}[None]; {x1}[:, None]; {x1}[np.argsort({last})];
        {x1}[np.argsort({last}, kind='stable')]; np.take({x1}, [0, -1], axis={axis});
        np.take_along_axis({x1}, np.argsort({last}, axis={axis}, kind='stable'), axis=-1); {x1}.take([0, 0]);
        np.compress([True, False, True], {x1}); np.roll({x}, {k}); np.roll({x1}, {k}, axis={axis}); np.flip({x});
        np.flip({x1}, {axis}); np.rot90({x2}); np.fliplr({x2}); np.flipud({x1}); np.swapaxes({x2}, 0, -1);
        np.moveaxis({x2}, 0, -1); np.expand_dims({x}, {k}); np.broadcast_to({x}, (2, *{last}.shape));
        np.tile({x}, {k});
        np.tile({x}, (2, 1)); np.repeat({x}, 2); np.repeat({x1}, 2, axis={axis}); {x}.repeat(3);
        np.resize({x1}, (2, 3));
        np.concatenate([{x1}, {same}]); np.concatenate(({x1}, {last}), axis={axis}); np.stack([{x}, {same}]);
        np.stack([{x}, {same}], axis=-1); np.hstack([{x}, {same}]); np.vstack([{x}, {same}]); np.dstack([{x}, {same}]);
        np.column_stack([{x1}, {same}]); np.append({x}, {y}); np.insert({x1}, 1, {c}); np.delete({x1}, 0);
        np.split({x1}, [1])[0]; np.array_split({x1}, 2)[1]; np.diff({x1}); np.diff({x1}, axis={axis}); np.ediff1d({x});
        np.gradient({x1}); np.gradient({x1}, axis={axis}); np.trapezoid({x1}); np.unwrap({f});
        np.cross([1, 2, 3], {x1});
        np.pad({x1}, 1); np.pad({x1}, 1, mode='edge'); np.pad({x1}, (1, 2), mode='reflect');
        np.pad({x1}, 2, mode='wrap'); np.pad({x1}, (0, 1), constant_values={c}); np.pad({x1}, 1, mode='symmetric');
        np.pad({x1}, 1, mode='linear_ramp'); np.sort({x1}); np.sort({x1}, axis={axis}); np.argsort({x1}, kind='stable');
        np.partition({x1}, 0)[..., 0]; np.sort({x}, axis=None); np.lexsort(({x1}, {same}));
        np.searchsorted(np.sort({x1}.ravel()), {c}); np.digitize({x}, [0, 1, 2]); np.percentile({x}, 30, {axes});
        np.quantile({x}, [0.25, 0.5], {axes}); np.average({x}, {axes}); np.nanpercentile({x}, 50);
        np.average({x1}, weights={same}); np.histogram({x}, bins=4, range=(-2, 2))[0];
        np.interp({x}, [0, 1, 2], [1, 3, 2]); np.isin({x}, [1, 2]); np.cov({x2}); np.corrcoef({x2});
        np.convolve({x1}, [1, 2]); np.correlate({x1}, [1, 2], 'same'); {x1} @ {same}; {x2} @ {last}.T; np.dot({x}, {y});
        np.matmul({x1}, {same}); np.inner({x}, {last}); np.outer({x}, {y}); np.vdot({x}, {same});
        np.tensordot({x1}, {same}, axes=([0], [0])); np.einsum('i...->...', {x1}); np.kron({x}, [1, 2]);
        np.einsum('i,j->ij', {x1}.ravel(), {x1}.ravel()); np.einsum('ij->ji', {x2}); np.trace({x2});
        np.einsum('ii->i', {x2} @ {last}.T); np.linalg.norm({x}); np.linalg.norm({x1}, axis={axis});
        np.linalg.norm({x1}, ord=1, axis=-1); np.linalg.norm({x1}, ord=np.inf, axis=0); np.tril({x2}); np.triu({x2}, 1);
        np.diag({x1}); np.diagonal({x2}); np.vander({x1}, 3); np.diag({x2}, {k}); np.zeros({x}.shape);
        np.ones({x}.shape, dtype={dt}); np.full({x}.shape, {c}); np.full_like({x}, {c});
        np.empty_like({x}).ndim + {last}; np.arange({x1}.shape[0]); np.arange(1, {x1}.shape[0] + 1) * 0.5;
        np.linspace(0, 1, {x1}.shape[0]); np.eye({x1}.shape[0]); np.identity({x1}.shape[-1]); np.tri({x1}.shape[0]);
        np.meshgrid({x1}.ravel(), [1, 2])[0]; np.indices({x1}.shape)[0]; np.array([{x}, {same}]);
        np.array([[{c}, {c}], [{c}, {c}]]); np.asarray([{x}.sum(), {c}]);
        np.fromfunction(lambda i: i * 2, ({x1}.shape[0],)); np.array([v * 2 for v in {x1}]);
        np.logspace(0, 1, {x1}.shape[0]); np.zeros_like({x}, dtype={dt}); np.geomspace(1, 4, 3) + {x}[..., None];
        {x}.shape[0] * 2 + {x1}.sum(); {x1}.shape[0] / 2; len({x1}) * {last}; {x}.ndim + {last}; {x}.size * {last};
        {x}.dtype.itemsize * {last}; twice({x}); scaled({x}); scaled({x}, by={c}); sum({x1}); np.float64({c}) * {x};
        np.int8({k}) + {x}; np.polyval([1, 2, {c}], {x}); np.unravel_index({k} % 6, (2, 3))[0] + {x};
        np.ravel_multi_index(([0, 1], [1, 0]), (2, 3)); np.apply_over_axes(np.sum, {x2}, [0]);
        np.lib.stride_tricks.sliding_window_view({x1}, 2, axis={axis}); np.bincount({i}.ravel() % 4);
        np.unpackbits(({x} != 0).astype(np.uint8)); np.packbits({x} != 0); np.modf({f})[0]; np.divmod({x}, {y})[1];
        np.block([[{x2}, {same}], [{last}, {last}]]); np.hypot({x}, 1);
        np.add({x}, {y}, where={mask}, out=np.zeros(np.broadcast_shapes({last}.shape, {last}.shape), complex));
        {x}.mean() - {last}; ({x} - {last}.mean({axes})) / 2; {x1}.max(axis={axis}, keepdims=True) - {last};
        np.exp({x} - {last}.max()); {x}.sum() / {last}.size; {x1}[1:] - {last}[:-1]; {x1}[::2] * 2; {x1}[::-1] + {last};
        ({x} > 0).sum(); ({x} != 0).mean({axes}); {x}.nonzero()[0].size * 1; {x1}[{mask}].sum();
        np.count_nonzero({x} > 0); {x} if {last}.ndim > 1 else {last} * 2; {x1}.tolist() and {last};
        """
    ),
]
"""Values of a new name."""

AUGMENTED = words("+= -= *= /= //= **= %= &= |= ^=")

IN_PLACE: list[str] = [
    *(f"{{w}} {operator} {{y}}" for operator in AUGMENTED),
    *(f"{{w1}}[{{key}}] {operator} {{v}}" for operator in ("=", "=", "=", "+=", "*=", "-=")),
    *(f"{{w1}}[{{mask}}] {operator} {{v}}" for operator in ("=", "=", "+=", "*=")),
    *(f"{{w1}}[{{fancy}}] {operator} {{v}}" for operator in ("=", "=", "+=")),
    *split(
        """
        {w1}[{key}] = {last}[{key}] * 2; {w1}[1:] = {last}[:-1]; {w1}[1:-1] += {last}[2:] - {last}[:-2];
        {w1}[::-1] = {last}; {w1}[{mask}] = {last}[{mask}]; {w}[...] = {v}; {w}.fill({c}); {w1}.sort();
        {w1}[0], {last}[-1] = {last}[-1], {last}[0]; np.add({w}, {y}, out={last}); np.multiply({w}, {y}, out={last});
        np.exp({w}, out={last}); np.clip({w}, 0, 2, out={last}); np.copyto({w}, {v}); np.copyto({w}, {c}, where={mask});
        np.putmask({w}, {mask}, {c}); np.put({w1}, [0, -1], {c}); np.place({w}, {mask}, [1, 2]);
        np.fill_diagonal({w1}, {c}); np.add.at({w1}, [0, 0, -1], {c}); np.maximum({w}, 0, out={last});
        np.subtract({w}, 1, out={last}, where={mask}); {w1}.T[...] = {v}; {w1}.reshape(-1)[0] = {c};
        {w1}.ravel()[:1] += 1; {w1}[{key}][...] = {v}; {w1}.flat[0] = {c}; np.cumsum({w1}, out={last}, axis=0);
        {w}.real[...] = 1; {w1}[:, 0] = {c}; np.nan_to_num({w}, copy=False); np.square({w}, out={last});
        {w1}[-1:] *= {last}[:1]; {w1}[np.triu_indices(2)] = {c};
        """
    ),
]
"""Statements that change an array."""

COMPOUND: list[str] = [
    "for k in range(3):\n    {w} += k\n    u = {last} * k",
    "for k in range({w1}.shape[0]):\n    {last}[k] = {last}[k] + k",
    "for v in {x1}:\n    u = v * 2",
    "if {x1}.shape[0] > 3:\n    {w} *= 2\nelse:\n    {w} -= 1",
    "if {x}.dtype.kind == 'f':\n    {w} += 1",
    "if {x}.ndim == 2:\n    {w} *= 3",
    "u, v = {x}, {x} * 2\nu = u + v.sum()",
    "u = {w1}[{key}]\nu += 1",
    "u = {w}\nu *= 2\n{w} += 1",
    "u = {x} * 2\nv = u[{key}]\nv[...] = 7\nu += 1",
    "u = {x}.copy()\nu[{key}] = {c}\nv = u.T\nu *= 2",
    "n = {x1}.shape[0]\nu = np.zeros(n)\nu[n // 2:] = 1\nu += {last}.sum()",
    "total = 0\nfor k in range({x1}.shape[0]):\n    total = total + {last}[k].sum()",
    "while {x}.ndim < 2:\n    break\nu = {last} + 1",
    "parts = [{x} * k for k in range(3)]\nu = sum(parts) + parts[-1]",
    "d = dict(p={x}, q={c})\nd['p'] = d['p'] * d['q']\nu = d['p']",
    "s0 = {x}.sum()\ns1 = s0\ns0 /= 3\nu = s0 + s1",
    "e = np.empty_like({x1})\ne[:] = {last}\ne[0] = {c}\ne[1:] *= 2\nu = e",
    "try:\n    u = {x} + 1\nfinally:\n    v = u * 2",
]  # fmt: skip
"""Statements of several lines; `u` and `v` are names that later ones may use."""

STATEFUL: list[str] = [
    "self.state = self.state + {x}",
    "self.state = {x} * self.rate",
    "self.state *= 2",
    "self.count += 1",
    "self.total = {x}.sum()",
    "self.state[...] = 0",
    "self.state, self.old = {x} + 0, self.state",
    "u = self.state * self.rate",
    "u = {x} + self.count",
    "if self.count > 2:\n    u = {x} * 2",
    "self.rate = self.rate * 0.5",
]
"""Statements that read and change the object."""
