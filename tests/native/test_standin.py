# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The stand-in driver: what all other tests of this folder take for granted."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.native import kit
from tests.native.namespaces import OWN_NAMESPACE, can_unshare, descendant
from tests.native.standins import MILLISECOND, client, environment, finish, line_of, started

MIB = kit.MIB
NOT_SUPPORTED = 801
needs_namespaces = pytest.mark.skipif(not can_unshare(), reason="needs the right to make PID namespaces")


@pytest.mark.parametrize("major", [12, 13])
def test_every_function_of_the_headers_is_there(major: int) -> None:
    header = (kit.headers(major) / "cuda.h").read_text()
    declared = set(re.findall(r"^CUresult CUDAAPI (cu\w+)\(", header, re.MULTILINE))
    folder = kit.standin(major)
    listed = subprocess.run(["nm", "-D", "--defined-only", folder / "libcuda.so.1"], capture_output=True, text=True)
    exported = {line.split()[-1] for line in listed.stdout.splitlines()}
    assert len(declared) > 350
    assert declared <= exported


def test_a_function_is_found_by_version_and_kind_of_stream(tmp_path: Path) -> None:
    found = client(
        tmp_path,
        """
def find(name, version=12090, flags=0):
    status, at = ctypes.c_int(-1), ctypes.c_uint64()
    ok(call(cu.cuGetProcAddress_v2, name, ctypes.byref(at), version, flags, ctypes.byref(status)))
    return at.value, status.value
symbol = lambda name: ctypes.cast(getattr(cu, name), ctypes.c_void_p).value
tell(new=find(b"cuMemAlloc")[0] == symbol("cuMemAlloc_v2"), old=find(b"cuMemAlloc", 2000)[0] == symbol("cuMemAlloc"))
tell(legacy=find(b"cuLaunchKernel", flags=1)[0] == symbol("cuLaunchKernel"))
tell(thread=find(b"cuLaunchKernel", flags=2)[0] == symbol("cuLaunchKernel_ptsz"))
tell(unknown=find(b"cuNothing")[1], early=find(b"cuMemAllocAsync", 10000)[1], hidden=find(b"cuMemCreate")[1])
""",
        missing="cuMemCreate,cuMemMap",
    )
    assert found == {"new": 1, "old": 1, "legacy": 1, "thread": 1, "unknown": 1, "early": 2, "hidden": 1}


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("2,0", [3, 1]),
        ("1,7,0", [2]),
        (f"{kit.gpu(3)},GPU-00000000-0000-0000-0000-000000000002", [3, 2]),
        ("GPU-0", []),
        ("0,0", []),
        ("", []),
    ],
)
def test_devices_are_seen_as_the_driver_would(tmp_path: Path, visible: str, seen: list[int]) -> None:
    script = """
if cu.cuInit(0) == 0:
    for i in range(out(cu.cuDeviceGetCount)):
        uuid = ctypes.create_string_buffer(16)
        ok(cu.cuDeviceGetUuid_v2(uuid, i))
        tell(**{f"device{i}": uuid.raw[15]})
"""
    found = client(tmp_path, script, devices=3, CUDA_VISIBLE_DEVICES=visible)
    assert list(found.values()) == seen


def test_memory_is_counted_where_it_lies(tmp_path: Path) -> None:
    found = client(
        tmp_path,
        """
begin(1)
first, second = out(cu.cuMemAlloc_v2, 3 * MIB), out(cu.cuMemAlloc_v2, 5 * MIB)
tell(both=used(device=0), peak=cu.standinPeak(0), other=used(device=1))
ok(call(cu.cuMemFree_v2, first))
pointer = ctypes.byref(ctypes.c_uint64())
tell(one=used(os.getpid()), twice=call(cu.cuMemFree_v2, first), too_much=call(cu.cuMemAlloc_v2, pointer, 60 * MIB))
ok(call(cu.cuMemFree_v2, second))
old = out(cu.cuMemAlloc, 7 * MIB, kind=ctypes.c_uint32)
tell(end=used() - 7 * MIB, narrow=old < 1 << 32)
""",
        devices=2,
        memory_mib=64,
        CUDA_VISIBLE_DEVICES="1,0",
    )
    assert found["both"] == found["peak"] == 8 * MIB
    assert (found["other"], found["one"], found["end"], found["narrow"]) == (0, 5 * MIB, 0, 1)
    assert (found["twice"], found["too_much"]) == (1, 2)


def test_a_context_takes_its_memory_with_it(tmp_path: Path) -> None:
    found = client(
        tmp_path,
        """
ok(cu.cuInit(0))
context = out(cu.cuCtxCreate_v2, 0, 0)
kept = out(cu.cuMemAlloc_v2, 4 * MIB)
tell(before=used())
ok(call(cu.cuCtxDestroy_v2, context))
tell(after=used(), current=out(cu.cuCtxGetCurrent), dead=call(cu.cuCtxSetCurrent, context))
begin()
kept = out(cu.cuMemAlloc_v2, 4 * MIB)
ok(cu.cuDevicePrimaryCtxReset_v2(0))
tell(reset=used(), gone=call(cu.cuMemAlloc_v2, ctypes.byref(ctypes.c_uint64()), 1))
""",
    )
    assert found == {"before": 4 * MIB, "after": 0, "current": 0, "dead": 709, "reset": 0, "gone": 709}


def test_killed_processes_leave_nothing_and_hold_up_nobody(tmp_path: Path) -> None:
    done = subprocess.run(
        [kit.program("standin_storm"), "150", "4"],
        env=environment(tmp_path, backing="none"),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert kit.values(done.stdout) == {"left": 0, "busy": 20 * MILLISECOND}


def test_a_process_that_becomes_another_program_or_closes_its_files(tmp_path: Path) -> None:
    script = """
begin()
out(cu.cuMemAlloc_v2, 6 * MIB)
os.closerange(3, 4096)
tell(holds=1)
sys.stdin.readline()
os.execv("/bin/sleep", ["sleep", "60"])
"""
    look = """
import time
for _ in range(200):
    if used():
        time.sleep(0.02)
tell(used=used())
"""
    with started(tmp_path, script) as process:
        line_of(process)
        assert client(tmp_path, "tell(used=used())") == {"used": 6 * MIB}
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
        assert client(tmp_path, look) == {"used": 0}


HOLDS = """
from tests.native.standin_client import *
begin()
out(cu.cuMemAlloc_v2, int(sys.argv[1]) * MIB)
tell(holds=1)
sys.stdin.readline()
"""
LOOKS_AS_THE_HOST = """
nvml, handle, count = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), ctypes.c_uint(64)
ok(nvml.nvmlInit_v2())
ok(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)))
ok(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), ctypes.create_string_buffer(64 * 64)))
tell(**{f"pid{pid}": used(pid) for pid in PIDS})
"""


def start_tick(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


@contextmanager
def containers_of_one_tick(folder: Path, host: int) -> "Iterator[dict[int, subprocess.Popen[str]]]":
    """Processes with the same number, each in namespaces of its own, by their numbers on the host."""
    holds = ["sh", "-c", 'echo; read size; exec "$0" -c "$1" "$size"', sys.executable, HOLDS]
    for _ in range(20):
        with ExitStack() as stack:
            ticks: dict[str, dict[int, subprocess.Popen[str]]] = {}
            processes = []
            for _ in range(12):
                process = subprocess.Popen(
                    [*OWN_NAMESPACE, "--mount-proc", *holds],
                    env=environment(folder, host_pids=host),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                processes.append(stack.enter_context(process))
                stack.callback(process.kill)
            for process in processes:
                line_of(process)
                pid = descendant(process)
                ticks.setdefault(start_tick(pid), {})[pid] = process
            most = max(ticks.values(), key=len)
            if len(most) > 1:
                yield most
                return
    raise AssertionError("no two processes began in the same tick")


@needs_namespaces
def test_processes_of_containers_that_began_in_the_same_tick_are_told_apart(tmp_path: Path) -> None:
    host = Path("/proc/self/ns/pid").stat().st_ino
    with containers_of_one_tick(tmp_path, host) as found:
        for size, process in enumerate(found.values(), 1):
            assert process.stdin
            process.stdin.write(f"{size}\n")
            process.stdin.flush()
            assert line_of(process) == "holds 1"
        seen = client(tmp_path, f"PIDS = {list(found)}\n{LOOKS_AS_THE_HOST}", host_pids=host)
        assert seen == {f"pid{pid}": size * MIB for size, pid in enumerate(found, 1)}


def test_a_forked_child_begins_anew(tmp_path: Path) -> None:
    found = client(
        tmp_path,
        """
begin()
out(cu.cuMemAlloc_v2, 2 * MIB)
child = os.fork()
if child == 0:
    tell(child_before=cu.cuCtxSynchronize())
    begin()
    out(cu.cuMemAlloc_v2, 3 * MIB)
    tell(child=used(os.getpid()), all=used())
    os._exit(0)
os.waitpid(child, 0)
tell(parent=used(os.getpid()), left=used())
""",
    )
    assert found == {"child_before": 3, "child": 3 * MIB, "all": 5 * MIB, "parent": 2 * MIB, "left": 2 * MIB}


def test_memory_can_be_filled_and_copied(tmp_path: Path) -> None:
    found = client(
        tmp_path,
        """
begin()
one, two = out(cu.cuMemAlloc_v2, 4096), out(cu.cuMemAllocManaged, 4096, 1)
ok(call(cu.cuMemcpyHtoD_v2, one, bytes(range(256)) * 16, 4096))
ok(call(cu.cuMemcpyDtoD_v2, two, one, 4096))
ok(call(cu.cuMemsetD32_v2, two + 8, 0x01020304, 2))
back = ctypes.create_string_buffer(4096)
ok(call(cu.cuMemcpyDtoH_v2, back, two, 4096))
tell(kept=back.raw[:8] == bytes(range(8)), filled=int.from_bytes(back.raw[8:16], "little"), tail=back.raw[4095])
managed = ctypes.c_uint()
for name, pointer in (("plain", one), ("managed", two + 100)):
    ok(call(cu.cuPointerGetAttribute, ctypes.byref(managed), 8, pointer))
    tell(**{name: managed.value})
tell(used=used())
""",
    )
    assert found["filled"] == 0x0102030401020304
    assert (found["kept"], found["tail"], found["plain"], found["managed"], found["used"]) == (1, 255, 0, 1, 4096)


def test_memory_opened_by_handle_is_the_same_memory_and_counts_once(tmp_path: Path) -> None:
    owner = """
begin()
pointer = out(cu.cuMemAlloc_v2, 2 * MIB)
ok(call(cu.cuMemsetD8_v2, pointer, 7, 2 * MIB))
handle = ctypes.create_string_buffer(64)
ok(call(cu.cuIpcGetMemHandle, handle, pointer))
print(handle.raw.hex(), flush=True)
sys.stdin.readline()
back = ctypes.create_string_buffer(2)
ok(call(cu.cuMemcpyDtoH_v2, back, pointer, 2))
tell(first=back.raw[0], second=back.raw[1])
"""
    importer = """
begin()
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]
handle = Handle.from_buffer_copy(bytes.fromhex(sys.stdin.readline().strip()))
pointer, again = out(cu.cuIpcOpenMemHandle_v2, handle, 1), out(cu.cuIpcOpenMemHandle_v2, handle, 1)
ok(call(cu.cuMemsetD8_v2, pointer, 9, 1))
tell(same=pointer == again, used=used(), own=used(os.getpid()))
ok(call(cu.cuIpcCloseMemHandle, pointer))
ok(call(cu.cuIpcCloseMemHandle, pointer))
tell(closed=call(cu.cuIpcCloseMemHandle, pointer))
"""
    with started(tmp_path, owner) as maker, started(tmp_path, importer) as other:
        found = finish(other, line_of(maker) + "\n")
        assert finish(maker, "\n") == {"first": 9, "second": 7}
    assert found == {"same": 1, "used": 2 * MIB, "own": 0, "closed": 1}


def test_a_pool_keeps_what_is_freed_until_somebody_synchronises(tmp_path: Path) -> None:
    found = client(
        tmp_path,
        """
begin()
def pool_has(attribute):
    value = ctypes.c_uint64()
    ok(call(cu.cuMemPoolGetAttribute, pool, attribute, ctypes.byref(value)))
    return value.value
pool = out(cu.cuDeviceGetDefaultMemPool, 0)
pointer = out(cu.cuMemAllocAsync, 3 * MIB, 0)
tell(reserved=pool_has(5), pool_used=pool_has(7), used=used())
ok(call(cu.cuMemFreeAsync, pointer, 0))
tell(freed=pool_has(7), kept=used())
ok(call(cu.cuStreamSynchronize, 0))
tell(settled=used(), high=pool_has(6))
ok(call(cu.cuMemPoolSetAttribute, pool, 4, ctypes.byref(ctypes.c_uint64(8 * MIB))))
ok(call(cu.cuMemFree_v2, out(cu.cuMemAllocAsync, 10 * MIB, 0)))
ok(call(cu.cuStreamSynchronize, 0))
tell(threshold=used())
ok(call(cu.cuMemPoolTrimTo, pool, 0))
tell(trimmed=used())
""",
    )
    expected = {"reserved": 4, "pool_used": 3, "used": 4, "freed": 0, "kept": 4, "settled": 0, "high": 4}
    assert found == {name: value * MIB for name, value in (expected | {"threshold": 8, "trimmed": 0}).items()}


def test_physical_memory_lives_as_long_as_a_handle_or_a_mapping(tmp_path: Path) -> None:
    found = client(
        tmp_path,
        """
begin()
class Properties(ctypes.Structure):
    _fields_ = [("words", ctypes.c_int * 4), ("rest", ctypes.c_uint64 * 2)]
asked = Properties((ctypes.c_int * 4)(1, 1, 1, 0))  # pinned, to be shared by descriptor, on the device, 0
access = (ctypes.c_int * 3)(1, 0, 3)
memory = out(cu.cuMemCreate, 4 * MIB, ctypes.byref(asked), 0)
address = out(cu.cuMemAddressReserve, 8 * MIB, 0, 0, 0)
ok(call(cu.cuMemMap, address, 4 * MIB, 0, memory, 0))
ok(call(cu.cuMemSetAccess, address, 4 * MIB, access, 1))
ok(call(cu.cuMemsetD8_v2, address, 5, 4 * MIB))
file = ctypes.c_int()
ok(call(cu.cuMemExportToShareableHandle, ctypes.byref(file), memory, 1, 0))
second, second_file = out(cu.cuMemCreate, 4 * MIB, ctypes.byref(asked), 0), ctypes.c_int()
ok(call(cu.cuMemExportToShareableHandle, ctypes.byref(second_file), second, 1, 0))
ok(call(cu.cuMemRelease, second))
tell(one_inode=os.fstat(file.value).st_ino == os.fstat(second_file.value).st_ino)
ok(call(cu.cuMemRelease, memory))
other = ctypes.byref(ctypes.c_uint64())
tell(mapped=used(), uneven=call(cu.cuMemCreate, other, 3, ctypes.byref(asked), 0))
imported = out(cu.cuMemImportFromShareableHandle, file.value, 1)
ok(call(cu.cuMemMap, address + 4 * MIB, 4 * MIB, 0, imported, 0))
ok(call(cu.cuMemSetAccess, address + 4 * MIB, 4 * MIB, access, 1))
tell(shared=ctypes.c_char.from_address(address + 4 * MIB + 99).value[0], both=used())
retained = out(cu.cuMemRetainAllocationHandle, address)
ok(call(cu.cuMemUnmap, address, 8 * MIB))
tell(retained=used())
ok(call(cu.cuMemRelease, retained))
tell(imported=used())
ok(call(cu.cuMemRelease, imported))
tell(end=used())
""",
    )
    held = 4 * MIB
    expected = {
        "one_inode": 1,
        "mapped": held,
        "uneven": 1,
        "shared": 5,
        "both": held,
        "retained": held,
        "imported": held,
        "end": 0,
    }
    assert found == expected


def test_arrays_take_their_size(tmp_path: Path) -> None:
    found = client(
        tmp_path,
        """
begin()
flat = (ctypes.c_uint64 * 3)(1024, 512, 0x20 | 2 << 32)  # floats, two channels
array = out(cu.cuArrayCreate_v2, flat)
tell(flat=used())
ok(call(cu.cuArrayDestroy, array))
deep = (ctypes.c_uint64 * 5)(64, 64, 64, 0x01 | 1 << 32, 0)
mipmap = out(cu.cuMipmappedArrayCreate, deep, 3)
tell(mipmap=used())
ok(call(cu.cuMipmappedArrayDestroy, mipmap))
tell(end=used())
""",
    )
    assert found == {"flat": 1024 * 512 * 8, "mipmap": 64**3 + 32**3 + 16**3, "end": 0}


def test_faults_come_when_they_are_asked_for(tmp_path: Path) -> None:
    script = """
begin()
pointer = ctypes.c_uint64()
answers = [cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_uint64(16)) for _ in range(4)]
tell(third=answers[2], fourth=answers[3], fine=sum(answers[:2]), calls=cu.standinCalls(b"cuMemAlloc_v2"))
tell(counted=cu.standinCalls(b"cuInit"), unsupported=cu.cuTexRefCreate(None))
"""
    log = tmp_path / "log"
    found = client(tmp_path, script, faults="cuMemAlloc_v2=2@3", count="cuInit", log=str(log))
    unsupported = {"counted": 1, "unsupported": NOT_SUPPORTED}
    assert found == {"third": 2, "fourth": 2, "fine": 0, "calls": 4} | unsupported
    assert log.read_text() == "cuTexRefCreate\n"


def test_nvml_sees_memory_processes_and_the_past_window(tmp_path: Path) -> None:
    script = """
nv = ctypes.CDLL("libnvidia-ml.so.1")
begin()
out(cu.cuMemAlloc_v2, 4 * MIB)
launch(kernel(50_000_000))
ok(cu.cuCtxSynchronize())
ok(nv.nvmlInit_v2())
handle = ctypes.c_uint64()
ok(nv.nvmlDeviceGetHandleByUUID(b"GPU-00000000-0000-0000-0000-000000000001", ctypes.byref(handle)))
device = handle.value
memory, rates = (ctypes.c_uint64 * 3)(), (ctypes.c_uint * 2)()
ok(call(nv.nvmlDeviceGetMemoryInfo, device, memory))
def percent():
    ok(call(nv.nvmlDeviceGetUtilizationRates, device, rates))
    return rates[0]
tell(used=memory[2], late=percent())
cu.standinSleepUntil(cu.standinNow() + 100_000_000)
tell(half=percent())
class Sample(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("when", ctypes.c_uint64), ("sm", ctypes.c_uint), ("rest", ctypes.c_uint * 3)]
samples, count = (Sample * 4)(), ctypes.c_uint(4)
ok(call(nv.nvmlDeviceGetProcessUtilization, device, samples, ctypes.byref(count), 0))
tell(count=count.value, own=samples[0].pid == os.getpid(), sm=samples[0].sm)
"""
    found = client(tmp_path, script, clock="virtual", nvml_window_ms=100, nvml_lag_ms=100)
    assert found == {"used": 4 * MIB, "late": 0, "half": 50, "count": 1, "own": 1, "sm": 50}
    broken = """
nv = ctypes.CDLL("libnvidia-ml.so.1")
ok(nv.nvmlInit_v2())
tell(answer=nv.nvmlDeviceGetCount_v2(ctypes.byref(ctypes.c_uint())))
"""
    assert client(tmp_path, broken, clock="virtual", faults="nvmlDeviceGetCount_v2=999") == {"answer": 999}
    without_file = client(tmp_path, script, clock="virtual", nvml_window_ms=100, nvml_lag_ms=100, state="")
    assert without_file == found


def test_cards_differ_in_name_and_memory_and_a_container_sees_only_its_own(tmp_path: Path) -> None:
    found = client(
        tmp_path,
        """
ok(cu.cuInit(0))
count = ctypes.c_int()
ok(cu.cuDeviceGetCount(ctypes.byref(count)))
name, uuid = ctypes.create_string_buffer(96), ctypes.create_string_buffer(16)
ok(cu.cuDeviceGetName(name, 96, 1))
ok(cu.cuDeviceGetUuid_v2(uuid, 1))
tell(count=count.value, small=out(cu.cuDeviceTotalMem_v2, 0) // MIB, large=out(cu.cuDeviceTotalMem_v2, 1) // MIB)
tell(named=name.value == b"Tesla T4", number=uuid.raw[15])
nvml = ctypes.CDLL("libnvidia-ml.so.1")
ok(nvml.nvmlInit_v2())
handle = ctypes.c_uint64()
ok(nvml.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(handle)))
ok(call(nvml.nvmlDeviceGetName, handle, name, 96))
minor, index = ctypes.c_uint(), ctypes.c_uint()
ok(call(nvml.nvmlDeviceGetMinorNumber, handle, ctypes.byref(minor)))
ok(call(nvml.nvmlDeviceGetIndex, handle, ctypes.byref(index)))
tell(both=name.value == b"Tesla T4", minor=minor.value, index=index.value)
other, level = ctypes.c_uint64(), ctypes.c_int()
ok(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(other)))
ok(call(nvml.nvmlDeviceGetTopologyCommonAncestor, handle, other, ctypes.byref(level)))
tell(far=level.value)
""",
        devices=4,
        first=17,
        memory_mib="1024,2048,4096",
        names="Tesla V100-PCIE-32GB,Tesla T4",
        visible="3,GPU-00000000-0000-0000-0000-000000000011",
    )
    assert (found["count"], found["small"], found["large"]) == (2, 1024, 4096)
    assert (found["named"], found["both"], found["number"]) == (1, 1, 20)
    assert (found["minor"], found["index"], found["far"]) == (3, 1, 50)


def test_a_card_breaks_and_is_mended_while_others_look(tmp_path: Path) -> None:
    script = """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
ok(nvml.nvmlInit_v2())
def name(card):
    handle, text = ctypes.c_uint64(), ctypes.create_string_buffer(96)
    ok(nvml.nvmlDeviceGetHandleByIndex_v2(card, ctypes.byref(handle)))
    return call(nvml.nvmlDeviceGetName, handle, text, 96)
cu.standinBreak(1, 15)
tell(other=name(0), lost=name(1))
cu.standinBreak(1, 0)
tell(mended=name(1))
"""
    assert client(tmp_path, script, devices=2) == {"other": 0, "lost": 15, "mended": 0}
