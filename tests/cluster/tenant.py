# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Runs in containers of the tests, which get its source as their command: says in a line of JSON what it sees there.

`SEES` says it and ends, `STAYS` says it and stays, `FILLS` stays with all the memory that it could get, `REPEATS` says
it again and again. Standard library only.
"""

import ctypes
import json
import os
import time
from pathlib import Path
from typing import Any

MIB = 1 << 20
OURS = ("NVIDIA_", "CUDA_", "COTENANT_", "ALIYUN_", "CAMBRICON_", "AMD_")


def text_of(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None


def cards(keeps: bool) -> dict[str, Any]:
    """The GPUs as CUDA shows them, with what can be had of each; of the first once more, for who has one."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"gpus": [], "driver": False}
    count, uuid = ctypes.c_int(), ctypes.create_string_buffer(16)
    if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return {"gpus": [], "driver": True}
    gpus, totals, rooms = [], [], []
    for device in range(count.value):
        total = ctypes.c_uint64()
        cuda.cuDeviceGetUuid_v2(uuid, device)
        cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device)
        text = uuid.raw.hex()
        gpus.append(f"GPU-{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}")
        totals.append(total.value // MIB)
        rooms.append({**shown(cuda, device), "nvml": told_by_nvml(gpus[-1]), **room(cuda, keeps)})
    return {"gpus": gpus, "driver": True, "totals": totals, "rooms": rooms, **(rooms[0] if rooms else {})}


def shown(cuda: Any, device: int) -> dict[str, int]:
    """What a GPU says is free and there, in MiB; from now on it is the current one."""
    context, free, total = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    cuda.cuCtxSetCurrent(context)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return {"free": free.value // MIB, "total": total.value // MIB}


def told_by_nvml(gpu: str) -> list[int]:
    """What nvidia-smi would show of a GPU: MiB that are there, free and used."""
    nvml, handle, memory = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
    nvml.nvmlInit_v2()
    nvml.nvmlDeviceGetHandleByUUID(gpu.encode(), ctypes.byref(handle))
    nvml.nvmlDeviceGetMemoryInfo(handle, memory)
    return [amount // MIB for amount in memory]


def room(cuda: Any, keeps: bool) -> dict[str, int]:
    """How much can be allocated on the current GPU, and the answer to one MiB more; it may be kept."""
    taken, answer, step = [], 0, 4096
    while step:
        pointer = ctypes.c_uint64()
        answer = cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_uint64(step * MIB))
        if answer:
            step //= 2
        else:
            taken.append((pointer, step))
    for pointer, _ in () if keeps else taken:
        cuda.cuMemFree_v2(pointer)
    return {"room": sum(size for _, size in taken), "beyond": answer}


def take(mib: int) -> int:
    """Keeps so much of the first GPU; CUDA's answer."""
    cuda = ctypes.CDLL("libcuda.so.1")
    cuda.cuInit(0)
    shown(cuda, 0)
    return int(cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_uint64(mib * MIB)))


def fault() -> int:
    """A kernel with a fatal exception on the first GPU; CUDA's answer."""
    cuda, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    cuda.cuModuleLoadData(ctypes.byref(module), b"image")
    cuda.cuModuleGetFunction(ctypes.byref(function), module, b"fault")
    cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
    return int(cuda.cuCtxSynchronize())


def tell(keeps: bool = False) -> None:
    seen = {
        "variables": {name: value for name, value in os.environ.items() if name.startswith(OURS)},
        "limits": text_of("/etc/cotenant/limits"),
        "preloaded": "libcotenant.so" in (text_of("/proc/self/maps") or ""),
        "at": time.time(),
        **cards(keeps),
    }
    print(json.dumps(seen), flush=True)


SOURCE = Path(__file__).read_text() if "__file__" in globals() else ""
SEES = f"{SOURCE}\ntell()"
STAYS = f"{SOURCE}\ntell()\ntime.sleep(600)"
FILLS = f"{SOURCE}\ntell(keeps=True)\ntime.sleep(600)"
REPEATS = f"{SOURCE}\nwhile True:\n    tell()\n    time.sleep(0.3)"
