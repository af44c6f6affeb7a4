"""Compiled kernels on disk: one file a kernel in a folder of the user's own.

A file's name is a hash of everything that decides its content: what the compiler is given, with local names numbered
and comments left out, the compiler's version, its settings, the processor or architecture. Equal kernels of any program
share a file, and a file never goes out of date. Content is machine code (an object file or a cubin, never PTX) behind a
header with the key, the length and a checksum. It is written next to its place and renamed, so processes that start at
once see whole files only.

What the folder holds is executed. So a folder that another user owns or can write is refused with a warning, and so is
a single file of that kind. A folder that cannot be written is warned of once; kernels then stay in memory.

Knows: files. Must not know: kernels, compilers.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import struct
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from tracefuse import config
from tracefuse.caches import memoized
from tracefuse.config import Options
from tracefuse.errors import CompileError
from tracefuse.kernel.interrupt_shield import shielded

T = TypeVar("T")

_MAGIC = b"tracefuse kern 1"  # changes with the layout of the header
_HEADER = struct.Struct("<16s32sQ32s")  # magic, hash of the key, length of the content, SHA-256 of the content
_NAME = re.compile(r"[a-z]+-[0-9a-f]{64}\.kernel")
_NEW = ".new-"
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # regular files are read as ever
# A file's time is set at its use when it is older than this: one write an hour keeps the order of last uses.
TOUCH_SECONDS = 3600.0
# Removal goes this far below the limit, so that it does not come with every kernel.
KEPT_SHARE = 0.9


def hashed(kind: str, parts: Sequence[str]) -> str:
    """The key of a kernel: its kind ("cpu", "cuda", ...) and a hash of `parts`, whose order and borders count."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(struct.pack("<Q", len(encoded)))
        digest.update(encoded)
    return f"{kind}-{digest.hexdigest()}"


class DiskCache:
    """The files of one folder: at most `limit` bytes, none for 0. Thread-safe; looks at nothing before its use."""

    def __init__(self, folder: str, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self._lock = threading.Lock()
        self._checked = limit <= 0
        self._reads = self._writes = limit > 0
        self._bytes: int | None = None

    # -- the folder ---------------------------------------------------------------------------------------------------

    def _path(self, key: str) -> str:
        return os.path.join(self.folder, f"{key}.kernel")

    def _usable(self) -> bool:
        """Makes the folder at the first use; False, after one warning, where it is not to be used."""
        with self._lock:
            if not self._checked:
                try:
                    _make_folder(self.folder)
                    reason = _foreign(os.stat(self.folder))
                except OSError as error:
                    self._refuse(f"cannot be made: {error}", "set TRACEFUSE_CACHE_DIR to a folder that can be written")
                else:
                    if reason is not None:
                        self._refuse(
                            f"is {reason}, and what it holds would be executed",
                            f"chmod 700 {self.folder}, or set TRACEFUSE_CACHE_DIR to a folder of your own",
                        )
                # Last: an interrupted check is made again.
                self._checked = True
            return self._reads

    def _refuse(self, what: str, hint: str, *, reads: bool = False) -> None:
        self._reads, self._writes = reads, False
        _warn(f"tracefuse keeps compiled kernels in memory only: the cache folder {self.folder} {what}\n  hint: {hint}")

    # -- kernels ------------------------------------------------------------------------------------------------------

    def load(self, key: str) -> bytes | None:
        """What was stored under `key`, or None. A damaged file is warned of and removed."""
        if not self._usable():
            return None
        path = self._path(key)
        try:
            # Without O_NONBLOCK a FIFO in this place would be waited for until somebody writes.
            with open(path, "rb", opener=lambda path, flags: os.open(path, flags | _NONBLOCK)) as file:
                facts = os.fstat(file.fileno())
                reason = self._unreadable(facts)
                if reason is not None:
                    self.discard(key, reason)
                    return None
                content = file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            self.discard(key, f"cannot be read: {error}")
            return None
        found = _checked_content(key, content)
        if isinstance(found, str):
            self.discard(key, found)
            return None
        if time.time() - facts.st_mtime > TOUCH_SECONDS:
            self._touch(path)
        return found

    def _unreadable(self, facts: os.stat_result) -> str | None:
        """Why an open file is not read; None where it is."""
        if not stat.S_ISREG(facts.st_mode):
            return "is no regular file"
        reason = _foreign(facts)
        if reason is not None:
            return f"is {reason}"
        if facts.st_size > self.limit + _HEADER.size:
            return f"holds {facts.st_size} bytes, more than cache_limit allows all kernels together"
        return None

    def _touch(self, path: str) -> None:
        try:
            os.utime(path)
        except OSError:  # a folder that can only be read, or a file that was just removed: its age does not matter then
            self._bytes = None

    def discard(self, key: str, reason: str) -> None:
        """Removes a file that is of no use, with a warning that names it; the caller compiles the kernel again."""
        path = self._path(key)
        _warn(f"the cached kernel {path} {reason}; it is compiled again")
        _remove(path)

    def store(self, key: str, content: bytes) -> None:
        """Keeps `content` under `key`. Where that fails, a warning is given once and nothing is kept from then on."""
        if not self._usable() or not self._writes or len(content) > self.limit:
            return
        header = _HEADER.pack(_MAGIC, _digest(key), len(content), hashlib.sha256(content).digest())
        try:
            self._write(key, header + content)
        except IsADirectoryError:  # in this file's place, and not empty: `load` has named it, and other files do fine
            return
        except OSError as error:
            self._refuse(
                f"cannot be written: {error}", "set TRACEFUSE_CACHE_DIR to another folder, or free space", reads=True
            )
            return
        self._added(len(header) + len(content))

    def _write(self, key: str, content: bytes) -> None:
        try:
            descriptor, path = tempfile.mkstemp(prefix=_NEW, dir=self.folder)
        except FileNotFoundError:  # the folder was removed since it was looked at
            _make_folder(self.folder)
            descriptor, path = tempfile.mkstemp(prefix=_NEW, dir=self.folder)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
            os.replace(path, self._path(key))
        except OSError:
            _remove(path)
            raise

    # -- size ---------------------------------------------------------------------------------------------------------

    def _files(self) -> Iterator[tuple[float, int, str]]:
        """(time of last use, bytes, path) of the kernels and of what was left half written; no other file."""
        try:
            entries = list(os.scandir(self.folder))
        except OSError:
            return
        for entry in entries:
            if _NAME.fullmatch(entry.name) or entry.name.startswith(_NEW):
                try:
                    facts = entry.stat(follow_symlinks=False)
                except OSError:  # another process removed it
                    continue
                yield facts.st_mtime, facts.st_size, entry.path

    def _added(self, size: int) -> None:
        with self._lock:
            # Other processes write too: what they add is seen when the folder is read again, at the limit.
            known = self._bytes
            self._bytes = self.nbytes() if known is None else known + size
            if self._bytes > self.limit:
                self._bytes = self._shrink()

    def _shrink(self) -> int:
        """Removes the files used longest ago until the folder is below the limit; the bytes that are left."""
        files = sorted(self._files())
        left = sum(size for _, size, _ in files)
        if left <= self.limit:
            return left
        for _, size, path in files:
            if left <= KEPT_SHARE * self.limit:
                break
            _remove(path)
            left -= size
        return left

    def nbytes(self) -> int:
        """Bytes of all files of the cache."""
        return sum(size for _, size, _ in self._files())

    def kernels(self) -> list[Path]:
        """The files of the compiled kernels, in the order of their names."""
        return sorted(Path(path) for _, _, path in self._files() if not os.path.basename(path).startswith(_NEW))

    def clear(self) -> None:
        """Removes every file of the cache; others in the folder stay, and a folder that is refused is left alone."""
        if os.path.isdir(self.folder) and self._usable():
            for _, _, path in self._files():
                _remove(path)
            with self._lock:
                self._bytes = None


def load_or_make(
    disk: DiskCache | None, key: str, use: Callable[[bytes], T], make: Callable[[], bytes]
) -> tuple[T, bool]:
    """What `use` makes of the content of `key`, and whether that was on disk; else `make` makes it, and it is stored.

    A file that `use` raises CompileError for is discarded, however right its checksum is.
    """
    content = None if disk is None else disk.load(key)
    if disk is not None and content is not None:
        try:
            return use(content), True
        except CompileError as error:
            disk.discard(key, f"cannot be used: {error}")
    content = make()
    made = use(content)
    if disk is not None:
        disk.store(key, content)
    return made, False


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _checked_content(key: str, file: bytes) -> bytes | str:
    """The content of a file, or what is wrong with it."""
    if len(file) < _HEADER.size:
        return f"is cut off after {len(file)} bytes"
    magic, digest, length, checksum = _HEADER.unpack_from(file)
    content = file[_HEADER.size :]
    if magic != _MAGIC or digest != _digest(key):
        return "has another kernel's header"
    if len(content) != length:
        return f"holds {len(content)} bytes of machine code instead of {length}"
    if hashlib.sha256(content).digest() != checksum:
        return "is damaged: its checksum differs"
    return content


def _foreign(facts: os.stat_result) -> str | None:
    """Why a file or folder is not this user's alone to write; None where it is, or where the system has no owners."""
    if not hasattr(os, "geteuid"):
        return None
    if facts.st_uid != os.geteuid():
        return f"owned by user {facts.st_uid}"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"writable by others (mode {stat.S_IMODE(facts.st_mode):o})"
    return None


def _remove(path: str) -> None:
    """Removes a file or an empty folder; one that is gone already, or cannot be removed, costs its space alone."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        return


def _make_folder(path: str) -> None:
    """Makes a folder and those above it, all for the user alone; os.makedirs gives its mode to the last one only."""
    if os.path.isdir(path):
        return
    missing = [os.path.abspath(path)]
    while not os.path.exists(parent := os.path.dirname(missing[-1])):
        missing.append(parent)
    for folder in reversed(missing):
        try:
            os.mkdir(folder, mode=0o700)
        except FileExistsError:
            if not os.path.isdir(folder):  # else another process was faster
                raise


def _warn(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=2)


@memoized("the view of a cache folder", key="folder, limit", most=64, clears=False)
def _cache(folder: str, limit: int) -> DiskCache:
    return DiskCache(folder, limit)


@memoized("the user's cache folder", key="none", most=1, clears=False)
def default_folder() -> str:
    """The user's cache folder for tracefuse, as the system has it."""
    # An interrupted import can leave the lock of all imports locked.
    return shielded(_ask_for_folder)


def _ask_for_folder() -> str:
    import platformdirs

    return platformdirs.user_cache_dir("tracefuse", appauthor=False)


def for_options(options: Options) -> DiskCache:
    """The cache of the folder that options name; it keeps nothing where `cache_limit` turns it off."""
    if options.cache_limit <= 0:
        return _cache(os.devnull, 0)
    folder = os.path.abspath(os.path.expanduser(options.cache_dir)) if options.cache_dir else default_folder()
    return _cache(folder, options.cache_limit)


def in_force() -> DiskCache:
    """The cache of the options in force here."""
    return for_options(config.resolve())
