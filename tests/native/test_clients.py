# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Unmodified CUDA programs of other authors in a slice: right within the quota, a clean out-of-memory beyond it."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cotenant.node.company import identify, write_list
from tests.native import kit
from tests.native.namespaces import OWN_NAMESPACE, can_unshare, found_by_agent
from tests.native.probe import probe

QUOTA = 512 * kit.MIB

BINDINGS = """
from cuda.bindings import driver as cuda

def done(answer):
    result, *values = answer
    assert result == cuda.CUresult.CUDA_SUCCESS, result
    return values[0] if len(values) == 1 else values

done(cuda.cuInit(0))
context = done(cuda.cuDevicePrimaryCtxRetain(0))
done(cuda.cuCtxSetCurrent(context))
free, total = done(cuda.cuMemGetInfo())
print("total", total)
pointer = done(cuda.cuMemAlloc(256 << 20))
sent, back = bytes(range(256)) * 16, bytearray(4096)
done(cuda.cuMemcpyHtoD(pointer, sent, len(sent)))
done(cuda.cuMemcpyDtoH(back, pointer, len(back)))
print("copied", int(bytes(back) == sent))
print("beyond", int(cuda.cuMemAlloc(512 << 20)[0]))
stream = done(cuda.cuStreamCreate(0))
print("beyond_async", int(cuda.cuMemAllocAsync(512 << 20, stream)[0]))
done(cuda.cuMemFree(pointer))
pointer = done(cuda.cuMemAlloc(512 << 20))
done(cuda.cuMemFree(pointer))
"""

CORE = """
from cuda.core import Device

device = Device(0)
device.set_current()
stream = device.create_stream()
buffer = device.allocate(128 << 20, stream=stream)
print("size", buffer.size)
try:
    device.allocate(1 << 30, stream=stream)
except Exception as error:
    print("beyond", int("OUT_OF_MEMORY" in str(error)))
buffer.close(stream)
stream.sync()
"""

NUMBA = """
import warnings
warnings.simplefilter("ignore")
import numpy
from numba import cuda
from numba.cuda.cudadrv.driver import CudaAPIError

@cuda.jit
def add(values, amount):
    at = cuda.grid(1)
    if at < values.size:
        values[at] += amount

print("total", cuda.current_context().get_memory_info().total)
values = numpy.arange(1 << 20, dtype=numpy.float64)
there = cuda.to_device(values)
add[4096, 256](there, 0.0)
cuda.synchronize()
print("compiled", len(add.signatures))
print("copied", int((there.copy_to_host() == values).all()))
try:
    cuda.device_array(1 << 27, dtype=numpy.float64)
except CudaAPIError as error:
    print("beyond", int(error.code))
"""

NVML = """
import pynvml

pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
info = pynvml.nvmlDeviceGetMemoryInfo(handle)
newer = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
print("total", info.total)
print("used", info.used)
print("total_v2", newer.total)
print("used_v2", newer.used)
for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
    print(f"process_{one.pid}", one.usedGpuMemory)
print("utilised", len(pynvml.nvmlDeviceGetProcessUtilization(handle, 0)))
print("utilised_info", len(pynvml.nvmlDeviceGetProcessesUtilizationInfo(handle, 0)))
(detail,) = pynvml.nvmlDeviceGetRunningProcessDetailList(handle, pynvml.nvmlProcessDetailList_v1, 0)
print(f"detail_{detail.pid}", detail.usedGpuMemory)
print("graphics", len(pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle)))
"""


def python(place: kit.Slice, *arguments: str) -> str:
    """What the clients' Python prints, in the slice."""
    home = {"HOME": str(place.folder), "NUMBA_CUDA_USE_NVIDIA_BINDING": "1"}
    done = kit.run(place, [kit.clients() / "bin" / "python", *arguments], env=home)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_cuda_bindings(place: kit.Slice) -> None:
    found = kit.values(python(place.write(memory=QUOTA), "-c", BINDINGS))
    assert found == {"total": QUOTA, "copied": 1, "beyond": 2, "beyond_async": 2}


def test_cuda_core(place: kit.Slice) -> None:
    found = kit.values(python(place.write(memory=QUOTA), "-c", CORE))
    assert found == {"size": 128 * kit.MIB, "beyond": 1}


@pytest.mark.slow
def test_numba_compiles_launches_and_copies(place: kit.Slice) -> None:
    found = kit.values(python(place.write(memory=QUOTA), "-c", NUMBA))
    assert found == {"total": QUOTA, "compiled": 1, "copied": 1, "beyond": 2}
    (process,) = place.region().processes
    assert process.gpus[0].launches == 1


@pytest.fixture
def shared(place: kit.Slice, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    """Two processes on one GPU: the first is of the slice, and its agent knows it, the second is of a neighbour."""
    state = str(place.folder / "state")
    neighbour = kit.Slice(tmp_path_factory.mktemp("neighbour")).write(memory=QUOTA)
    with probe(place.write(memory=QUOTA)) as own, probe(neighbour, state=state) as other:
        own.ok("alloc", 0, 192 * kit.MIB)
        other.ok("alloc", 0, 300 * kit.MIB)
        found = identify(own.process.pid)
        assert found is not None
        write_list(place.processes, [found])
        yield own.process.pid, other.process.pid


def test_pynvml_shows_what_the_slice_has_and_its_processes(place: kit.Slice, shared: tuple[int, int]) -> None:
    found = kit.values(python(place, "-c", NVML))
    assert found == {
        "total": QUOTA,
        "used": 192 * kit.MIB,
        "total_v2": QUOTA,
        "used_v2": 192 * kit.MIB,
        f"process_{shared[0]}": 192 * kit.MIB,
        "utilised": 1,
        "utilised_info": 1,
        f"detail_{shared[0]}": 192 * kit.MIB,
        "graphics": 0,
    }


def test_gpustat_shows_what_the_slice_has_and_its_processes(place: kit.Slice, shared: tuple[int, int]) -> None:
    (card,) = json.loads(python(place, "-m", "gpustat", "--json"))["gpus"]
    assert (card["memory.used"], card["memory.total"]) == (192, 512)
    assert [(one["pid"], one["gpu_memory_usage"]) for one in card["processes"]] == [(shared[0], 192)]


def test_nvitop_shows_what_the_slice_has_and_its_processes(place: kit.Slice, shared: tuple[int, int]) -> None:
    shown = python(place, "-m", "nvitop", "-1", "--colorful")
    assert re.search(r"192\.0MiB / 512\.0MiB", shown), shown
    assert [re.search(rf"\b{pid}\b", shown) is not None for pid in shared] == [True, False]


def test_our_own_program_shows_the_slice(place: kit.Slice, shared: tuple[int, int]) -> None:
    place.write(memory=QUOTA, host=128 * kit.MIB, compute=300)
    done = kit.run(place, [kit.smi()])
    assert (done.returncode, done.stderr) == (0, "")
    heading, gpu, _, _, *processes = (line.split() for line in done.stdout.splitlines())
    assert heading == ["GPU", "NAME", "USED", "MiB", "TOTAL", "MiB", "HOST", "MiB", "COMPUTE", "UTIL", "UUID"]
    assert gpu[0] == "0"
    assert gpu[-8:-3] == ["192", "640", "128", "30", "%"]
    assert gpu[-1] == kit.gpu()
    assert [line[:3] for line in processes] == [[str(shared[0]), "0", "192"]]
    (seen,) = json.loads(kit.run(place, [kit.smi(), "--json"]).stdout)["gpus"]
    assert (seen["total_mib"], seen["host_mib"], seen["compute_percent"]) == (640, 128, 30)
    assert [one["pid"] for one in seen["processes"]] == [shared[0]]
    assert "memory_probe" in seen["processes"][0]["command"]


def test_memory_that_nvml_does_not_tell_and_foreign_letters_are_shown_as_such(place: kit.Slice) -> None:
    code = f"# {'ü' * 300}\n{CONTAINED}"  # more letters than are shown, of two bytes each
    held = [sys.executable, "-c", code, str(place.processes), str(kit.smi())]
    place.write(memory=QUOTA)
    with subprocess.Popen(held, env=place.env(untold=1), stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        found = identify(int(holder.stdout.readline()))
        assert found is not None
        write_list(place.processes, [found])
        output, _ = holder.communicate(timeout=300)
    (seen,) = json.loads(output.decode("ascii"))["gpus"]
    ((command, used),) = ((one["command"], one["used_mib"]) for one in seen["processes"])
    assert used is None
    assert command.endswith("??")


def test_our_own_program_says_what_is_missing(place: kit.Slice) -> None:
    done = kit.run(place, [kit.smi()], env={"LD_LIBRARY_PATH": ""})
    assert (done.returncode, "no NVIDIA driver here" in done.stderr) == (1, True)
    done = kit.run(place, [kit.smi(), "--all"])
    assert (done.returncode, done.stderr) == (2, "cotenant-smi: unknown argument --all; expected --json or --help\n")


CONTAINED = """
import ctypes, os, subprocess, sys, time

cuda, context, pointer = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)) == 0
print(os.getpid(), flush=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
subprocess.run([sys.argv[2], "--json"])
"""


@pytest.mark.skipif(not can_unshare(), reason="needs the right to make PID namespaces")
def test_processes_in_a_container_have_the_ids_that_they_have_there(place: kit.Slice, shared: tuple[int, int]) -> None:
    place.processes.unlink()
    words = [sys.executable, "-c", CONTAINED, str(place.processes), str(kit.smi())]
    with subprocess.Popen(
        [*OWN_NAMESPACE, *words], env=place.env(host_pids=1), stdout=subprocess.PIPE, text=True
    ) as inside:
        assert inside.stdout is not None
        own = int(inside.stdout.readline())
        found = found_by_agent(inside, knows_spaces=True)
        write_list(place.processes, [found])
        output, _ = inside.communicate(timeout=300)
    assert own == found.pid != found.host_pid
    (seen,) = json.loads(output)["gpus"]
    assert [(one["pid"], one["used_mib"]) for one in seen["processes"]] == [(own, 1)]


FRAMES = ["-f", "lavfi", "-i", "testsrc=size=320x240:rate=5:duration=1"]
HASHES = ["-f", "framemd5", "-"]


def ffmpeg(place: kit.Slice, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return kit.run(place, [kit.tool("ffmpeg"), "-hide_banner", "-nostdin", "-loglevel", "error", *arguments])


def test_ffmpeg_frames_through_the_gpu_equal_those_that_stayed(place: kit.Slice) -> None:
    plain = ffmpeg(place, *FRAMES, "-vf", "format=nv12", *HASHES)
    through = ["-init_hw_device", "cuda=gpu", "-filter_hw_device", "gpu"]
    sent = ffmpeg(
        place.write(memory=QUOTA), *through, *FRAMES, "-vf", "format=nv12,hwupload_cuda,hwdownload,format=nv12", *HASHES
    )
    assert (sent.returncode, sent.stderr) == (0, "")
    hashes = re.findall(r"\b[0-9a-f]{32}\b", sent.stdout)
    assert len(hashes) == 5
    assert hashes == re.findall(r"\b[0-9a-f]{32}\b", plain.stdout)
    (process,) = place.region().processes
    assert 320 * 240 * 3 // 2 <= process.gpus[0].peak_bytes <= QUOTA


def test_ffmpeg_over_its_quota_says_that_memory_is_out(place: kit.Slice) -> None:
    through = ["-init_hw_device", "cuda=gpu", "-filter_hw_device", "gpu"]
    sent = ffmpeg(
        place.write(memory=64 << 10), *through, *FRAMES, "-vf", "format=nv12,hwupload_cuda", "-f", "null", "-"
    )
    assert sent.returncode != 0
    assert "Cannot allocate memory" in sent.stderr
    (process,) = place.region().processes
    assert process.gpus[0].refused > 0


def test_all_that_the_cuda_runtime_looks_up_passes_through_us(place: kit.Slice) -> None:
    (runtime,) = kit.clients().glob("lib/python*/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12")
    program = kit.program("client_cudart", linked=False)
    alone = kit.values(kit.run(place, [program, runtime], env={"LD_PRELOAD": ""}).stdout)
    assert alone["drivers"] > 30  # so without hooks the runtime does have the driver's functions
    held = kit.values(kit.run(place.write(memory=QUOTA), [program, runtime]).stdout)
    assert (held["drivers"], held["ours"]) == (0, alone["drivers"])
