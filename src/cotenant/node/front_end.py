# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the strict front-end: a shared object whose functions jump through a table.

It is written byte by byte, because a node has no compiler and no linker. The object has three segments, with addresses
equal to offsets in the file: read-only data (strings, symbols, hash tables, versions, relocations), the code, and
writable data (the dynamic section, the table). libcotenant fills the table when the object is loaded
(native/lib/strict.c).
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cotenant.node import elf
from cotenant.node.elf import AARCH64, X86_64, Library, Symbol

LOADED = ("libdl.so.2", "libc.so.6")
"""loaded before libcotenant, so that dlopen and dlsym are the C library's: a static program has no other way to them"""
IMPORTS = ("dlopen", "dlsym", "ct_fill_front_end")
MARK = "ct_front_end_driver"
"""symbol of the path of the real driver; no driver has a symbol of this name"""

PT_GNU_STACK = 0x6474E551
DT_RELA, DT_RELASZ, DT_RELAENT, DT_SYMENT = 7, 8, 9, 11
DT_INIT_ARRAY, DT_INIT_ARRAYSZ = 25, 27
DT_FLAGS_1, NODELETE = 0x6FFFFFFB, 8
READ, WRITE, EXECUTE = 4, 2, 1
GLOBAL = OBJECT = 1
FIRST = 1 + len(IMPORTS)
"""number of the first symbol that is not imported"""
STUB_LIBRARY = 34
"""CUDA_ERROR_STUB_LIBRARY, which every function returns if the real driver could not be opened"""
STUB = 16
"""bytes of code for each function"""


def build_front_end(driver: Library, *, soname: str, real: str, library: str) -> bytes:
    """The bytes of a shared object with the driver's functions; it loads the real driver and libcotenant by path."""
    machine = _MACHINES[driver.machine]
    functions = _in_hash_order([*driver.functions, Symbol(MARK, len(real) + 1)])
    names = _names(functions, soname, real, library)
    image = _Image(machine.page)
    at = _lay_out(image, names, machine)
    image.fill(at.symbols, _symbol_table(names, at))
    image.fill(at.relocations, _relocations(names, at, machine))
    image.fill(at.jumps, b"".join(_jump(machine, at, number) for number in range(names.count)))
    image.fill(at.begin, machine.call(at.begin, at.fill, at.front))
    tags = _dynamic(names, at)
    image.fill(at.dynamic, b"".join(struct.pack("<QQ", tag, value) for tag, value in tags))
    return image.finish(driver.machine, at.dynamic, 16 * (len(tags) + 1))


@dataclass(frozen=True, slots=True)
class _Names:
    """The symbols, and the offsets of their names in the string table. MARK is one of the functions."""

    strings: bytes
    functions: list[Symbol]
    imports: list[int]
    exports: list[int]
    needed: list[int]
    soname: int
    real: int
    versions: bytes
    version_count: int

    @property
    def count(self) -> int:
        return len(self.functions)


def _names(functions: list[Symbol], soname: str, real: str, library: str) -> _Names:
    strings = _Strings()
    versions, version_count = _versions(functions, soname, strings)
    return _Names(
        functions=functions,
        imports=[strings.add(name) for name in IMPORTS],
        exports=[strings.add(function.name) for function in functions],
        needed=[strings.add(name) for name in (*LOADED, library)],
        soname=strings.add(soname),
        real=strings.add(real),
        versions=versions,
        version_count=version_count,
        strings=strings.content,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Places:
    """Addresses of the parts."""

    strings: int
    strings_size: int
    gnu_hash: int
    plain_hash: int
    versyms: int
    versions: int
    symbols: int
    relocations: int
    jumps: int
    refuse: int
    begin: int
    """code that runs when the object is loaded"""
    dynamic: int
    front: int
    """struct ct_front_end of strict.c: path of the driver, number of functions, names, table, dlopen, dlsym"""
    fill: int
    """the pointer to ct_fill_front_end"""
    start: int
    names: int
    table: int


def _lay_out(image: "_Image", names: _Names, machine: "_Machine") -> _Places:
    called = [function.name for function in names.functions]
    count = names.count
    reading = {
        "strings": image.put(names.strings),
        "gnu_hash": image.put(_gnu_hash(called, FIRST)),
        "plain_hash": image.put(_plain_hash([*IMPORTS, *called])),
        "versyms": image.put(struct.pack(f"<{FIRST + count}H", *[1] * FIRST, *_version_indices(names.functions))),
        "versions": image.put(names.versions),
        "symbols": image.reserve(24 * (FIRST + count)),
        "relocations": image.reserve(24 * (len(IMPORTS) + 4 + 2 * count)),
    }
    image.segment(READ | EXECUTE)
    running = {
        "jumps": image.reserve(STUB * count),
        "refuse": image.put(machine.refuse),
        "begin": image.reserve(2 * STUB),
    }
    image.segment(READ | WRITE)
    writing = {
        "dynamic": image.reserve(16 * 24),
        "front": image.put(struct.pack("<QQQQQQ", 0, count, 0, 0, 0, 0)),
        "fill": image.reserve(8),
        "start": image.reserve(8),
        "names": image.reserve(8 * count),
        "table": image.reserve(8 * count),
    }
    return _Places(strings_size=len(names.strings), **reading, **running, **writing)


def _symbol_table(names: _Names, at: _Places) -> bytes:
    rows = [bytes(24)]
    rows += [struct.pack("<IBBHQQ", name, GLOBAL << 4, 0, 0, 0, 0) for name in names.imports]
    for number, (name, function) in enumerate(zip(names.exports, names.functions, strict=True)):
        if function.name == MARK:
            rows.append(
                struct.pack("<IBBHQQ", name, GLOBAL << 4 | OBJECT, 0, 1, at.strings + names.real, function.size)
            )
            continue
        kind = (elf.WEAK if function.weak else GLOBAL) << 4 | elf.FUNCTIONS[0]
        # The size is that of the jump: a program that copies a function's bytes must not copy the next one too.
        rows.append(struct.pack("<IBBHQQ", name, kind, 0, 1, at.jumps + STUB * number, STUB))
    return b"".join(rows)


def _relocations(names: _Names, at: _Places, machine: "_Machine") -> bytes:
    """What the loader writes when it loads the object: addresses of imported symbols, and the object's own pointers."""
    wanted = (at.front + 32, at.front + 40, at.fill)
    rows = [(where, index << 32 | machine.absolute, 0) for index, where in enumerate(wanted, 1)]
    pointers = [(at.front, at.strings + names.real), (at.front + 16, at.names), (at.front + 24, at.table)]
    pointers += [(at.start, at.begin)]
    pointers += [(at.names + 8 * number, at.strings + name) for number, name in enumerate(names.exports)]
    pointers += [(at.table + 8 * number, at.refuse) for number in range(names.count)]
    rows += [(where, machine.relative, address) for where, address in pointers]
    return b"".join(struct.pack("<QQQ", *row) for row in rows)


def _jump(machine: "_Machine", at: _Places, number: int) -> bytes:
    return machine.jump(at.jumps + STUB * number, at.table + 8 * number).ljust(STUB, b"\0")


def _dynamic(names: _Names, at: _Places) -> list[tuple[int, int]]:
    tags = [
        *((elf.DT_NEEDED, name) for name in names.needed),
        (elf.DT_SONAME, names.soname),
        (elf.DT_STRTAB, at.strings),
        (elf.DT_STRSZ, at.strings_size),
        (elf.DT_SYMTAB, at.symbols),
        (DT_SYMENT, 24),
        (elf.DT_GNU_HASH, at.gnu_hash),
        (elf.DT_HASH, at.plain_hash),
        (DT_RELA, at.relocations),
        (DT_RELASZ, 24 * (len(IMPORTS) + 4 + 2 * names.count)),
        (DT_RELAENT, 24),
        (DT_INIT_ARRAY, at.start),
        (DT_INIT_ARRAYSZ, 8),
        (DT_FLAGS_1, NODELETE),
    ]
    if names.version_count:
        tags += [(elf.DT_VERSYM, at.versyms), (elf.DT_VERDEF, at.versions), (elf.DT_VERDEFNUM, names.version_count)]
    return tags


@dataclass(slots=True)
class _Image:
    """A file under construction; its parts are aligned to 16 bytes, its segments to pages."""

    page: int
    content: bytearray = field(default_factory=bytearray)
    segments: list[tuple[int, int]] = field(default_factory=lambda: [(0, READ)])

    def __post_init__(self) -> None:
        self.reserve(64 + 5 * 56)  # filled in last

    def reserve(self, size: int) -> int:
        """Appends zeros and returns their address."""
        address = len(self.content)
        self.content += bytes(-(-size // STUB) * STUB)
        return address

    def put(self, content: bytes) -> int:
        address = self.reserve(len(content))
        self.fill(address, content)
        return address

    def fill(self, address: int, content: bytes) -> None:
        self.content[address : address + len(content)] = content

    def segment(self, access: int) -> None:
        self.content += bytes(-len(self.content) % self.page)
        self.segments.append((len(self.content), access))

    def finish(self, machine: int, dynamic: int, dynamic_size: int) -> bytes:
        ends = [start for start, _ in self.segments[1:]] + [len(self.content)]
        loads = [
            (elf.PT_LOAD, access, start, end - start) for (start, access), end in zip(self.segments, ends, strict=True)
        ]
        rows = [*loads, (elf.PT_DYNAMIC, READ | WRITE, dynamic, dynamic_size), (PT_GNU_STACK, READ | WRITE, 0, 0)]
        self.fill(0, b"\x7fELF\x02\x01\x01".ljust(16, b"\0"))
        self.fill(16, struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, len(rows), 64, 0, 0))
        for index, (kind, access, start, size) in enumerate(rows):
            align = self.page if kind == elf.PT_LOAD else 8
            header = struct.pack("<IIQQQQQQ", kind, access, start, start, start, size, size, align)
            self.fill(64 + 56 * index, header)
        return bytes(self.content)


@dataclass(slots=True)
class _Strings:
    """A string table."""

    content: bytes = b"\0"

    def add(self, text: str) -> int:
        index = len(self.content)
        self.content += text.encode() + b"\0"
        return index


def _buckets(count: int) -> int:
    return max(1, count // 4)


def _in_hash_order(functions: Sequence[Symbol]) -> list[Symbol]:
    """Sorted as the GNU hash table requires: the functions of one bucket are adjacent."""
    buckets = _buckets(len(functions))
    return sorted(functions, key=lambda function: (_gnu_hash_of(function.name) % buckets, function))


def _gnu_hash_of(name: str) -> int:
    value = 5381
    for byte in name.encode():
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def _gnu_hash(names: Sequence[str], first: int) -> bytes:
    """The hash table that the GNU loader uses; `names` are in its order, and the first has index `first`."""
    count = _buckets(len(names))
    hashes = [_gnu_hash_of(name) for name in names]
    starts = [0] * count
    words = 1 << max(0, (len(names) // 16).bit_length())
    bloom = [0] * words
    chains = []
    for index, value in enumerate(hashes):
        bucket = value % count
        starts[bucket] = starts[bucket] or first + index
        last = index + 1 == len(hashes) or hashes[index + 1] % count != bucket
        chains.append(value & ~1 | last)
        bloom[value // 64 % words] |= 1 << value % 64 | 1 << (value >> 6) % 64
    head = struct.pack("<4I", count, first, words, 6)
    return head + struct.pack(f"<{words}Q{count}I{len(chains)}I", *bloom, *starts, *chains)


def _plain_hash(names: Sequence[str]) -> bytes:
    """The older hash table, which other programs read; the first name has index 1."""
    count = _buckets(len(names))
    starts, chains = [0] * count, [0] * (len(names) + 1)
    for index, name in enumerate(names, 1):
        bucket = _plain_hash_of(name) % count
        chains[index], starts[bucket] = starts[bucket], index
    return struct.pack(f"<{2 + count + len(chains)}I", count, len(chains), *starts, *chains)


def _plain_hash_of(name: str) -> int:
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        value = (value ^ (value & 0xF0000000) >> 24) & 0x0FFFFFFF
    return value


def _version_names(functions: Sequence[Symbol]) -> list[str]:
    return sorted({function.version for function in functions if function.version is not None})


def _version_indices(functions: Sequence[Symbol]) -> list[int]:
    names = _version_names(functions)
    return [1 if function.version is None else 2 + names.index(function.version) for function in functions]


def _versions(functions: Sequence[Symbol], soname: str, strings: _Strings) -> tuple[bytes, int]:
    """Definitions of the versions of the driver's functions, and their number; the first is the library's own name."""
    names = _version_names(functions)
    if not names:
        return b"", 0
    content = b""
    for index, name in enumerate((soname, *names), 1):
        following = 0 if index == len(names) + 1 else 28
        flags = elf.BASE_VERSION if index == 1 else 0
        content += struct.pack("<HHHHIII", 1, flags, index, 1, _plain_hash_of(name), 20, following)
        content += struct.pack("<II", strings.add(name), 0)
    return content, len(names) + 1


# The code of a front-end, for each processor architecture.


def _x86_relative(opcode: bytes, at: int, target: int) -> bytes:
    """An instruction with an operand relative to the next instruction."""
    return opcode + struct.pack("<i", target - (at + len(opcode) + 4))


def _x86_jump(at: int, slot: int) -> bytes:
    return _x86_relative(b"\xff\x25", at, slot)  # jmp *slot(%rip)


def _x86_call(at: int, slot: int, argument: int) -> bytes:
    load = _x86_relative(b"\x48\x8d\x3d", at, argument)  # lea argument(%rip), %rdi
    return load + _x86_jump(at + len(load), slot)


def _arm_page(register: int, at: int, target: int) -> int:
    """adrp: loads the address of the page of `target`, relative to the page of `at`."""
    pages = (target >> 12) - (at >> 12)
    return 0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | register


def _arm_jump(at: int, slot: int) -> bytes:
    load = 0xF9400000 | (slot & 0xFFF) >> 3 << 10 | 16 << 5 | 17  # ldr x17, [x16, slot]
    return struct.pack("<III", _arm_page(16, at, slot), load, 0xD61F0220)  # br x17


def _arm_call(at: int, slot: int, argument: int) -> bytes:
    add = 0x91000000 | (argument & 0xFFF) << 10  # add x0, x0, argument
    return struct.pack("<II", _arm_page(0, at, argument), add) + _arm_jump(at + 8, slot)


@dataclass(frozen=True, slots=True)
class _Machine:
    """The instructions and the relocation numbers of one processor architecture."""

    page: int
    """bytes"""
    relative: int
    """number of the relocation for an own address"""
    absolute: int
    """number of the relocation for an imported symbol"""
    jump: Callable[[int, int], bytes]
    """code at the first address that jumps to the pointer stored at the second"""
    call: Callable[[int, int, int], bytes]
    """the same, with the third address as the argument"""
    refuse: bytes
    """code that returns STUB_LIBRARY"""


_MACHINES = {
    X86_64: _Machine(0x1000, 8, 1, _x86_jump, _x86_call, b"\xb8" + struct.pack("<I", STUB_LIBRARY) + b"\xc3"),
    AARCH64: _Machine(
        0x10000, 1027, 257, _arm_jump, _arm_call, struct.pack("<II", 0x52800000 | STUB_LIBRARY << 5, 0xD65F03C0)
    ),
}
