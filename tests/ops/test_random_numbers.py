"""Tests random numbers: published test vectors, equality on all targets, and distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.ways import assert_equal_bits, check, results
from tracefuse.definition.fusion_definition import FusionDefinition
from tracefuse.dtypes import DataType, bfloat16, dtype_of, float16, float32, float64
from tracefuse.errors import DtypeError, ShapeError
from tracefuse.ir.reference import evaluate
from tracefuse.ops.random_bits import philox

FLOATS = [float16, bfloat16, float32, float64]

VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]  # fmt: skip
"""Counter, key and words of philox4x32-10, from the authors' known answers."""


def random_tensor(name: str, *arguments: Any, **named: Any) -> FusionDefinition:
    """A definition of one random tensor and no inputs."""
    with FusionDefinition() as fd:
        fd.add_output(getattr(fd.ops, name)(*arguments, **named))
    return fd


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_words_equal_the_published_vectors(counter: Any, key: Any, words: Any) -> None:
    position, offset, seed = (np.uint64(low | high << 32) for low, high in (counter[:2], counter[2:], key))
    assert tuple(map(int, philox(seed, offset, position))) == words


def test_bits_are_equal_on_every_target_and_wherever_they_are_read(backend: str) -> None:
    with FusionDefinition() as fd:
        seed, offset = (fd.define_scalar(dtype=DataType.Int) for _ in range(2))
        x = fd.define_tensor([-1, -1], True, DataType.Int)
        bits = [fd.ops.random_bits(seed, offset, x.shape(), half) for half in (0, 1)]
        fd.add_output(bits[0])
        fd.add_output(bits[1])
        fd.add_output(fd.ops.flip(bits[0], [0, 1]))
        fd.add_output(fd.ops.max(fd.ops.permute(bits[1], [1, 0]), [0]))
    arguments = [-(2**63), 2**33 + 7, np.zeros((3, 17), np.int64)]
    expected = evaluate(fd.fusion, arguments)
    flat = philox(np.uint64(2**63), np.uint64(2**33 + 7), np.arange(3 * 17, dtype=np.uint64))
    assert (expected[0].ravel() == (flat[0] | flat[1] << np.uint64(32))).all()
    assert (expected[2] == expected[0][::-1, ::-1]).all()
    for way, actual in results(fd.fusion, arguments, backend):
        for own, wanted in zip(actual, expected, strict=True):
            assert_equal_bits(own, wanted, f"{backend}, {way}")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["uniform", "normal"])
def test_samples_equal_the_reference_implementation(backend: str, name: str, dtype: Any) -> None:
    fd = random_tensor(name, -1.5, 2.0, [3, 9], rng_seed=5, rng_offset=9, dtype=dtype)
    check(fd, [], backend)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unit_numbers_are_exact_and_below_one(backend: str, dtype: Any) -> None:
    fd = random_tensor("uniform", 0.0, 1.0, [60 if backend == "interpreter" else 4000], rng_seed=5, dtype=dtype)
    (expected,) = evaluate(fd.fusion, [])
    assert expected.min() >= 0
    assert expected.max() < 1
    for way, (own,) in results(fd.fusion, [], backend, without={"printed": "tested with other samples"}):
        assert_equal_bits(own, expected, f"{backend}, {way}")


def test_numbers_are_distributed_as_they_say() -> None:
    count = 200_000
    (unit,) = random_tensor("uniform", 0.0, 1.0, [count], rng_seed=1).execute([])
    (bell,) = random_tensor("normal", 0.0, 1.0, [count], rng_seed=2).execute([])
    # Kolmogorov's distance is below 1.95 / sqrt(n) for 999 of 1000 seeds, these among them.
    limit = 1.95 / np.sqrt(count)
    steps = np.arange(count) / count
    erf = np.vectorize(math.erf)
    assert np.abs(np.sort(unit) - steps).max() < limit
    assert np.abs((1 + erf(np.sort(bell) / np.sqrt(2))) / 2 - steps).max() < limit
    neighbours = np.corrcoef(bell[:-1], bell[1:])[0, 1]
    assert abs(neighbours) < 4 / np.sqrt(count)


def test_a_seed_and_an_offset_determine_the_samples() -> None:
    first, again = (random_tensor("normal", 0.0, 1.0, [9], rng_seed=3, rng_offset=4).execute([])[0] for _ in range(2))
    other, moved = (
        random_tensor("normal", 0.0, 1.0, [9], rng_seed=seed, rng_offset=offset).execute([])[0]
        for seed, offset in ((4, 4), (3, 5))
    )
    assert (first == again).all()
    assert not np.isin(other, first).any()
    assert not np.isin(moved, first).any()


def test_without_a_seed_each_call_and_each_op_gives_other_samples() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1], True)
        first, second = fd.ops.rand_like(x), fd.ops.rand_like(x)
        fd.add_output(first)
        fd.add_output(second)
        fd.add_output(fd.ops.sub(first, first))
    x = np.zeros(6, np.float32)
    calls = [fd.execute([x]) for _ in range(3)]
    seen = np.concatenate([samples for call in calls for samples in call[:2]])
    assert len(np.unique(seen)) == len(seen)
    assert all((call[2] == 0).all() for call in calls), "a random tensor has one value in all its uses"


def test_two_segments_read_the_same_samples() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], True)
        noise = fd.ops.randn_like(x)
        rows, columns = fd.ops.sum(noise, [1]), fd.ops.sum(noise, [0])
        fd.add_output(rows)
        fd.add_output(columns)
    for merge in (None, lambda a, b: False):
        fd.segment([np.zeros((40, 30), np.float32)], merge=merge)
        rows, columns = fd.execute([np.zeros((40, 30), np.float32)])
        np.testing.assert_allclose(rows.sum(), columns.sum(), rtol=1e-3, atol=1e-3)


def test_samples_like_a_tensor_have_its_shape_and_type() -> None:
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 1, 3], True, DataType.Half)
        fd.add_output(fd.ops.rand_like(x, 1))
        fd.add_output(fd.ops.randn_like(x, 1, 2))
        fd.add_output(fd.ops.normal(0.0, 1.0, [], rng_seed=1, dtype=DataType.Double))
    made = fd.execute([np.zeros((2, 1, 3), np.float16)])
    assert [(a.shape, a.dtype) for a in made] == [((2, 1, 3), "float16")] * 2 + [((), "float64")]
    assert dtype_of(made[0].dtype) is float16


def test_impossible_samples_raise_with_a_hint() -> None:
    with pytest.raises(DtypeError, match="uniform does not generate int32"):
        random_tensor("uniform", 0, 9, [3], dtype=DataType.Int32)
    with pytest.raises(ShapeError, match="axis 0 would get -3 elements"):
        random_tensor("uniform", 0.0, 1.0, [-3])
