# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Unmodified CUDA programs of other authors in a slice: right within the quota, a clean out-of-memory beyond it."""

import json
import re
import subprocess

import pytest

from tests.native import kit
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


def test_numba_compiles_launches_and_copies(place: kit.Slice) -> None:
    found = kit.values(python(place.write(memory=QUOTA), "-c", NUMBA))
    assert found == {"total": QUOTA, "compiled": 1, "copied": 1, "beyond": 2}
    (process,) = place.region().processes
    assert process.gpus[0].launches == 1


@pytest.mark.parametrize("tool", ["pynvml", "gpustat", "nvitop"])
def test_tools_show_what_the_slice_has_and_its_processes_use(tool: str, place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as other:
        other.ok("alloc", 0, 192 * kit.MIB)
        if tool == "pynvml":
            found = kit.values(python(place, "-c", NVML))
            assert found == {"total": QUOTA, "used": 192 * kit.MIB, "total_v2": QUOTA, "used_v2": 192 * kit.MIB}
        elif tool == "gpustat":
            (card,) = json.loads(python(place, "-m", "gpustat", "--json"))["gpus"]
            assert (card["memory.used"], card["memory.total"]) == (192, 512)
        else:
            shown = python(place, "-m", "nvitop", "-1", "--colorful")
            assert re.search(r"192\.0MiB / 512\.0MiB", shown), shown


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
