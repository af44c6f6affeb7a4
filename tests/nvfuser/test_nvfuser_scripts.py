"""Scripts of nvFuser with their import changed give what PyTorch gives: whole, printed and read again, and in segments.

They need PyTorch, which the test extra leaves out because of its size: `pip install torch` runs them.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="compares with PyTorch; the test extra does not install it")

from tests.nvfuser import scripts_of_arrays, scripts_of_layers, scripts_of_numbers  # noqa: E402
from tests.nvfuser.script_table import SCRIPTS, Script  # noqa: E402
from tracefuse import rules  # noqa: E402
from tracefuse.nvfuser import DataType, FusionDefinition  # noqa: E402

SUBJECTS = (scripts_of_arrays, scripts_of_layers, scripts_of_numbers)
"""The modules that put their scripts into the table."""


def recorded(script: Script, inputs: list[Any]) -> Any:
    with FusionDefinition() as fd:
        script.record(fd, *inputs)
    return fd


def drawn(script: Script) -> list[Any]:
    return script.make(torch.Generator().manual_seed(0))


def as_list(outputs: Any) -> list[Any]:
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def assert_as_in_pytorch(script: Script, inputs: list[Any], outputs: list[Any]) -> None:
    """Compares the outputs, and updated inputs after them, with the reference on inputs as they were."""
    expected = script.reference(*drawn(script))
    if script.random:
        assert all(expected(output) for output in outputs)
        return
    wanted = as_list(expected)
    updated = [value for value in inputs if isinstance(value, torch.Tensor)]
    extra = [u for u, before in zip(updated, [v for v in drawn(script) if isinstance(v, torch.Tensor)], strict=True)
             if not torch.equal(u, before) and not u.isnan().any()]  # fmt: skip
    found = [*outputs, *extra]
    assert len(found) == len(wanted)
    for output, one in zip(found, wanted, strict=True):
        assert isinstance(output, torch.Tensor)
        torch.testing.assert_close(output, one, rtol=script.tolerance, atol=script.tolerance, equal_nan=True)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_script_gives_what_pytorch_gives(script: Script) -> None:
    inputs = drawn(script)
    fd = recorded(script, inputs)
    assert_as_in_pytorch(script, inputs, fd.execute(inputs))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_printed_script_records_the_same_definition(script: Script) -> None:
    inputs = drawn(script)
    fd = recorded(script, inputs)
    names: dict[str, Any] = {}
    exec(f"from tracefuse.nvfuser import *\n{fd!r}", names)
    with FusionDefinition() as again:
        names[f"nvfuser_fusion_id{fd.id()}"](again)
    assert again.id() == fd.id()
    assert_as_in_pytorch(script, inputs, again.execute(inputs))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_script_in_segments_gives_the_same(script: Script) -> None:
    inputs = drawn(script)
    fd = recorded(script, inputs)
    parts = fd.segment(copy.deepcopy(inputs), merge=rules.one_op_a_segment)
    assert [fd.segment_index_space_maps[part] for part in parts] == [dict(one.index_map) for one in fd.details]
    assert_as_in_pytorch(script, inputs, fd.execute(inputs))


def test_there_are_scripts_of_every_class() -> None:
    assert len(SCRIPTS) >= 60
    assert len({script.name for script in SCRIPTS}) == len(SCRIPTS)


def test_validate_takes_bfloat16_of_pytorch() -> None:
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    with FusionDefinition() as fd:
        wide = fd.ops.cast(fd.from_pytorch(x), DataType.Float)
        fd.add_output(fd.ops.cast(fd.ops.exp(wide), DataType.BFloat16))
    (output,) = fd.validate([x], [x.exp()])
    assert output.dtype is torch.bfloat16
    with pytest.raises(AssertionError, match="differ by more than the error bound"):
        fd.validate([x], [x.exp() * 1.05])
