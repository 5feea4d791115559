# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The CUDA programs of the suite: `python -m cotenant.conformance.client PROGRAM [NUMBER...]` prints a line of JSON.

It runs in a slice, so it imports nothing but the standard library. Time on the GPU is measured by events of the driver.
"""

import ctypes
import json
import os
import select
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from ctypes import byref, c_char, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from cotenant.conformance.kernels import FAULT, NOTHING, SPIN, SPIN_NS, ptx_for

MIB = 1 << 20
CROWD_STEP_MIB = 8
MULTIPROCESSORS, MAJOR, MINOR = 16, 75, 76
"""Numbers of device attributes."""
OUT_OF_MEMORY = 2
THREADS = 128
CALLS, BATCHES = 500, 11
"""The cost of a call is the median over batches of the mean over the calls of a batch."""
REFUSALS = 200
WARM_UP = 5
FIRST_ROUNDS = 1000
QUEUED = 25
SETTLE = 2
"""Part of the launches that come first and are not measured: one half."""
READY = "ready"
"""What a program that waits for its start writes to standard error, before the path of its limits file."""


class DriverError(Exception):
    """The driver has refused a call that must succeed."""


class Gpu:
    """The first GPU that this process sees, with a context."""

    def __init__(self) -> None:
        began = time.perf_counter_ns()
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.device = c_int()
        self.call("cuDeviceGet", byref(self.device), 0)
        context = c_void_p()
        self.call("cuDevicePrimaryCtxRetain", byref(context), self.device)
        self.call("cuCtxSetCurrent", context)
        self.context_ns = time.perf_counter_ns() - began
        self._module: c_void_p | None = None

    def answer(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.cuda, name)(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        if code := self.answer(name, *arguments):
            raise DriverError(f"{name}: error {code}")

    def attribute(self, number: int) -> int:
        found = c_int()
        self.call("cuDeviceGetAttribute", byref(found), number, self.device)
        return found.value

    def function(self, name: bytes) -> c_void_p:
        if self._module is None:
            self._module = c_void_p()
            capability = self.attribute(MAJOR), self.attribute(MINOR)
            self.call("cuModuleLoadData", byref(self._module), ptx_for(capability))
        found = c_void_p()
        self.call("cuModuleGetFunction", byref(found), self._module, name)
        return found

    def launch(self, function: c_void_p, blocks: int, *parameters: Any) -> None:
        """Launches in the default stream; parameters are values of ctypes."""
        pointers = (c_void_p * max(1, len(parameters)))(*(ctypes.addressof(one) for one in parameters))
        shape = (c_uint(blocks), c_uint(1), c_uint(1), c_uint(THREADS), c_uint(1), c_uint(1), c_uint(0))
        self.call("cuLaunchKernel", function, *shape, c_void_p(), pointers, c_void_p())

    def wait(self) -> None:
        self.call("cuCtxSynchronize")

    def allocate(self, size: int) -> c_uint64 | None:
        """Memory on the GPU; None if there is too little."""
        address = c_uint64()
        code = self.answer("cuMemAlloc_v2", byref(address), c_size_t(size))
        if code == OUT_OF_MEMORY:
            return None
        if code:
            raise DriverError(f"cuMemAlloc: error {code}")
        return address


class Spinner:
    """Launches that keep the whole GPU busy, of so many rounds each; 0: as many as take about 2 ms."""

    def __init__(self, gpu: Gpu, rounds: int = 0) -> None:
        self._gpu, self._function = gpu, gpu.function(SPIN)
        self._blocks = 8 * gpu.attribute(MULTIPROCESSORS)
        result = gpu.allocate(4)
        if result is None:
            raise DriverError("cuMemAlloc: no memory for 4 bytes")
        self._result, self._rounds = result, c_uint64(rounds or FIRST_ROUNDS)
        self.device_ms(WARM_UP)
        for _ in range(0 if rounds else 3):  # the clock of the GPU rises with its load
            each_ns = self.device_ms(WARM_UP) / WARM_UP * 1e6
            self._rounds = c_uint64(max(1, int(self._rounds.value * SPIN_NS / each_ns)))

    @property
    def rounds(self) -> int:
        return self._rounds.value

    def device_ms(self, launches: int) -> float:
        """The time on the GPU from before the first to after the last launch."""
        begin, end, elapsed = c_void_p(), c_void_p(), c_float()
        for event in (begin, end):
            self._gpu.call("cuEventCreate", byref(event), 0)
        self._gpu.wait()
        self._gpu.call("cuEventRecord", begin, c_void_p())
        for number in range(1, launches + 1):
            self._gpu.launch(self._function, self._blocks, self._rounds, self._result)
            if number % QUEUED == 0:  # often enough to notice an error, and seldom enough to keep the GPU busy
                self._gpu.wait()
        self._gpu.call("cuEventRecord", end, c_void_p())
        self._gpu.call("cuEventSynchronize", end)
        self._gpu.call("cuEventElapsedTime", byref(elapsed), begin, end)
        return elapsed.value


def fill(gpu: Gpu, step: int = 1024) -> int:
    """Allocates all that can be had, in pieces of `step` MiB and then smaller ones down to 1 MiB; returns MiB."""
    held = 0
    while step:
        if gpu.allocate(step * MIB) is None:
            step //= 2
        else:
            held += step
    return held


def mean_ns(work: Callable[[], object]) -> float:
    """The cost of one call."""
    batches = []
    for _ in range(BATCHES):
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            work()
        batches.append((time.perf_counter_ns() - began) / CALLS)
    return statistics.median(batches)


# The programs. Each takes numbers and returns what is printed.


def about() -> dict[str, Any]:
    """The GPU, and whether the driver is the stand-in of the tests."""
    gpu = Gpu()
    name, version = (c_char * 256)(), c_int()
    gpu.call("cuDeviceGetName", name, 256, gpu.device)
    gpu.call("cuDriverGetVersion", byref(version))
    return {
        "gpu": name.value.decode(errors="replace"),
        "capability": f"{gpu.attribute(MAJOR)}.{gpu.attribute(MINOR)}",
        "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "stand_in": hasattr(gpu.cuda, "standinNow"),
        **_sizes(gpu),
    }


def _sizes(gpu: Gpu) -> dict[str, int]:
    total, free, seen = c_size_t(), c_size_t(), c_size_t()
    gpu.call("cuDeviceTotalMem_v2", byref(total), gpu.device)
    gpu.call("cuMemGetInfo_v2", byref(free), byref(seen))
    return {"total_mib": total.value // MIB, "info_mib": seen.value // MIB, "free_mib": free.value // MIB}


def memory() -> dict[str, Any]:
    """How much memory can be had, how much the driver says there is, and how long a refusal takes."""
    gpu = Gpu()
    sizes = _sizes(gpu)
    held = fill(gpu)
    refused, times = 0, []
    for _ in range(REFUSALS):
        began = time.perf_counter_ns()
        refused += gpu.allocate(MIB) is None
        times.append(time.perf_counter_ns() - began)
    return {**sizes, "got_mib": held, "refused": refused, "refusal_ns": statistics.median(times)}


def hold() -> dict[str, Any]:
    """Allocates all that can be had, says so, and holds it until its parent writes a line."""
    got = fill(Gpu())
    _wait_for_start()
    return {"got_mib": got}


def crowd(processes: int) -> dict[str, Any]:
    """Several processes of one slice fill it at the same moment and hold what they got."""
    ready, start = os.pipe(), os.pipe()
    got, leave = os.pipe(), os.pipe()
    children = []
    for _ in range(processes):
        child = os.fork()
        if child == 0:
            for end in (start[1], leave[1]):
                os.close(end)
            gpu = Gpu()
            os.write(ready[1], b"r")
            os.read(start[0], 1)  # returns when the parent has closed its end
            os.write(got[1], fill(gpu, CROWD_STEP_MIB).to_bytes(8, "little"))
            os.read(leave[0], 1)
            os._exit(0)
        children.append(child)
    for end in (ready[1], got[1]):
        os.close(end)
    try:
        for _ in children:
            if not os.read(ready[0], 1):
                raise DriverError("a process of the crowd could not use the GPU")
        os.close(start[1])
        amounts = [int.from_bytes(os.read(got[0], 8), "little") for _ in children]
    finally:
        os.close(leave[1])
        for child in children:
            os.waitpid(child, 0)
    return {"got_mib": sum(amounts), "each_mib": amounts}


def killed() -> dict[str, Any]:
    """A process holds all memory of the slice and is killed; how much can be had afterwards."""
    done = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(done[1], fill(Gpu()).to_bytes(8, "little"))
        signal.pause()
        os._exit(0)
    os.close(done[1])
    before = int.from_bytes(os.read(done[0], 8), "little")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {"before_mib": before, "got_mib": fill(Gpu())}


def costs() -> dict[str, float]:
    """Nanoseconds of calls, as a program sees them."""
    gpu = Gpu()
    nothing, address = gpu.function(NOTHING), c_uint64()
    free, total = c_size_t(), c_size_t()
    allocate, release_, info = gpu.cuda.cuMemAlloc_v2, gpu.cuda.cuMemFree_v2, gpu.cuda.cuMemGetInfo_v2
    launch, wait = gpu.cuda.cuLaunchKernel, gpu.cuda.cuCtxSynchronize
    one, none, size = c_uint(1), c_void_p(), c_size_t(MIB)
    shape = (nothing, one, one, one, one, one, one, c_uint(0), none, none, none)

    def pair() -> None:
        allocate(byref(address), size)
        release_(address)

    gpu.launch(nothing, 1)
    wait()
    launch_ns = mean_ns(lambda: launch(*shape))
    wait()
    return {
        "context_ns": gpu.context_ns,
        "launch_ns": launch_ns,
        "allocate_free_ns": mean_ns(pair),
        "info_ns": mean_ns(lambda: info(byref(free), byref(total))),
    }


def spin(launches: int, rounds: int = 0) -> dict[str, Any]:
    """Keeps the GPU busy from the moment when its parent says so."""
    spinner = Spinner(Gpu(), rounds)
    _wait_for_start()
    spinner.device_ms(launches // SETTLE)  # a share that was not used for a while may be exceeded for a moment
    return {"rounds": spinner.rounds, "device_ms": spinner.device_ms(launches), "launches": launches}


def spin_on(launches: int, rounds: int) -> dict[str, Any]:
    """Keeps the GPU busy until its parent writes a line, and makes so many launches more, which must succeed."""
    spinner = Spinner(Gpu(), rounds)
    print(READY, "-", file=sys.stderr, flush=True)
    done = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        spinner.device_ms(WARM_UP)
        done += WARM_UP
    spinner.device_ms(launches)
    return {"before": done, "after": launches}


def attend() -> dict[str, Any]:
    """Has a context, and does nothing until its parent writes a line."""
    Gpu()
    _wait_for_start()
    return {}


def _wait_for_start() -> None:
    print(READY, os.environ.get("COTENANT_LIMITS", "-"), file=sys.stderr, flush=True)
    sys.stdin.readline()


def fault() -> dict[str, Any]:
    """Writes to an address that it does not have, as a program with a defect does."""
    gpu = Gpu()
    gpu.launch(gpu.function(FAULT), 1)
    return {"error": gpu.answer("cuCtxSynchronize")}


def grow(seconds: int) -> dict[str, Any]:
    """Fills its slice and tries to allocate more, for so many seconds; says when it succeeded."""
    gpu = Gpu()
    before = fill(gpu)
    _wait_for_start()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if gpu.allocate(MIB) is not None:
            return {"before_mib": before, "grew_at": time.time()}
        time.sleep(0.001)
    return {"before_mib": before, "grew_at": None}


PROGRAMS: dict[str, Callable[..., dict[str, Any]]] = {
    one.__name__: one for one in (about, memory, hold, crowd, killed, costs, spin, spin_on, attend, fault, grow)
}


def main(words: Sequence[str]) -> int:
    name, *numbers = words
    try:
        result = PROGRAMS[name](*map(int, numbers))
    except (DriverError, OSError) as error:
        result = {"error": str(error)}
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
