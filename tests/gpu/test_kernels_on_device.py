"""Kernels on a GPU against the interpreter: every primitive, cast, group reduction and wide access.

Needs CuPy and a device; elsewhere every test says why it is skipped.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

from tests.kernel import cuda_algorithms
from tests.kernel import cuda_kernels as cases
from tracefuse import dtypes
from tracefuse.dtypes import DType, bool_, float32, float64, int32, int64
from tracefuse.errors import DeviceError
from tracefuse.kernel import kernel_ir as ir
from tracefuse.kernel.cuda.cuda_compiler import options_of
from tracefuse.kernel.cuda.cuda_functions import CudaFunction
from tracefuse.kernel.cuda.emit_cuda import emit_unit, entry_name
from tracefuse.kernel.cuda.nvrtc import compile_source
from tracefuse.kernel.interpreter.interpret import interpret
from tracefuse.runtime.devices import cuda_arrays

REASON = cuda_arrays.unavailable()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=f"no GPU: {REASON}")]
RANDOM = np.random.default_rng(11)

# Units in the last place that CUDA's functions may be off, from the CUDA C++ Programming Guide (float32 and float64),
# doubled where NumPy's own float64 functions err too.
ULPS = {
    "cbrt": 1,
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log1p"), 2),
    **dict.fromkeys(("log10", "rsqrt", "sin", "cos", "cosh", "tanh", "erf"), 3),
    **dict.fromkeys(("asin", "acos", "atan", "sinh", "atan2"), 4),
    **dict.fromkeys(("tan", "asinh", "acosh", "atanh"), 5),
    "erfc": 6,
    "erfcinv": 9,
    "erfinv": 9,
    "pow": 9,
    "lgamma": 12,
}


def units(kernels: list[ir.Kernel]) -> dict[str, CudaFunction]:
    """The kernels compiled together, by name."""
    architecture = cuda_arrays.architecture(cuda_arrays.current_device())
    functions: dict[str, CudaFunction] = {}
    for contract in (True, False):
        chosen = [k for k in kernels if k.contract is contract]
        if chosen:
            source = emit_unit(chosen)
            cubin = compile_source(source, "unit", architecture=architecture, options=options_of(chosen[0]))
            functions |= {k.name: CudaFunction(k, source, cubin, entry_name(k), architecture) for k in chosen}
    return functions


@pytest.fixture(scope="module")
def primitives() -> dict[str, CudaFunction]:
    return units([cases.primitive(*case) for case in cases.PRIMITIVE_CASES])


@pytest.fixture(scope="module")
def conversions() -> dict[str, CudaFunction]:
    return units([cases.conversion(*case) for case in cases.CAST_CASES])


def special(dtype: DType) -> np.ndarray:
    """Values that functions and casts stumble over."""
    if dtype is bool_:
        return np.array([False, True])
    if dtype.is_integer:
        limits = np.iinfo(dtype.numpy)
        middle = [v for v in (-9, -2, -1, 0, 1, 2, 3, 7, 8, 31, 63, 64, 100) if limits.min <= v <= limits.max]
        return np.array([limits.min, limits.min + 1, *middle, limits.max - 1, limits.max], dtype.numpy)
    values = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, 1e-3, -7.25, 20.5, 88.0, 127.5, -128.5, 255.5]
    values += [3e4, -4e4, 2.0**31, -(2.0**31), 2.0**63, 1e30, -1e30, 1e-40, np.inf, -np.inf, np.nan]
    with np.errstate(all="ignore"):
        return np.array(values).astype(dtype.numpy)


def inputs(kinds: tuple[DType, ...], count: int = 4096) -> list[np.ndarray]:
    """All pairs of special values first (for two arguments), then random values of many sizes."""
    arrays = []
    for position, dtype in enumerate(kinds):
        edge = special(dtype)
        edge = np.resize(np.repeat(edge, 32) if position % 2 else edge, 1024)
        if dtype is bool_:
            rest = RANDOM.integers(0, 2, count - 1024).astype(bool)
        elif dtype.is_integer:
            bits = RANDOM.integers(0, 2**64, count - 1024, np.uint64) >> RANDOM.integers(0, 64, count - 1024, np.uint64)
            rest = bits.astype(dtype.numpy)
        else:
            scale = 10.0 ** RANDOM.uniform(-4, 2, count - 1024)
            rest = (RANDOM.standard_normal(count - 1024) * scale).astype(dtype.numpy)
        arrays.append(np.concatenate([edge, rest]))
    return arrays


def both(function: CudaFunction, arguments: list[object]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The outputs on the device and those of the interpreter."""
    import cupy

    on_device = [cupy.asarray(a) if isinstance(a, np.ndarray) else a for a in arguments]
    on_host = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    function.launch(*on_device)
    interpret(function.kernel, on_host)
    written = [k for k, p in enumerate(function.kernel.parameters) if isinstance(p, ir.Buffer) and p.written]
    return [cupy.asnumpy(on_device[k]) for k in written], [on_host[k] for k in written]


def distance(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Representable numbers between two arrays of one float type; 0 where both are NaN."""
    integer = {2: np.int16, 4: np.int32, 8: np.int64}[got.itemsize]

    def order(values: np.ndarray) -> np.ndarray:
        bits = values.view(integer).astype(object)
        low = np.iinfo(integer).min
        return np.where(bits < 0, low - bits, bits)

    gap = np.abs(order(got) - order(expected)).astype(np.float64)
    with np.errstate(all="ignore"):  # a half NaN that signals
        nan = np.isnan(got.astype(np.float64)), np.isnan(expected.astype(np.float64))
    return np.where(nan[0] & nan[1], 0, np.where(nan[0] | nan[1], np.inf, gap))


def same_bits(got: np.ndarray, expected: np.ndarray) -> None:
    if got.dtype.kind in "biu":
        np.testing.assert_array_equal(got, expected)
        return
    worst = distance(got, expected)
    assert worst.max() == 0, (got[worst > 0][:5], expected[worst > 0][:5])


@pytest.mark.parametrize(("name", "dtype"), cases.PRIMITIVE_CASES, ids=lambda x: getattr(x, "name", x))
def test_a_primitive_means_on_the_device_what_it_means_in_numpy(primitives, name, dtype):
    function = primitives[f"{name}_{dtype.name}"]
    values = inputs(cases.arguments_of(name, dtype))
    result = np.zeros(len(values[0]), function.kernel.buffers[-1].dtype.numpy)
    (got,), (expected,) = both(function, [*values, result, len(result)])
    if result.dtype.kind in "biu":
        np.testing.assert_array_equal(got, expected)
        return
    if name in ("sin", "cos", "tan", "lgamma"):
        # near a zero of the function the error is relative to 1, not to the result
        close = np.isclose(
            got.astype(np.float64), expected.astype(np.float64), rtol=0, atol=4 * np.finfo(np.float32).eps
        )
        expected = np.where(close, got, expected)
    if name in ("exp_term", "exp2_term"):  # of no more than 0, relative to 1
        x, wide = values[0].astype(np.float64), expected.astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinity minus infinity, of what is more than 0
            close = np.abs(got.astype(np.float64) - wide) <= (1 + np.abs(x)) / 2**22 * wide + np.finfo(np.float32).tiny
        expected = np.where(close | (x > 0), got, expected)
    allowed = ULPS.get(name, 0) if not dtype.is_half else int(name in (*ULPS, "fma", "exp_term", "exp2_term"))
    if name in ("floordiv", "mod", "truncdiv") and not dtype.is_half:
        allowed = 1
    worst = distance(got, expected)
    at = int(np.argmax(worst))
    assert worst.max() <= allowed, (worst.max(), [v[at] for v in values], got[at], expected[at])


@pytest.mark.parametrize(("origin", "to"), cases.CAST_CASES, ids=lambda x: x.name)
def test_a_cast_means_on_the_device_what_it_means_in_numpy(conversions, origin, to):
    function = conversions[f"{origin.name}_to_{to.name}"]
    (values,) = inputs((origin,))
    (got,), (expected,) = both(function, [values, np.zeros(len(values), to.numpy), len(values)])
    same_bits(got, expected)


@pytest.mark.parametrize("shared", [True, False], ids=["one divisor", "own divisors"])
def test_quotients_in_a_row_are_the_nearest_floats(shared):
    """Random bits, usual numbers, and special values beside them."""
    kernel = cases.quotients(float32, 8, shared=shared)
    (function,) = units([kernel]).values()
    count = 8 * 64 * 4096
    for spread in (False, True):
        if spread:
            a, b = (RANDOM.integers(0, 2**32, count, np.uint64).astype(np.uint32).view(np.float32) for _ in range(2))
        else:
            a, b = (RANDOM.standard_normal(count, np.float32) for _ in range(2))
        edge = special(float32)
        a[: len(edge) ** 2 * 8 : 8], b[: len(edge) ** 2 * 8 : 8] = np.tile(edge, len(edge)), np.repeat(edge, len(edge))
        cleared = RANDOM.integers(0, 4, count) == 0  # as by a mask, but with the sign of what was there
        a = np.where(cleared, np.copysign(np.float32(0), a), a)
        (got,), (expected,) = both(function, [a, b, np.zeros(count, np.float32), count // (8 * 64)])
        with np.errstate(all="ignore"):
            divisors = np.repeat(b[::8], 8) if shared else b
            same_bits(got, a / divisors)
        same_bits(got, expected)


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("width", [2, 8, 16])
def test_a_copy_into_a_half_type_rounds_to_the_nearest(dtype, width):
    (function,) = units([cases.rounded_copy(dtype, width)]).values()
    values = np.concatenate([np.resize(special(float32), 1024), RANDOM.standard_normal(64 * width * 64, np.float32)])
    values = values[: len(values) // (64 * width) * 64 * width]
    (got,), (expected,) = both(function, [values, np.zeros(len(values), dtype.numpy), len(values) // (64 * width)])
    same_bits(got, expected)


GROUPS = [(g, 64) for g in (1, 2, 4, 8, 16, 32, 64)] + [(n, n) for n in (8, 32, 96, 128, 160, 256, 512, 768, 1024)]


@pytest.mark.parametrize("dtype", cases.REAL, ids=str)
def test_group_reductions_give_the_interpreters_bits(dtype):
    name = "or" if dtype is bool_ else "maximum"
    names = [name] if dtype is bool_ else [name, "add"]
    functions = units([cases.group_reduce(dtype, group, threads, n) for group, threads in GROUPS for n in names])
    for function in functions.values():
        threads = function.kernel.threads
        (x,) = inputs((dtype,), 4096)
        x = x[-3 * threads :] if len(x) >= 3 * threads else x
        (got,), (expected,) = both(function, [x.copy(), np.zeros_like(x), len(x) // threads])
        same_bits(got, expected)


@pytest.mark.parametrize("dtype", cases.REAL, ids=str)
def test_copies_of_every_width_move_every_element(dtype):
    kernels = [
        cases.copy(dtype, width, cache, written=written)
        for width in (1, 2, 4, 8, 16)
        for cache in ("default", "streaming")
        for written in (False, True)
    ]
    for function in units(kernels).values():
        width = next(s.width for s in function.kernel.body if isinstance(s, ir.Copy))
        (x,) = inputs((dtype,), 64 * 16 * 4)
        x = x[: 64 * width * 4]
        (got, *_), (expected, *_) = both(function, [x, np.zeros_like(x), 4])
        same_bits(got, expected)


@pytest.mark.parametrize(
    ("dtype", "columns", "threads", "width"),
    [(float32, 4096, 512, 4), (dtypes.bfloat16, 4096, 128, 8), (dtypes.float16, 1024, 32, 8)],
)
def test_softmax_in_registers(dtype, columns, threads, width):
    kernel = cuda_algorithms.softmax(dtype, columns, threads, width)
    x = (RANDOM.standard_normal((33, columns)) * 4).astype(dtype.numpy)
    (got,), (expected,) = both(units([kernel])[kernel.name], [x, np.zeros_like(x), 33])
    tolerance = 4e-6 if dtype is float32 else 2.0**-7
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=1e-7)


@pytest.mark.parametrize("dtype", [float32, dtypes.bfloat16, dtypes.int8, float64])
def test_transposition_through_shared_memory(dtype):
    kernel = cuda_algorithms.transpose(dtype)
    x = RANDOM.integers(-100, 100, (300, 500)).astype(dtype.numpy)
    (got,), _ = both(units([kernel])[kernel.name], [x, np.zeros((500, 300), dtype.numpy), 300, 500])
    np.testing.assert_array_equal(got, x.T)


@pytest.mark.parametrize("threads", [32, 96, 256, 1024])
@pytest.mark.parametrize("blocks", [1, 3])
def test_welford_states_that_do_not_commute_combine_in_the_interpreters_order(threads, blocks):
    kernel = cuda_algorithms.moments(threads)
    x = (RANDOM.standard_normal((50, 3000)) + 10).astype(np.float32)
    outputs = [np.zeros(50, np.float32), np.zeros(50, np.float32)]
    got, expected = both(units([kernel])["moments"], [x, *outputs, 50, 3000, blocks])
    for one, other in zip(got, expected, strict=True):
        same_bits(one, other)


def test_argmax_takes_the_first_of_equals():
    kernel = cuda_algorithms.argmax(256)
    x = RANDOM.integers(0, 50, (40, 5000)).astype(np.float32)
    (got,), _ = both(units([kernel])["argmax"], [x, np.zeros(40, np.int64), 40, 5000])
    np.testing.assert_array_equal(got, x.argmax(1))


@pytest.mark.parametrize("elements", [3000, 10000, 20000])
def test_shared_memory_beyond_the_static_limit(elements):
    kernel = cuda_algorithms.large_shared(elements)
    x = np.arange(elements, dtype=np.float32)
    (got,), _ = both(units([kernel])["large_shared"], [x, np.zeros_like(x)])
    np.testing.assert_array_equal(got, x[::-1])


@pytest.mark.skipif(REASON is None and int(cuda_arrays.architecture(0)[3:]) < 90, reason="clusters need sm_90")
@pytest.mark.parametrize(("cluster", "threads"), [(2, 32), (5, 96), (8, 512)])
@pytest.mark.parametrize("dtype", [float32, float64, int32], ids=str)
def test_blocks_of_a_cluster_write_each_others_shared_memory(dtype, cluster, threads):
    kernel = cuda_algorithms.cluster_sum(dtype, cluster, threads)
    x = RANDOM.integers(-99, 99, 300 * cluster * threads).astype(dtype.numpy)
    (got,), expected = both(units([kernel])[kernel.name], [x, np.zeros(300 * cluster, dtype.numpy), 300])
    same_bits(got, expected[0])


# ---------------------------------------------------------------------------------------------------------------------
# launching


@pytest.mark.parametrize("dtype", cases.REAL, ids=str)
def test_a_scalar_argument_of_every_type_arrives(dtype):
    value = ir.Variable("value", dtype)
    kernel = cases.elementwise(f"fill_{dtype.name}", (), dtype, lambda: value)
    kernel = ir.Kernel(kernel.name, (*kernel.parameters, value), kernel.grid, kernel.body, "cuda", 128, cases.THREAD)
    function = units([kernel])[kernel.name]
    for number in special(dtype):
        given = number.item() if not dtype.is_half else float(number)
        (got,), (expected,) = both(function, [np.zeros(3, dtype.numpy), 3, given])
        same_bits(got, expected)


def test_nothing_is_launched_for_an_empty_grid_and_a_grid_too_large_is_refused():
    import cupy

    kernel = cuda_algorithms.column_sum(float32)
    function = units([kernel])[kernel.name]
    empty = cupy.zeros(0, np.float32)
    function.launch(empty, empty, 3, 0, 0)
    with pytest.raises(DeviceError, match="a grid of 4294967296 x 1 x 1 blocks exceeds the limit of 2147483647"):
        function.launch(empty, empty, 3, 2**38, 0)
    with pytest.raises(DeviceError, match="takes 5 arguments, got 1"):
        function.launch(empty)


def test_threads_launch_one_function_at_once_on_their_own_streams():
    import cupy

    kernel = cases.group_reduce(int64, 32, 128)
    function = units([kernel])[kernel.name]
    wrong: list[int] = []

    def work(seed: int) -> None:
        with cuda_arrays.new_stream() as stream:
            for turn in range(200):
                x = cupy.full(128 * 4, seed * 1000 + turn, np.int64)
                y = cuda_arrays.empty((128 * 4,), int64)
                function.launch(x, y, 4)
                stream.synchronize()
                if not (cupy.asnumpy(y) == 32 * (seed * 1000 + turn)).all():
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_contraction_is_the_kernels_own_choice():
    def body(a: ir.Expression, b: ir.Expression, c: ir.Expression) -> ir.Expression:
        return cases.add(cases.mul(a, b), c)

    fused = cases.elementwise("fused", (float32,) * 3, float32, body)
    apart = ir.Kernel(**{**{f: getattr(fused, f) for f in fused.__slots__}, "name": "apart", "contract": False})
    functions = units([fused, apart])
    a = np.full(8, 1 + 2.0**-12, np.float32)
    c = -(a * a)
    (got,), (expected,) = both(functions["apart"], [a, a, c, np.zeros_like(a), 8])
    same_bits(got, expected)
    (got,), _ = both(functions["fused"], [a, a, c, np.zeros_like(a), 8])
    assert (got == np.float32(2.0**-24)).all()


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_the_device_layer_makes_arrays_of_every_type(dtype):
    array = cuda_arrays.empty((3, 0, 2), dtype)
    assert array.shape == (3, 0, 2)
    array = cuda_arrays.empty((5, 7), dtype)
    assert cuda_arrays.is_array(array)
    assert array.dtype == dtype.numpy
    assert array.flags.c_contiguous
    assert cuda_arrays.alignment(array) == 64
    assert cuda_arrays.pointer(array) == array.data.ptr
    assert cuda_arrays.device_of(array) == cuda_arrays.current_device()
    assert cuda_arrays.to_numpy(array).shape == (5, 7)


def test_events_order_streams_and_facts_about_the_device_are_known():
    number = cuda_arrays.current_device()
    assert cuda_arrays.architecture(number).startswith("sm_")
    assert cuda_arrays.multiprocessor_count(number) > 0
    assert cuda_arrays.device_name(number)
    one, two = cuda_arrays.new_stream(), cuda_arrays.new_stream()
    cuda_arrays.wait(two, cuda_arrays.record_event(one))
    with cuda_arrays.on_device(number), cuda_arrays.external_stream(one.ptr):
        assert cuda_arrays.current_stream().ptr == one.ptr
    cuda_arrays.synchronize()
    assert not cuda_arrays.is_array(np.zeros(3))
    assert int32.itemsize == 4
