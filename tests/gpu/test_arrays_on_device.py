"""Arrays of every kind on a GPU: CuPy's, torch's and jax's through DLPack; streams, the pool, CuPy's functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.ways import why_not
from tracefuse import DataType, FusionDefinition, fuse
from tracefuse.errors import UnsupportedError

pytestmark = pytest.mark.gpu
REASON = why_not("cuda")
if REASON is not None:
    pytest.skip(REASON, allow_module_level=True)

import cupy  # noqa: E402


@fuse
def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def expected(x: Any) -> Any:
    wide = np.asarray(x, np.float64)
    e = np.exp(wide - wide.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def normal(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def test_cupy_arrays_give_cupy_arrays() -> None:
    x = normal(33, 100)
    result = softmax(cupy.asarray(x))
    assert type(result) is cupy.ndarray
    np.testing.assert_allclose(result.get(), expected(x), rtol=1e-5, atol=1e-7)


def test_work_runs_on_the_current_stream_and_waits_for_nothing_else() -> None:
    x = cupy.asarray(normal(2048, 1024))
    softmax(x)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        y = softmax(x * 2)
        assert y.shape == x.shape
    stream.synchronize()
    np.testing.assert_allclose(y.get(), expected(2 * x.get()), rtol=2e-5, atol=1e-7)


def test_memory_comes_from_cupys_pool_and_goes_back() -> None:
    x = cupy.asarray(normal(256, 256))
    softmax(x)
    pool = cupy.get_default_memory_pool()
    used = pool.used_bytes()
    result = softmax(x)
    assert pool.used_bytes() == used + result.nbytes
    del result
    assert pool.used_bytes() == used


@pytest.mark.parametrize("view", ["transposed", "stepped", "reversed", "broadcast", "shifted"])
def test_views_are_read_where_they_are(view: str) -> None:
    x = cupy.asarray(normal(64, 96))
    views = {
        "transposed": x.T,
        "stepped": x[::2, 1::3],
        "reversed": x[::-1, ::-1],
        "broadcast": cupy.broadcast_to(x[:1], (64, 96)),
        "shifted": x.ravel()[1:1921].reshape(20, 96),
    }
    chosen = views[view]
    np.testing.assert_allclose(softmax(chosen).get(), expected(chosen.get()), rtol=1e-5, atol=1e-7)


def test_elements_that_are_not_aligned_are_read() -> None:
    raw = cupy.zeros(4 * 640 + 1, cupy.uint8)
    x = cupy.ndarray((20, 32), np.float32, raw.data + 1)
    values = normal(20, 32)
    raw[1 : 1 + values.nbytes] = cupy.asarray(np.frombuffer(values.tobytes(), np.uint8))
    np.testing.assert_allclose(softmax(x).get(), expected(values), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("shape", [(0, 5), (3, 1), (1, 1), (1,), (5, 0)])
def test_small_and_empty_arrays(shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    result = fuse(lambda v: np.tanh(v) + 1.0)(cupy.asarray(x))
    np.testing.assert_allclose(result.get(), np.tanh(x) + 1.0, rtol=1e-6)


def test_cupys_own_functions_record() -> None:
    @fuse
    def function(x: Any) -> Any:
        return cupy.sum(cupy.exp(x) * 2, axis=1)

    x = normal(20, 30)
    np.testing.assert_allclose(function(cupy.asarray(x)).get(), (np.exp(x) * 2).sum(1), rtol=1e-5)


def test_one_compile_serves_many_batch_sizes() -> None:
    function = fuse(lambda x: np.exp(x - x.max(-1, keepdims=True)))
    for rows in range(100, 200):
        x = normal(rows, 512)
        np.testing.assert_allclose(function(cupy.asarray(x)).get(), np.exp(x - x.max(-1, keepdims=True)), rtol=1e-5)
    assert function.cache_info().compiles <= 2


def test_torch_tensors_come_and_go_without_a_copy() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.randn(64, 96, device="cuda")
    result = softmax(x)
    assert type(result) is torch.Tensor
    assert result.device == x.device
    np.testing.assert_allclose(result.cpu().numpy(), expected(x.cpu().numpy()), rtol=1e-5, atol=1e-7)
    half = torch.randn(64, 96, device="cuda").bfloat16()
    rounded = softmax(half)
    assert rounded.dtype == torch.bfloat16
    np.testing.assert_allclose(
        rounded.float().cpu().numpy(), expected(half.float().cpu().numpy()), rtol=2e-2, atol=1e-3
    )


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "int8", "int64", "bool", "complex64"])
def test_torch_tensors_of_every_dtype_are_read_where_they_are(name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    doubled = fuse(lambda x: x + x)
    base = (torch.arange(24 * 32, device="cuda") % 7).reshape(24, 32).to(getattr(torch, name))
    views = [base, base[:8], base[::2], base.T, base[:, 3:], base[:, :1], base[:0], base.expand(2, 24, 32)]
    for _ in range(3):  # the first call of a kind runs in full
        for view in views:
            result = doubled(view)
            assert result.dtype == view.dtype
            assert torch.equal(result, view | view if name == "bool" else view + view)


def test_torch_tensors_that_are_negated_when_they_are_read_are_read_as_such() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.randn(16, 2, device="cuda", dtype=torch.complex64)
    function = fuse(lambda x: x * 2)
    for value in (x, x.real, x.conj().imag, x[:, :1].conj().imag):
        for _ in range(2):
            assert torch.equal(function(value), value * 2)


def test_torch_tensors_on_a_stream_of_its_own_are_read_after_its_work() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    function = fuse(lambda x: x + 1)
    x = torch.zeros(1 << 24, device="cuda")
    function(x), function(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for step in range(20):
            x = function(x * 1)
            assert float(x[-1]) == step + 1


def test_definitions_take_torch_tensors_again_without_checking_them_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Float)
        fd.add_output(fd.ops.exp(x))
    fd.execute([torch.randn(8, 16, device="cuda")])
    monkeypatch.setattr("tracefuse.compiler.placed_fusion.check_arguments", lambda *_: pytest.fail("checked in full"))
    for rows in (8, 9, 100):
        x = torch.randn(rows, 16, device="cuda")
        (result,) = fd.execute([x])
        assert type(result) is torch.Tensor
        torch.testing.assert_close(result, torch.exp(x))
    monkeypatch.undo()
    with pytest.raises(UnsupportedError, match="requires grad"):
        fd.execute([torch.randn(8, 16, device="cuda", requires_grad=True)])


def test_jax_arrays_come_and_go() -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    x = jax.numpy.asarray(normal(64, 96))
    if x.device.platform != "gpu":
        pytest.skip("this jax has no GPU")
    result = softmax(x)
    assert isinstance(result, jax.Array)
    assert result.device.platform == "gpu"
    np.testing.assert_allclose(np.asarray(result), expected(np.asarray(x)), rtol=1e-5, atol=1e-7)


def test_more_than_two_to_the_31_elements() -> None:
    count = 2**31 + 4099
    x = (cupy.arange(count, dtype=cupy.uint32) % 251).astype(cupy.uint8)
    function = fuse(lambda v: v + v)
    result = function(x)
    assert int(result[-1]) == (count - 1) % 251 * 2 % 256
    assert bool((result == x * 2).all())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(15, 1300, 1111), (3, 2100, 2903)])
def test_columns_that_no_block_holds(shape: tuple[int, ...], dtype: str) -> None:
    def normalized(x: Any) -> Any:
        e = np.exp(x - x.max(1, keepdims=True))
        return x / np.sqrt((x * x).sum(1, keepdims=True) + 1), e / e.sum(1, keepdims=True)

    x = cupy.random.default_rng(1).standard_normal(shape, dtype="float32").astype(dtype)
    for own, wide in zip(fuse(normalized)(x), normalized(x.astype("float64")), strict=True):
        assert float(abs(own - wide).max() / wide.max()) < (2e-3 if dtype == "float16" else 1e-6)


@pytest.mark.parametrize("columns", [2, 3, 4, 7, 15])
def test_large_matrices_of_few_columns_are_transposed(columns: int) -> None:
    for dtype in ("uint8", "float16", "float32", "float64"):
        x = cupy.arange((24 << 20) // columns * columns, dtype="int64").astype("uint8").astype(dtype)
        x = x.reshape(-1, columns)
        result = fuse(lambda x, y: x.T + y)(x, cupy.zeros_like(x.T, order="C"))
        assert bool((result == x.T).all())


def test_functions_see_cupys_module_and_class_and_numpys_scalars() -> None:
    def function(x: Any, s: Any) -> Any:
        xp = cupy.get_array_module(x)
        before = s
        s += 1
        assert xp is cupy
        assert type(x) is cupy.ndarray
        assert isinstance(x, cupy.ndarray)
        assert not isinstance(x, np.ndarray)
        s *= x
        return xp.exp(x) * before, s

    x = cupy.asarray(normal(4, 5))
    for made, right in zip(fuse(function)(x, np.float32(3)), function(x, np.float32(3)), strict=True):
        cupy.testing.assert_allclose(made, right, rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.*scatter_add. is deprecated:DeprecationWarning")
def test_cupys_ufuncs_their_methods_and_scattered_updates_record() -> None:
    import cupyx

    def function(x: Any, positions: Any) -> Any:
        y, z = cupy.zeros(4, x.dtype), x * 1
        cupyx.scatter_add(y, positions, x)
        cupy.add.at(y, positions, x)
        cupy.add(x, 1, out=z)
        quantiles = cupy.percentile(x, cupy.array([5, 50]))
        return y, z, cupy.add.outer(x, x), cupy.matmul(x, x), cupyx.rsqrt(abs(x) + 1), quantiles

    x, positions = cupy.asarray(normal(50)), cupy.arange(50) % 3
    for made, right in zip(fuse(function)(x, positions), function(x, positions), strict=True):
        assert made.dtype == right.dtype
        cupy.testing.assert_allclose(made, right, rtol=1e-4, atol=1e-5)
