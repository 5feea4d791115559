# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The kernels of the suite, as PTX, which every driver compiles for its GPU."""

SPIN = b"spin_ns_2000000"
"""Computes for as many rounds as its first parameter says. By this name the stand-in driver lets it take 2 ms."""
SPIN_NS = 2_000_000
NOTHING = b"nothing_ns_0"
FAULT = b"fault"
"""Writes to an address that no process has."""

OLD, NEW = (5, 0), (7, 5)
"""Compute capabilities that the kernels are written for: drivers for new GPUs no longer compile for the oldest."""

_PTX = """
.version 6.4
.target sm_{target}
.address_size 64

.visible .entry {spin}(.param .u64 rounds, .param .u64 result)
{{
    .reg .pred %again;
    .reg .b64 %done, %rounds, %result;
    .reg .f32 %sum;
    ld.param.u64 %rounds, [rounds];
    ld.param.u64 %result, [result];
    mov.u64 %done, 0;
    mov.f32 %sum, 0f3F800000;
NEXT:
    fma.rn.f32 %sum, %sum, 0f3F800001, 0f33D6BF95;
    add.u64 %done, %done, 1;
    setp.lt.u64 %again, %done, %rounds;
    @%again bra NEXT;
    st.global.f32 [%result], %sum;
    ret;
}}

.visible .entry {nothing}()
{{
    ret;
}}

.visible .entry {fault}()
{{
    .reg .b64 %nowhere;
    mov.u64 %nowhere, 16;
    st.global.u32 [%nowhere], 1;
    ret;
}}
"""


def ptx_for(capability: tuple[int, int]) -> bytes:
    """The source of all kernels for a GPU of this compute capability, with the zero byte that the driver expects."""
    major, minor = NEW if capability >= NEW else OLD
    names = {"spin": SPIN.decode(), "nothing": NOTHING.decode(), "fault": FAULT.decode()}
    return _PTX.format(target=f"{major}{minor}", **names).encode() + b"\0"
