# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What scripts that try the stand-in driver begin with: `from tests.native.standin_client import *`."""

import ctypes
import os
import sys
from typing import Any

cu = ctypes.CDLL("libcuda.so.1")
for _name in ("standinNow", "standinBusy", "standinUsed", "standinPeak", "standinCalls"):
    getattr(cu, _name).restype = ctypes.c_uint64
cu.standinBusy.argtypes = [ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint64]
cu.standinSleepUntil.argtypes = [ctypes.c_uint64]
MIB = 1 << 20
SECOND = 1_000_000_000


def ok(answer: int) -> None:
    """Ends the script, with the line that called, unless the driver says it worked."""
    if answer:
        line = sys._getframe(1).f_lineno
        sys.exit(f"line {line}: the driver answers {answer}")


def out(function: Any, *arguments: Any, kind: Any = ctypes.c_uint64) -> int:
    """What a function writes through its first parameter."""
    made = kind()
    ok(function(ctypes.byref(made), *map(number, arguments)))
    return int(made.value or 0)


def number(argument: Any) -> Any:
    """Integers of any width; others as they are."""
    return ctypes.c_uint64(argument) if isinstance(argument, int) else argument


def call(function: Any, *arguments: Any) -> int:
    """The answer of a function whose parameters may be wide."""
    return int(function(*map(number, arguments)))


def begin(device: int = 0) -> int:
    """Initialises, and makes the primary context current."""
    ok(cu.cuInit(0))
    context = out(cu.cuDevicePrimaryCtxRetain, device)
    ok(call(cu.cuCtxSetCurrent, context))
    return context


def kernel(length_ns: int) -> int:
    """A function that takes that long."""
    return out(cu.cuModuleGetFunction, out(cu.cuModuleLoadData, b"image"), b"ns_%d" % length_ns)


def launch(function: int, stream: int = 0) -> None:
    """On one block of one thread."""
    ok(call(cu.cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, stream, None, None))


def elapsed(first: int, second: int) -> int:
    """Nanoseconds between two events."""
    milliseconds = ctypes.c_float()
    ok(call(cu.cuEventElapsedTime, ctypes.byref(milliseconds), first, second))
    return round(milliseconds.value * 1e6)


def event_on(stream: int = 0) -> int:
    """An event recorded now."""
    made = out(cu.cuEventCreate, 0)
    ok(call(cu.cuEventRecord, made, stream))
    return made


def used(pid: int = 0, device: int = 0) -> int:
    """Bytes on a device of the machine."""
    return int(cu.standinUsed(device, pid))


def busy_since(began: int, pid: int = 0) -> int:
    """Nanoseconds that the first device has worked."""
    return int(cu.standinBusy(0, pid, began, cu.standinNow()))


def tell(**figures: int) -> None:
    """Prints what the test reads."""
    for name, value in figures.items():
        print(name, int(value), flush=True)


__all__ = ["MIB", "SECOND", "begin", "busy_since", "call", "ctypes", "cu", "elapsed", "event_on", "kernel", "launch"]
__all__ += ["number", "ok", "os", "out", "sys", "tell", "used"]
