# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the functions of a shared library from its dynamic section, as the loader does; needs no compiler tools.

The file may contain anything, so every offset is checked before it is followed.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cotenant.errors import InputError

X86_64 = 62
AARCH64 = 183
MOST_SYMBOLS = 1 << 20
"""a driver has about a thousand; a file with far more is refused"""

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SONAME = 1, 4, 5, 6, 10, 14
DT_GNU_HASH, DT_VERSYM, DT_VERDEF, DT_VERDEFNUM = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
FUNCTIONS = (2, 10)
"""types of symbols that are functions: plain ones, and those resolved at load time (IFUNC)"""
WEAK = 2
HIDDEN_VERSION = 0x8000
BASE_VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class Symbol:
    """A function that a library exports."""

    name: str
    size: int
    weak: bool = False
    version: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """A shared library as the loader sees it."""

    machine: int
    soname: str | None
    needed: tuple[str, ...]
    functions: tuple[Symbol, ...]
    """found by name; of a function with several versions only the default one"""


def read_library(path: Path) -> Library:
    """Reads a 64-bit shared library; raises InputError if the file is not one."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: not a file; expected a shared library")
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _Reader(content).library()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}; expected a shared library") from None
    except (_BadError, ValueError) as error:  # an empty file cannot be mapped
        raise InputError(f"{path}: not a shared library that can be read: {error}") from None


class _BadError(Exception):
    """The file is not a valid shared library."""


class _Reader:
    """A mapped file, with its segments and its dynamic section."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        if content[:7] != b"\x7fELF\x02\x01\x01":
            raise _BadError("expected a 64-bit little-endian ELF file")
        kind, self.machine = self._unpack("<HH", 16)
        if kind != 3 or self.machine not in (X86_64, AARCH64):
            raise _BadError(f"expected a shared object for x86-64 or arm64, not type {kind} for machine {self.machine}")
        (offset,) = self._unpack("<Q", 32)
        size, count = self._unpack("<HH", 54)
        if size != 56:
            raise _BadError(f"program headers of {size} bytes, expected 56")
        self.segments = [self._unpack("<IIQQQQQ", offset + index * size) for index in range(count)]
        self.dynamic = list(self._dynamic())
        self.tags = dict(self.dynamic)
        self.strings = self._offset(self._tag(DT_STRTAB), "strings")
        self.strings_end = self.strings + self._tag(DT_STRSZ)
        if self.strings_end > len(content):
            raise _BadError("its strings end behind the end of the file")

    def library(self) -> Library:
        soname = self.tags.get(DT_SONAME)
        return Library(
            machine=self.machine,
            soname=None if soname is None else self._string(soname),
            needed=tuple(self._string(value) for tag, value in self.dynamic if tag == DT_NEEDED),
            functions=tuple(self._functions()),
        )

    def _functions(self) -> Iterator[Symbol]:
        symbols = self._offset(self._tag(DT_SYMTAB), "symbols")
        versions = self._versions()
        versyms = self._offset(self.tags[DT_VERSYM], "symbol versions") if DT_VERSYM in self.tags else None
        for index in range(1, self._count()):
            name, info, visibility, section, _, size = self._unpack("<IBBHQQ", symbols + 24 * index)
            if info & 15 not in FUNCTIONS or info >> 4 not in (1, WEAK) or section == 0 or visibility & 3 not in (0, 3):
                continue
            version = 0 if versyms is None else self._unpack("<H", versyms + 2 * index)[0]
            if version & HIDDEN_VERSION:  # an older version, kept for old programs
                continue
            yield Symbol(self._string(name), size, info >> 4 == WEAK, versions.get(version))

    def _count(self) -> int:
        """The number of symbols, which only the hash tables tell."""
        if DT_HASH in self.tags:
            (count,) = self._unpack("<I", self._offset(self.tags[DT_HASH], "hash table") + 4)
        else:
            count = self._count_by_gnu_hash(self._offset(self._tag(DT_GNU_HASH), "hash table"))
        if count > MOST_SYMBOLS:
            raise _BadError(f"{count} symbols, expected at most {MOST_SYMBOLS}")
        return int(count)

    def _count_by_gnu_hash(self, table: int) -> int:
        buckets, first, bloom, _ = self._unpack("<4I", table)
        if max(buckets, bloom, first) > MOST_SYMBOLS:
            raise _BadError(f"a hash table of more than {MOST_SYMBOLS} entries")
        starts = table + 16 + 8 * bloom
        last = max(self._unpack(f"<{buckets}I", starts), default=0)
        if last < first:
            return int(first)
        chains = starts + 4 * buckets
        while last <= MOST_SYMBOLS and not self._unpack("<I", chains + 4 * (last - first))[0] & 1:
            last += 1
        return int(last) + 1

    def _versions(self) -> dict[int, str]:
        found: dict[int, str] = {}
        at = self._offset(self.tags[DT_VERDEF], "versions") if DT_VERDEF in self.tags else 0
        for _ in range(min(self.tags.get(DT_VERDEFNUM, 0), HIDDEN_VERSION)):
            _, flags, index, _, _, names, following = self._unpack("<HHHHIII", at)
            if not flags & BASE_VERSION:
                found[index] = self._string(self._unpack("<I", at + names)[0])
            at += following
        return found

    def _dynamic(self) -> Iterator[tuple[int, int]]:
        for kind, _, offset, _, _, size, _ in self.segments:
            if kind == PT_DYNAMIC:
                for at in range(offset, offset + size - 15, 16):
                    tag, value = self._unpack("<QQ", at)
                    if tag == 0:
                        return
                    yield tag, value
                return
        raise _BadError("no dynamic section: expected a shared library")

    def _tag(self, tag: int) -> int:
        if tag not in self.tags:
            raise _BadError(f"its dynamic section lacks entry {tag:#x}")
        return self.tags[tag]

    def _offset(self, address: int, what: str) -> int:
        for kind, _, offset, start, _, size, _ in self.segments:
            if kind == PT_LOAD and start <= address < start + size:
                return int(offset + address - start)
        raise _BadError(f"its {what} should be at {address:#x}, which no segment contains")

    def _string(self, index: int) -> str:
        start = self.strings + index
        end = self.content.find(b"\0", start, self.strings_end)
        if end < 0:
            raise _BadError(f"the name at offset {index} of its strings has no end")
        try:
            return self.content[start:end].decode("ascii")
        except UnicodeDecodeError:
            raise _BadError("a name is not ASCII") from None

    def _unpack(self, form: str, at: int) -> tuple[int, ...]:
        if at < 0 or at + struct.calcsize(form) > len(self.content):
            raise _BadError(f"it refers to offset {at:#x} and has {len(self.content):#x} bytes")
        return struct.unpack_from(form, self.content, at)
