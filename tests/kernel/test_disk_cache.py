"""Tests compiled kernels on disk: lookup, verification, size limit, and folders that others can write."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.disk_folders import NEGATE, cache_in, fresh, negates
from tracefuse import config
from tracefuse.kernel.cache import disk_cache
from tracefuse.kernel.cache.disk_cache import DiskCache, hashed

KEY, OTHER = hashed("cpu", ("a",)), hashed("cpu", ("b",))
# -- files ------------------------------------------------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_what_was_stored_is_what_is_loaded(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    disk = cache_in(tmp_path_factory.mktemp("cache"))
    assert disk.load(KEY) is None
    disk.store(KEY, content)
    assert disk.load(KEY) == content
    assert disk.load(OTHER) is None
    assert [path.name for path in disk.kernels()] == [f"{KEY}.kernel"]


def test_the_parts_of_a_key_are_told_apart() -> None:
    assert len({hashed("cpu", parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""))}) == 4
    assert hashed("cuda", ("a",)) != hashed("cpu", ("a",))


def test_the_folder_and_its_files_are_the_users_alone(tmp_path: Path) -> None:
    disk = cache_in(tmp_path / "new" / "cache")
    disk.store(KEY, b"code")
    (file,) = disk.kernels()
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda b: b[:20], "is cut off after 20 bytes"),
        (lambda b: b"", "is cut off after 0 bytes"),
        (lambda b: b[:-1], "holds 3 bytes of machine code instead of 4"),
        (lambda b: b[:-1] + b"X", "is damaged: its checksum differs"),
        (lambda b: b"something else" + b[14:], "has another kernel's header"),
    ],
)
def test_a_damaged_file_is_named_in_a_warning_and_removed(tmp_path: Path, damage: Any, message: str) -> None:
    disk = cache_in(tmp_path)
    disk.store(KEY, b"code")
    (file,) = disk.kernels()
    file.write_bytes(damage(file.read_bytes()))
    with pytest.warns(RuntimeWarning) as caught:
        assert disk.load(KEY) is None
    assert str(caught[0].message) == f"the cached kernel {file} {message}; it is compiled again"
    assert disk.kernels() == []


def test_a_file_under_another_kernels_name_is_not_taken(tmp_path: Path) -> None:
    disk = cache_in(tmp_path)
    disk.store(KEY, b"code")
    (file,) = disk.kernels()
    file.rename(tmp_path / f"{OTHER}.kernel")
    with pytest.warns(RuntimeWarning, match="has another kernel's header"):
        assert disk.load(OTHER) is None


def test_new_folders_above_the_cache_are_the_users_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        cache_in(tmp_path / "one" / "two" / "cache").store(KEY, b"code")
    finally:
        os.umask(before)
    for folder in (tmp_path / "one", tmp_path / "one" / "two", tmp_path / "one" / "two" / "cache"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def _bind_socket(path: Path) -> None:
    # The path of a socket is short; a relative one is.
    before = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("s")
        os.rename("s", path)
    finally:
        os.chdir(before)


@pytest.mark.parametrize(
    ("put", "reason"),
    [
        (os.mkfifo, "is no regular file"),
        (Path.mkdir, "is no regular file|cannot be read: .*Is a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "is no regular file"),
        (_bind_socket, "cannot be read"),
        (lambda path: path.symlink_to(path), "cannot be read: .*symbolic links"),
    ],
    ids=["FIFO", "folder", "device", "socket", "link to itself"],
)
def test_what_is_no_file_in_the_place_of_a_kernel_is_removed_and_not_waited_for(
    tmp_path: Path, put: Callable[[Path], Any], reason: str
) -> None:
    disk = cache_in(tmp_path)
    disk.store(OTHER, b"other")
    put(tmp_path / f"{KEY}.kernel")
    found: list[bytes | None] = []
    thread = threading.Thread(target=lambda: found.append(disk.load(KEY)), daemon=True)

    def load() -> None:
        thread.start()
        thread.join(20)

    with pytest.warns(RuntimeWarning, match=reason):
        load()
    assert found == [None]
    disk.store(KEY, b"code")
    assert (disk.load(KEY), disk.load(OTHER)) == (b"code", b"other")


def test_a_folder_that_is_not_empty_costs_its_kernel_alone(tmp_path: Path) -> None:
    disk = cache_in(tmp_path)
    (tmp_path / f"{KEY}.kernel" / "inside").mkdir(parents=True)
    with pytest.warns(RuntimeWarning, match="no regular file|Is a directory"):
        assert disk.load(KEY) is None
    disk.store(KEY, b"code")
    disk.store(OTHER, b"other")
    assert disk.load(OTHER) == b"other"


def test_a_file_larger_than_all_kernels_together_is_not_read(tmp_path: Path) -> None:
    disk = cache_in(tmp_path)
    disk.store(KEY, b"code")
    os.truncate(disk.kernels()[0], 1 << 40)
    with pytest.warns(RuntimeWarning, match="holds 1099511627776 bytes, more than cache_limit"):
        assert disk.load(KEY) is None
    assert disk.kernels() == []


def test_a_removed_folder_is_created_again(tmp_path: Path) -> None:
    disk = cache_in(tmp_path / "cache")
    disk.store(KEY, b"code")
    disk.kernels()[0].unlink()
    (tmp_path / "cache").rmdir()
    assert disk.load(KEY) is None
    disk.store(KEY, b"code")
    assert disk.load(KEY) == b"code"


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_can_write_is_refused_with_a_warning(tmp_path: Path, mode: int) -> None:
    cache_in(tmp_path).store(KEY, b"planted")
    tmp_path.chmod(mode)
    disk = cache_in(tmp_path)
    with pytest.warns(RuntimeWarning) as caught:
        assert disk.load(KEY) is None
    disk.store(OTHER, b"code")
    assert str(caught[0].message) == (
        f"tracefuse keeps compiled kernels in memory only: the cache folder {tmp_path} is writable by others "
        f"(mode {mode:o}), and what it holds would be executed\n"
        f"  hint: chmod 700 {tmp_path}, or set TRACEFUSE_CACHE_DIR to a folder of your own"
    )
    assert len(disk.kernels()) == 1


def test_a_folder_of_another_user_is_refused_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache_in(tmp_path).store(KEY, b"planted")
    owner = os.getuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    disk = cache_in(tmp_path)
    with pytest.warns(RuntimeWarning, match=f"owned by user {owner}, and what it holds would be executed"):
        assert disk.load(KEY) is None
    assert disk.load(KEY) is None
    disk.clear()
    assert len(disk.kernels()) == 1


def test_a_file_that_others_can_write_is_not_executed(tmp_path: Path) -> None:
    disk = cache_in(tmp_path)
    disk.store(KEY, b"planted")
    disk.kernels()[0].chmod(0o666)
    with pytest.warns(RuntimeWarning, match=r"is writable by others \(mode 666\); it is compiled again"):
        assert disk.load(KEY) is None


def test_a_folder_that_cannot_be_created_gives_one_warning_and_kernels_stay_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    disk = cache_in(tmp_path / "file" / "cache")
    with pytest.warns(RuntimeWarning, match="in memory only: the cache folder .* cannot be made: .*Not a directory"):
        function, counts = fresh(NEGATE, disk)
    assert negates(function)
    assert counts.compiled == 1
    function, counts = fresh(NEGATE, disk)
    assert counts.compiled == 1


def test_a_folder_that_cannot_be_written_is_warned_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = cache_in(tmp_path)
    disk.store(KEY, b"code")

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(RuntimeWarning, match="cannot be written: .*No space left on device"):
        disk.store(OTHER, b"code")
    disk.store(OTHER, b"code")
    assert [path.name for path in tmp_path.iterdir()] == [f"{KEY}.kernel"]
    assert disk.load(KEY) == b"code"


# -- size -------------------------------------------------------------------------------------------------------------


def _aged(disk: DiskCache, key: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(Path(disk.folder, f"{key}.kernel"), (then, then))


def test_the_kernels_used_longest_ago_go_first(tmp_path: Path) -> None:
    disk = cache_in(tmp_path, 5000)
    keys = [hashed("cpu", (str(k),)) for k in range(4)]
    for position, key in enumerate(keys):
        disk.store(key, b"x" * 1000)
        _aged(disk, key, 100_000 - 1000 * position)
    assert disk.load(keys[0]) is not None  # used now
    disk.store(OTHER, b"x" * 1000)
    assert disk.nbytes() <= 5000
    assert [disk.load(key) is not None for key in (*keys, OTHER)] == [True, False, True, True, True]


def test_other_files_in_the_folder_stay(tmp_path: Path) -> None:
    disk = cache_in(tmp_path, 2000)
    (tmp_path / "notes.txt").write_text("x" * 5000)
    (tmp_path / ".new-left").write_text("half written")
    for key in (KEY, OTHER):
        disk.store(key, b"x" * 1500)
    assert len(disk.kernels()) == 1
    disk.clear()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_kernel_larger_than_the_limit_is_not_stored(tmp_path: Path) -> None:
    disk = cache_in(tmp_path, 100)
    disk.store(KEY, b"x" * 101)
    assert disk.kernels() == []


def test_a_limit_of_nothing_touches_no_disk(tmp_path: Path) -> None:
    with config.options(cache_dir=str(tmp_path / "cache"), cache_limit=0):
        disk = disk_cache.in_force()
    function, _ = fresh(NEGATE, disk)
    assert negates(function)
    assert not (tmp_path / "cache").exists()


def test_the_folder_is_the_options_or_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with config.options(cache_dir="~/kernels"):
        assert disk_cache.in_force().folder == os.path.expanduser("~/kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    disk_cache.default_folder.cache_clear()
    with config.options(cache_dir=""):
        assert disk_cache.in_force().folder == str(tmp_path / "tracefuse")
    disk_cache.default_folder.cache_clear()
