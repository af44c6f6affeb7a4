"""Classes whose methods are generated at their first use behave as those of `dataclasses.dataclass`."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from segments import lazy_dataclasses


def made(decorator: Callable[..., Any], **layout: bool) -> Any:
    """A class of that decorator with a base, defaults, fields outside of `__init__` and `__post_init__`."""

    @decorator(**layout)
    class Base:
        first: int
        second: list[int] = dataclasses.field(default_factory=list, compare=False)

    @decorator(**layout)
    class Derived(Base):
        total: int = dataclasses.field(init=False, repr=False)
        kind: str = dataclasses.field(default="derived", init=False)
        last: int = dataclasses.field(default=7, kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.first + self.last)

    return Derived


LAYOUTS = [
    {"frozen": frozen, "slots": slots, "eq": eq} for frozen in (False, True) for slots in (False, True)
    for eq in (False, True)
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_methods_at_their_first_and_later_calls_are_those_of_dataclasses(layout: dict[str, bool]) -> None:
    lazy, eager = made(lazy_dataclasses.dataclass, **layout), made(dataclasses.dataclass, **layout)
    for _ in range(2):
        one, other = lazy(1, [2], last=3), eager(1, [2], last=3)
        assert repr(one) == repr(other)
        assert dataclasses.asdict(one) == dataclasses.asdict(other)
        assert (one == lazy(1, [], last=3), one == lazy(2, last=3), one == 1) == (
            other == eager(1, [], last=3), other == eager(2, last=3), other == 1,
        )  # fmt: skip
        changed = dataclasses.replace(one, first=5)
        assert (changed.first, changed.second, changed.total, changed.kind) == (5, [2], 8, "derived")
        assert copy.copy(one).total == 4
        if layout["eq"] and not layout["frozen"]:
            with pytest.raises(TypeError, match="unhashable"):
                hash(one)
        else:
            assert (hash(one) == hash(lazy(1, last=3))) is layout["eq"]
    assert lazy.__match_args__ == eager.__match_args__
    assert hasattr(one, "__dict__") is not layout["slots"]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'first'"):
        lazy()


@lazy_dataclasses.dataclass(frozen=True, slots=True)
class Pickled:
    first: int

    def __hash__(self) -> int:
        return 11


def test_methods_that_a_class_writes_stay_and_its_instances_can_be_pickled() -> None:
    assert hash(Pickled(3)) == 11
    assert pickle.loads(pickle.dumps(Pickled(3))) == Pickled(3)


def test_an_interrupt_while_methods_are_generated_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    @lazy_dataclasses.dataclass()
    class Pair:
        left: int
        right: int

    def interrupt(*arguments: object, **named: object) -> None:
        raise RuntimeError("Error calling __set_name__ on 'Field' instance") from KeyboardInterrupt()

    with monkeypatch.context() as patch:
        patch.setattr(dataclasses, "make_dataclass", interrupt)
        with pytest.raises(KeyboardInterrupt):
            Pair(1, 2)
    assert Pair(1, 2).right == 2
