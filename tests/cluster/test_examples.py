# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The example of gpushare on a real cluster, and what gpushare's own clients would show of it."""

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.engine import CARDS, Engine, gpus_of
from tests.cluster.foreign import arena_share_node, inspect_gpushare
from tests.cluster.gpus import uuid
from tests.cluster.images import PYTHON
from tests.cluster.plugins import Plugins
from tests.cluster.pods import path_of

GPUSHARE = Path(__file__).parents[2] / "examples" / "gpushare"
GPUS = [uuid(1, index) for index in range(3)]
TOTALS = [card.memory_mib // 1024 for card in CARDS]
"""GiB"""


@contextlib.contextmanager
def applied(engine: Engine, *words: str) -> Iterator[None]:
    """Manifests, as a user applies and deletes them."""
    engine.cluster.kubectl("apply", *words)
    try:
        yield
    finally:
        engine.cluster.kubectl("delete", *words)


def running(engine: Engine, labels: str, number: int, namespace: str = "default") -> list[Json]:
    """The pods with these labels, once so many run."""

    def look() -> list[Json] | None:
        found: list[Json] = engine.cluster.get(f"{path_of('', namespace)[:-1]}?labelSelector={labels}")["items"]
        return found if [one["status"]["phase"] for one in found] == ["Running"] * number else None

    return wait_for(f"{number} pods with {labels}", look)


@pytest.fixture
def plugins(engine: Engine, tmp_path: Path) -> Plugins:
    return Plugins(engine, tmp_path)


def test_the_example_of_gpushare(engine: Engine, plugins: Plugins) -> None:
    with applied(engine, "-f", str(GPUSHARE / "binpack.yaml")):
        pods = running(engine, "app%3Dbinpack", 3)
        assert [gpus_of(pod) for pod in pods] == [GPUS[:1]] * 3
        names = [pod["metadata"]["name"] for pod in pods]
        line = f"3 of {TOTALS[0]} GiB on GPU 0\n"
        wait_for("their lines", lambda: [engine.log(name) for name in names] == [line] * 3)
        with applied(engine, "-f", str(GPUSHARE / "several.yaml")):
            several = engine.started("several")
            gpus = gpus_of(several)
            assert [(share.memory, share.compute) for share in engine.record("several").held_by(0)] == [(4096, 200)] * 2
            wait_for("its line", lambda: engine.log("several") == f"GPUs {','.join(gpus)}\n")
            check_clients(engine, plugins, several, names)


def check_clients(engine: Engine, plugins: Plugins, several: Json, names: list[str]) -> None:
    """What our client shows, and what gpushare's and arena's would."""
    own = sorted(map(GPUS.index, gpus_of(several)))
    taken = [(9 if index == 0 else 0) + (4 if index in own else 0) for index in range(3)]
    heading, row = plugins.kubectl("inspect", "gpushare").splitlines()[:2]
    assert heading.split()[:5] == ["NAME", "IPADDRESS", *(f"GPU{index}(Allocated/Total)" for index in range(3))]
    assert row.split()[2:6] == [*(f"{part}/{total}" for part, total in zip(taken, TOTALS, strict=True)), "17/79"]
    details = [line.split() for line in plugins.kubectl("inspect", "gpushare", "-d").splitlines()]
    cells = {words[0]: words[2:5] for words in details if words}
    assert [cells[name] for name in names] == [["3", "0", "0"]] * 3
    assert cells["several"] == ["4" if index in own else "0" for index in range(3)]

    percents = json.loads(several["metadata"]["annotations"]["gpushare.alibabacloud.com/core-percentage"])
    assert percents == {"0": {str(index): 20 for index in own}}
    (shown,) = inspect_gpushare(engine.cluster).values()
    used = {index: part for index, part in enumerate(taken) if part}
    assert (shown.allocated, shown.gpus, shown.total) == (used, 3, 79)
    assert arena_share_node(engine.cluster, "node1") is None
    for label, row_of_arena in (("true", (len(used), 3, 17, 79)), (None, None)):
        engine.cluster.patch("/api/v1/nodes/node1", {"metadata": {"labels": {"gpushare": label}}})
        assert arena_share_node(engine.cluster, "node1") == row_of_arena


def test_a_server_as_arena_starts_it_has_its_part_of_the_whole_gpu(engine: Engine, tmp_path: Path) -> None:
    image, _, tag = PYTHON.partition(":")
    overlay = {
        "resources": [os.path.relpath(GPUSHARE / "arena", tmp_path)],
        "images": [{"name": "tensorflow/serving", "newName": image, "newTag": tag}],
    }
    (tmp_path / "kustomization.yaml").write_text(json.dumps(overlay))
    with contextlib.suppress(RefusedError):  # there already
        engine.cluster.post("/api/v1/namespaces", {"metadata": {"name": "arena"}})
    with applied(engine, "-k", str(tmp_path)):
        (pod,) = running(engine, "app%3Dmnist", 1, "arena")
        said = engine.said(pod["metadata"]["name"], namespace="arena")
        part, total = 3, TOTALS[GPUS.index(gpus_of(pod)[0])]
        assert said["total_mib"] == total * 1024  # nothing hides the rest of the GPU
        assert f"--per_process_gpu_memory_fraction={part / total:.2f}" in said["words"]
        assert said["variables"]["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(part)
        assert said["variables"]["ALIYUN_COM_GPU_MEM_DEV"] == str(total)
