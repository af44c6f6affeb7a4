"""The disk cache of compiled kernels: one file per kernel in a private folder of the user.

A file's name is a hash of everything that determines its content: the source in canonical form, the compiler version
and settings, and the processor or architecture. So equal kernels of all programs share a file, and files never become
stale. The content is machine code (an object file or a cubin, never PTX) after a header with the key, length and
checksum. Files are written under a temporary name and renamed, so concurrent processes only see complete files.

Cached code is executed. A folder or file that another user owns or can write is therefore refused with a warning. If
the folder is not writable, one warning is given and kernels stay in memory.
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
from enum import StrEnum
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
# A use updates a file's time only if it is older than this, so recording the order of uses costs one write per hour.
TOUCH_SECONDS = 3600.0
# Eviction frees space down to this share of the limit, so it does not run for every kernel.
KEPT_SHARE = 0.9


def hashed(kind: str, parts: Sequence[str]) -> str:
    """Return a kernel's key: its kind ("cpu", "cuda", ...) and a hash of `parts`, sensitive to order and boundaries."""
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        digest.update(struct.pack("<Q", len(encoded)))
        digest.update(encoded)
    return f"{kind}-{digest.hexdigest()}"


class DiskCache:
    """A cache folder of at most `limit` bytes; 0 disables it. Thread-safe. The first use accesses the folder."""

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
        """Create the folder at the first use. Return False, after one warning, if it cannot be used safely."""
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

    def _refuse(self, problem: str, hint: str, *, reads: bool = False) -> None:
        self._reads, self._writes = reads, False
        _warn(
            f"tracefuse keeps compiled kernels in memory only: the cache folder {self.folder} {problem}\n  hint: {hint}"
        )

    # -- kernels ------------------------------------------------------------------------------------------------------

    def load(self, key: str) -> bytes | None:
        """Return the content stored under `key`, or None. A damaged file is removed with a warning."""
        if not self._usable():
            return None
        path = self._path(key)
        try:
            # Without O_NONBLOCK, opening a FIFO at this path would block until a writer opens it.
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
        checked = _checked_content(key, content)
        if isinstance(checked, str):
            self.discard(key, checked)
            return None
        if time.time() - facts.st_mtime > TOUCH_SECONDS:
            self._touch(path)
        return checked

    def _unreadable(self, facts: os.stat_result) -> str | None:
        """Return why an open file must not be read, or None."""
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
        """Remove an unusable file, with a warning that names it; the caller recompiles the kernel."""
        path = self._path(key)
        _warn(f"the cached kernel {path} {reason}; it is compiled again")
        _remove(path)

    def store(self, key: str, content: bytes, *, makes_folder: bool = True) -> None:
        """Store `content` under `key`. The first failure gives a warning and disables further writes.

        makes_folder: make a folder that was removed again; otherwise nothing is stored.
        """
        if not self._usable() or not self._writes or len(content) > self.limit:
            return
        header = _HEADER.pack(_MAGIC, _digest(key), len(content), hashlib.sha256(content).digest())
        try:
            self._write(key, header + content, makes_folder=makes_folder)
        except IsADirectoryError:  # a non-empty folder at this path, which `load` has reported; other files still work
            return
        except OSError as error:
            if isinstance(error, FileNotFoundError) and not makes_folder:
                return
            self._refuse(
                f"cannot be written: {error}", "set TRACEFUSE_CACHE_DIR to another folder, or free space", reads=True
            )
            return
        self._added(len(header) + len(content))

    def _write(self, key: str, content: bytes, *, makes_folder: bool) -> None:
        try:
            descriptor, path = tempfile.mkstemp(prefix=_NEW, dir=self.folder)
        except FileNotFoundError:  # the folder was removed after the check
            if not makes_folder:
                raise
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
        """Yield (time of last use, size in bytes, path) of kernels and incomplete files; other files are ignored."""
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
            # Files of other processes are counted when the folder is listed again, on reaching the limit.
            known = self._bytes
            self._bytes = self.nbytes() if known is None else known + size
            if self._bytes > self.limit:
                self._bytes = self._shrink()

    def _shrink(self) -> int:
        """Evict the least recently used files until the folder is below the limit; return the remaining bytes."""
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
        """Return the total size of the cache's files, in bytes."""
        return sum(size for _, size, _ in self._files())

    def kernels(self) -> list[Path]:
        """Return the files of the compiled kernels, sorted by name."""
        return sorted(Path(path) for _, _, path in self._files() if not os.path.basename(path).startswith(_NEW))

    def clear(self) -> None:
        """Remove every file of the cache. Other files, and a folder that failed the safety check, are left alone."""
        if os.path.isdir(self.folder) and self._usable():
            for _, _, path in self._files():
                _remove(path)
            with self._lock:
                self._bytes = None


class Origin(StrEnum):
    """Where the machine code of a kernel comes from."""

    COMPILED = "compiled"
    DISK = "disk"
    MEMORY = "memory"


def load_or_make(
    disk: DiskCache | None, key: str, use: Callable[[bytes], T], make: Callable[[], bytes]
) -> tuple[T, Origin]:
    """Return `use(content)` for the content of `key`, and where the content comes from.

    If it is not on disk, `make` produces the content, which is then stored. If `use` raises CompileError for a file,
    the file is discarded although its checksum is right.
    """
    loaded = load_and_use(disk, key, use)
    return (loaded, Origin.DISK) if loaded is not None else make_and_store(disk, key, use, make)


def make_and_store(
    disk: DiskCache | None, key: str, use: Callable[[bytes], T], make: Callable[[], bytes]
) -> tuple[T, Origin]:
    """Return `use(make())`, after which the content is stored under `key`, and that it was compiled."""
    content = make()
    result = use(content)
    if disk is not None:
        disk.store(key, content)
    return result, Origin.COMPILED


def load_and_use(disk: DiskCache | None, key: str, use: Callable[[bytes], T]) -> T | None:
    """Return `use(content)` for the content of `key`; None if it is not on disk, or `use` raises CompileError."""
    content = None if disk is None else disk.load(key)
    if disk is None or content is None:
        return None
    try:
        return use(content)
    except CompileError as error:
        disk.discard(key, f"cannot be used: {error}")
        return None


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _checked_content(key: str, file: bytes) -> bytes | str:
    """Return the content of a file, or a description of the damage."""
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
    """Return why another user can write a file or folder, or None if only this user can (or owners do not exist)."""
    if not hasattr(os, "geteuid"):
        return None
    if facts.st_uid != os.geteuid():
        return f"owned by user {facts.st_uid}"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"writable by others (mode {stat.S_IMODE(facts.st_mode):o})"
    return None


def _remove(path: str) -> None:
    """Remove a file or an empty folder, ignoring errors: a file that cannot be removed only takes up space."""
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.rmdir(path)
        else:
            os.unlink(path)
    except OSError:
        return


def _make_folder(path: str) -> None:
    """Create a folder and its parents, private to the user; os.makedirs applies its mode to the last one only."""
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
    """Return the platform's default cache folder for tracefuse."""
    # An interrupted import can leave the import lock held.
    return shielded(_ask_for_folder)


def _ask_for_folder() -> str:
    import platformdirs

    return platformdirs.user_cache_dir("tracefuse", appauthor=False)


def for_options(options: Options) -> DiskCache:
    """Return the cache of the options' folder; it stores nothing if `cache_limit` is 0."""
    if options.cache_limit <= 0:
        return _cache(os.devnull, 0)
    folder = os.path.abspath(os.path.expanduser(options.cache_dir)) if options.cache_dir else default_folder()
    return _cache(folder, options.cache_limit)


def in_force() -> DiskCache:
    """Return the cache of the current options."""
    return for_options(config.resolve())
