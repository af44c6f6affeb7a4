"""The version that scripts of nvFuser ask for: that of tracefuse, comparable with strings."""

from __future__ import annotations

import re

import tracefuse


class Version(str):
    """A version that compares by its numbers with another one or with a string such as "0.2.1"."""

    __slots__ = ()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers before a local suffix such as "+git21df524"; trailing zeros do not count."""
        numbers = [int(number) for number in re.findall(r"\d+", self.partition("+")[0])]
        while numbers and numbers[-1] == 0:
            numbers.pop()
        return tuple(numbers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and self.numbers == Version(other).numbers

    def __lt__(self, other: str) -> bool:
        return self.numbers < Version(other).numbers

    def __gt__(self, other: str) -> bool:
        return self.numbers > Version(other).numbers

    def __le__(self, other: str) -> bool:
        return self.numbers <= Version(other).numbers

    def __ge__(self, other: str) -> bool:
        return self.numbers >= Version(other).numbers

    def __hash__(self) -> int:
        return hash(self.numbers)


__version__ = Version(tracefuse.__version__)


def version() -> Version:
    """Returns the version of tracefuse."""
    return __version__
