"""Tests options: the innermost setting wins; unknown names and values raise with a suggestion."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tracefuse
from tracefuse import config
from tracefuse.config import TABLE, ResizeExtents, resolve
from tracefuse.errors import OptionError


@pytest.fixture(autouse=True)
def _environment_read_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()
    config.read_environment()


def test_the_nearest_setting_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.resolve().contract is True
    monkeypatch.setenv("TRACEFUSE_CONTRACT", "0")
    config.read_environment()
    assert config.resolve().contract is False
    assert config.resolve({"contract": True}).contract is True
    with tracefuse.options(contract=False):
        assert config.resolve({"contract": True}).contract is False
        with tracefuse.options(debug=2):
            assert (config.resolve().contract, config.resolve().debug) == (False, 2)
    assert config.resolve().debug == 0


def test_equal_options_are_one_object() -> None:
    with tracefuse.options(debug=1):
        first = config.resolve()
    with tracefuse.options(debug=1):
        assert config.resolve() is first


def test_an_unknown_name_raises_with_the_close_matches() -> None:
    with pytest.raises(tracefuse.OptionError) as error:
        tracefuse.options(contrac=True).__enter__()
    assert str(error.value) == "unknown option 'contrac' (options())\n  hint: did you mean contract?"


def test_an_unknown_value_raises_with_the_close_match() -> None:
    with pytest.raises(tracefuse.OptionError) as error:
        tracefuse.fuse(target="cudaa")(lambda x: x)
    assert str(error.value) == (
        "option target cannot be 'cudaa' (@fuse)\n"
        "  hint: give one of 'auto', 'cpu', 'cuda', 'reference'; did you mean 'cuda'?"
    )


def test_a_value_of_another_kind_raises() -> None:
    with pytest.raises(tracefuse.OptionError, match="option debug cannot be 'high'"):
        tracefuse.options(debug="high").__enter__()
    with pytest.raises(tracefuse.OptionError, match="option debug cannot be True"):
        tracefuse.options(debug=True).__enter__()


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("TRACEFUSE_CONTRAKT", "1", "unknown option 'contrakt' (TRACEFUSE_CONTRAKT)\n  hint: did you mean contract?"),
        ("TRACEFUSE_DEBUG", "x", "option debug cannot be 'x' (TRACEFUSE_DEBUG)\n  hint: give an integer from 0 to 4"),
        ("TRACEFUSE_EAGER", "maybe", "option eager cannot be 'maybe' (TRACEFUSE_EAGER)\n  hint: give True or False"),
    ],
)
def test_the_environment_is_checked(monkeypatch: pytest.MonkeyPatch, variable: str, text: str, message: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(tracefuse.OptionError) as error:
        config.read_environment()
    assert str(error.value) == message


def test_an_option_with_an_enum_takes_its_words_and_its_members() -> None:
    for given in ("off", ResizeExtents.OFF):
        found = resolve({"concretize_resize_extents": TABLE["concretize_resize_extents"].check(given, "here")})
        assert found.concretize_resize_extents is found.resizes is ResizeExtents.OFF
    assert resolve().resizes is ResizeExtents.AUTO
    assert resolve({"disable": "concretize_resize_extents"}).resizes is ResizeExtents.OFF
    assert TABLE["concretize_resize_extents"].parse("on") is ResizeExtents.ON
    with pytest.raises(OptionError, match=r"cannot be 'onn' .*\n.*one of 'auto', 'on', 'off'; did you mean 'on'\?"):
        TABLE["concretize_resize_extents"].check("onn", "here")


def test_options_do_not_change() -> None:
    with pytest.raises(AttributeError, match="Options is immutable"):
        config.resolve().debug = 3


def test_only_options_that_change_code_are_in_the_key_of_kernels() -> None:
    plain = config.resolve().code_key
    with tracefuse.options(debug=3):
        assert config.resolve().code_key == plain
    with tracefuse.options(contract=False):
        assert config.resolve().code_key != plain
