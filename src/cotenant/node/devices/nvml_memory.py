# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Faults of the memory of NVIDIA GPUs, found when a GPU is queried."""

from collections.abc import Callable
from typing import Any

Handle = Any
Query = Callable[..., Any]


def uncorrectable_errors(nvml: Any, query: Query, handle: Handle) -> int | None:
    """Memory errors since the driver was loaded that could not be corrected; None: the GPU does not count them."""
    kinds = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    found = query("nvmlDeviceGetTotalEccErrors", handle, *kinds)
    return None if found is None else int(found)


def memory_fault(query: Query, handle: Handle, before: int | None, errors: int | None) -> str | None:
    """What is wrong with the memory of a GPU that had so many errors before and has so many now; None: nothing."""
    if errors is not None and before is not None and errors > before:
        return f"{errors - before} new uncorrectable memory errors"
    remapped = query("nvmlDeviceGetRemappedRows", handle)
    if remapped is not None and remapped[3]:
        return "memory rows could not be remapped; the card needs replacing"
    if remapped is not None and remapped[2]:
        return "memory rows wait to be remapped; the GPU needs a reset"
    return None
