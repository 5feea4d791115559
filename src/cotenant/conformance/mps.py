# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The capacity of MPS and its control of threads: how many clients fit, and what the active thread percentage does."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cotenant.conformance.bench import Bench, Check, Finding
from cotenant.conformance.report import Way
from cotenant.conformance.running import ClientError, Slice
from cotenant.core.isolation import CLIENTS
from cotenant.node.devices.compute_modes import ComputeMode
from cotenant.node.mps_daemon import CONTROL, MpsDaemon
from cotenant.node.mps_files import MpsError

CROWDS = (1, 2, 4, 8)
"""clients at the same time"""
MEMORY_CLIENTS = 8
NOT_INSTALLED = f"{CONTROL} is not installed"


class _Unchanged:
    """The compute mode stays: clients without MPS are measured, too."""

    def mode(self, uuid: str) -> ComputeMode | None:
        return None

    def set_mode(self, uuid: str, mode: ComputeMode) -> bool:
        return False


@contextlib.contextmanager
def control_daemon(gpu: str) -> Iterator[Path | str]:
    """The folder of a control daemon for this GPU, which is ended afterwards; or why there is none."""
    found = shutil.which(CONTROL)
    if found is None:
        yield NOT_INSTALLED
        return
    folder = Path(tempfile.mkdtemp(prefix="ctm"))  # the path of a socket must be short
    daemon = MpsDaemon(folder / "mps", gpu, "conformance", _Unchanged(), Path(found))
    try:
        try:
            daemon.start()
        except MpsError as error:
            yield str(error)
            return
        yield daemon.pipe
    finally:
        with contextlib.suppress(MpsError):
            daemon.clean()
        shutil.rmtree(folder, ignore_errors=True)


def _clients(bench: Bench, way: Way) -> Finding:
    """Starts clients until one is refused, or there is one more than a server takes."""
    with contextlib.ExitStack() as stack:
        for number in range(CLIENTS + 1):
            client = stack.enter_context(bench.runner.client(Slice(way=way), "attend"))
            try:
                client.wait_until_ready()
            except ClientError as error:
                return float(number), None, f"client {number + 1} was refused: {error}"
    return float(CLIENTS + 1), None, "none was refused"


def _memory_clients(bench: Bench, way: Way) -> Finding:
    """Clients with an eighth of the memory each fill it at the same time."""
    limit = bench.device.free_mib // MEMORY_CLIENTS * 9 // 10
    with bench.runner.together([Slice(way=way, memory_mib=limit)] * MEMORY_CLIENTS, "hold") as clients:
        got = [client.result()["got_mib"] for client in clients]
    full = sum(mib >= limit * 98 // 100 for mib in got)
    return float(full), full == MEMORY_CLIENTS and max(got) <= limit, f"each may have {limit} MiB; they got {got}"


def _threads(bench: Bench, way: Way) -> Finding:
    """The throughput of several clients with equal parts of the threads, of that of one without limits."""
    series = []
    for count in CROWDS:
        place, alone = Slice(way=way, compute_percent=100 // count), bench.alone_ms()
        with bench.runner.together([place] * count, "spin", bench.effort.launches, bench.rounds) as clients:
            times = [float(client.result()["device_ms"]) for client in clients]
        series.append((count, 100 * sum(alone / one for one in times)))
    said = ", ".join(f"{count} with {100 // count} %: {percent:.0f} %" for count, percent in series)
    return series[-1][1], None, said


MPS_CHECKS = (
    Check(
        name="mps-clients",
        title="Clients that one MPS server takes",
        measure=_clients,
        ways=(Way.MPS,),
        unit="clients",
        slow=True,
    ),
    Check(
        name="mps-memory",
        title=f"Clients of {MEMORY_CLIENTS} that fill their pinned memory limits at the same time",
        measure=_memory_clients,
        ways=(Way.MPS,),
        unit="clients",
        expected=str(MEMORY_CLIENTS),
    ),
    Check(
        name="mps-threads",
        title=f"Throughput of {CROWDS[-1]} clients with equal parts of the threads, of one without limits",
        measure=_threads,
        ways=(Way.MPS,),
        unit="%",
    ),
)
