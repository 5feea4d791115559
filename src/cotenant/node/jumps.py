# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The few instructions that the strict front-end consists of, for each kind of processor."""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from cotenant.node.elf import AARCH64, X86_64

STUB_LIBRARY = 34
"""CUDA_ERROR_STUB_LIBRARY, which every function answers where the real driver could not be opened"""
STUB = 16
"""bytes that the code of one function may have"""


def _x86_relative(opcode: bytes, at: int, target: int) -> bytes:
    """An instruction that names memory relative to the one behind it."""
    return opcode + struct.pack("<i", target - (at + len(opcode) + 4))


def _x86_jump(at: int, slot: int) -> bytes:
    return _x86_relative(b"\xff\x25", at, slot)  # jmp *slot(%rip)


def _x86_call(at: int, slot: int, argument: int) -> bytes:
    load = _x86_relative(b"\x48\x8d\x3d", at, argument)  # lea argument(%rip), %rdi
    return load + _x86_jump(at + len(load), slot)


def _arm_page(register: int, at: int, target: int) -> int:
    """adrp: the page of an address, relative to this one's."""
    pages = (target >> 12) - (at >> 12)
    return 0x90000000 | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5 | register


def _arm_jump(at: int, slot: int) -> bytes:
    load = 0xF9400000 | (slot & 0xFFF) >> 3 << 10 | 16 << 5 | 17  # ldr x17, [x16, slot]
    return struct.pack("<III", _arm_page(16, at, slot), load, 0xD61F0220)  # br x17


def _arm_call(at: int, slot: int, argument: int) -> bytes:
    add = 0x91000000 | (argument & 0xFFF) << 10  # add x0, x0, argument
    return struct.pack("<II", _arm_page(0, at, argument), add) + _arm_jump(at + 8, slot)


@dataclass(frozen=True, slots=True)
class Machine:
    """How a processor jumps through memory, and how its relocations are numbered."""

    page: int
    relative: int
    absolute: int
    jump: Callable[[int, int], bytes]
    """at an address, to where the pointer at another leads"""
    call: Callable[[int, int, int], bytes]
    """the same, with a third address as the argument"""
    refuse: bytes
    """returns STUB_LIBRARY"""


MACHINES = {
    X86_64: Machine(0x1000, 8, 1, _x86_jump, _x86_call, b"\xb8" + struct.pack("<I", STUB_LIBRARY) + b"\xc3"),
    AARCH64: Machine(
        0x10000, 1027, 257, _arm_jump, _arm_call, struct.pack("<II", 0x52800000 | STUB_LIBRARY << 5, 0xD65F03C0)
    ),
}
