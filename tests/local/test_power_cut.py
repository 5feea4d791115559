# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A power cut loses what was not synced to the disk: no job that the daemon has accepted is among it.

A library in the daemon copies the files of the journal whenever they are synced. So the copies are what a disk has at
that moment, if it drops every write that was not synced.
"""

import random
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from cotenant.local.journal import Journal
from cotenant.wire.arrays import Array
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView
from tests.local.daemon import running_daemon
from tests.native import kit

SYNCED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void keep(int fd) {
    char link[64], path[4096], part[4200], copy[4200], block[65536];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return;
    path[length] = 0;
    struct stat found;
    if (fstat(fd, &found) == 0 && S_ISDIR(found.st_mode)) {  /* a removal becomes durable with its folder */
        snprintf(part, sizeof part, "%.4000s/journal.db-journal", path);
        snprintf(copy, sizeof copy, "%s/journal.db-journal", getenv("SYNCED_TO"));
        if (access(part, F_OK) != 0) unlink(copy);
        return;
    }
    const char *name = strrchr(path, '/');
    if (name == NULL || strncmp(name, "/journal.db", 11) != 0) return;
    snprintf(copy, sizeof copy, "%s%s", getenv("SYNCED_TO"), name);
    snprintf(part, sizeof part, "%s.part", copy);
    int from = open(path, O_RDONLY | O_CLOEXEC), to = open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    while (from >= 0 && to >= 0 && (length = read(from, block, sizeof block)) > 0)
        if (write(to, block, length) != length) abort();
    close(from);
    close(to);
    rename(part, copy);
}

int fsync(int fd) {
    int result = ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
    keep(fd);
    return result;
}

int fdatasync(int fd) {
    int result = ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
    keep(fd);
    return result;
}
"""


@pytest.fixture
def synced(tmp_path: Path) -> Path:
    """The folder of the copies; the library lies beside it."""
    (tmp_path / "synced.c").write_text(SYNCED)
    command = [kit.tool("cc"), "-shared", "-fPIC", "synced.c", "-o", "synced.so", "-ldl"]
    subprocess.run(command, cwd=tmp_path, check=True)
    (tmp_path / "synced").mkdir()
    return tmp_path / "synced"


@pytest.mark.slow
def test_a_power_cut_after_any_answer_loses_no_accepted_job(synced: Path, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")  # shown when it fails
    chance = random.Random(seed)
    prefix = ("env", f"LD_PRELOAD={synced.parent / 'synced.so'}", f"SYNCED_TO={synced}")
    accepted: dict[str, int] = {}
    cuts: list[tuple[Path, dict[str, int], str | None]] = []
    with running_daemon(prefix=prefix) as daemon:
        for number in range(12):
            size = chance.choice((0, 0, 3))
            array = Array(indexes=f"0-{size - 1}") if size else None
            request = JobRequest(command=("true",), cwd="/", env={}, gpus=2, memory="100MiB", array=array)
            job = daemon.client.post("/v1/jobs", JobView, msgspec.json.encode(request)).id
            accepted[job] = size
            held = None
            if not size and number % 2:
                daemon.client.post("/v1/gpus/0/cordon", dict[str, object])
                view = daemon.submit("true", gpus=2)
                accepted[view.id] = 0
                held = daemon.client.post(f"/v1/jobs/{view.id}/hold", JobView).id
                daemon.client.post("/v1/gpus/0/uncordon", dict[str, object])
            cuts.append((shutil.copytree(synced, tmp_path / f"cut{number}"), dict(accepted), held))
    for folder, before, held in cuts:
        with Journal.open(folder / "journal.db") as journal:
            for job, size in before.items():
                whole = journal.find_array(job)
                stored = len(journal.elements(whole.number)) if whole else int(journal.find(job) is not None)
                assert stored == (size or 1), f"{job} is lost after {folder.name}"
            assert held is None or f"held/{held}" in journal.recalled("held/")
