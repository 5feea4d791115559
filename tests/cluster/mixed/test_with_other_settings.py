# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The cluster of two vendors after its administrator has changed the settings, for examples that need them:
`examples/cambricon/env-share.yaml`, and `examples/hami/ai-benchmark.yaml` on nodes with and without virtual memory.

The changed settings stay, so this is the last file of the folder.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.engine import Engine, gpus_of
from tests.cluster.examples import EXAMPLES, apply, run_in
from tests.cluster.gpus import GpuModel
from tests.cluster.images import WORKLOADS, workloads_image
from tests.cluster.mixed.world import SETTINGS, cards_of, change_settings
from tests.cluster.pods import pod_of_job
from tests.cluster.test_examples import running
from tests.cluster.test_serving import cotenant

SHARED = f"{SETTINGS}dialects: {{cambricon: {{env-share: true}}}}\n"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
SPACE = "benchmark"
JOBS = f"/apis/batch/v1/namespaces/{SPACE}/jobs"
SMALL = ["--size", "tiny", "--case", "5.1", "--seconds", "0.1"]
"""the cluster has neither a GPU nor the time for more"""


@pytest.fixture(scope="module")
def both_changed(both: Engine) -> Engine:
    """With a third node, whose GPU has no virtual memory behind it."""
    change_settings(both, SHARED)
    third = both.cluster.add_node([GpuModel("NVIDIA A10", 8000)])
    for node, labels in ((third, {"gpu": "on"}), ("node1", {"example.com/virtual-memory": "true"})):
        both.cluster.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})
    both.wait_for_agent(third)
    both.cluster.post("/api/v1/namespaces", {"metadata": {"name": SPACE}})
    return both


@pytest.fixture
def changed(both_changed: Engine) -> Iterator[Engine]:
    yield both_changed
    for path in (DEPLOYMENTS, JOBS):
        both_changed.cluster.delete(f"{path}?propagationPolicy=Background")
    both_changed.tidy()


def test_pods_of_env_share_use_one_mlu_by_its_number(changed: Engine) -> None:
    apply(changed, "cambricon/env-share.yaml")
    pods = running(changed, "app%3Denv-share", 2)
    (card,) = {gpu for pod in pods for gpu in gpus_of(pod)}
    number = list(cards_of(changed, "node2")).index(card)
    names = sorted(pod["metadata"]["name"] for pod in pods)
    for name in names:
        seen = [line for line in run_in(changed, name, "env").splitlines() if line.startswith("CAMBRICON_")]
        assert seen == [f"CAMBRICON_VISIBLE_DEVICES={number}"]
    shown = cotenant(changed, "kube", "inspect", "gpushare", "-d", "node2").splitlines()
    notes = [" ".join(line.split()) for line in shown if " shares " in line]
    assert notes == [f"NOTE: pod default/{name} shares GPU{number} without an amount of memory" for name in names]
    (used,) = [line.split() for line in cotenant(changed, "kube", "inspect", "gpu").splitlines() if "node2" in line]
    assert used == ["node2", "2", "1"]


def small(folder: Path) -> None:
    """Writes an overlay of the example: less work, and our image with the benchmark tasks."""
    main = {"name": "main", "command": ["cotenant", "ai-benchmark", *SMALL, "--output", "json"]}
    patch = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "any"},
        "spec": {"template": {"spec": {"containers": [main]}}},
    }
    image, _, tag = WORKLOADS.partition(":")
    overlay = {
        "namespace": SPACE,
        "resources": ["ai-benchmark.yaml"],
        "images": [{"name": "registry.example/workloads", "newName": image, "newTag": tag}],
        "patches": [{"patch": json.dumps(patch), "target": {"kind": "Job"}}],
    }
    (folder / "ai-benchmark.yaml").write_bytes((EXAMPLES / "hami" / "ai-benchmark.yaml").read_bytes())
    (folder / "kustomization.yaml").write_text(json.dumps(overlay))


def test_the_ai_benchmark_compares_its_three_settings(changed: Engine, tmp_path: Path) -> None:
    small(tmp_path)
    cluster = changed.cluster
    cluster.add_image(workloads_image())
    cluster.kubectl("apply", "-k", str(tmp_path))
    files, speeds, nodes = [], [], {}
    for name in ("native", "vgpu", "virtual"):
        nodes[name] = pod_of_job(cluster, f"ai-benchmark-{name}", SPACE)["spec"]["nodeName"]
        file = tmp_path / f"{name}.json"
        file.write_text(cluster.kubectl("logs", "--namespace", SPACE, f"job/ai-benchmark-{name}", "-c", "main"))
        (measured,) = json.loads(cotenant(changed, "ai-benchmark", "--merge", str(file), "-o", "json"))
        assert (measured["case"], measured["setting"], measured.get("error")) == ("5.1", name, None), measured
        files.append(str(file))
        speeds.append(f"{measured['samples_per_s']:.1f}")
    assert (nodes["vgpu"], nodes["virtual"]) == ("node3", "node1")
    heading, row, unit = cotenant(changed, "ai-benchmark", "--merge", *files).splitlines()
    assert " ".join(heading.split()) == "CASE MODEL MODE BATCH NATIVE VGPU VGPU + VIRTUAL MEMORY DEVICE"
    cells = re.split(r"\s{2,}", row)
    assert (cells[0], cells[4:7], cells[7]) == ("5.1", speeds, "cpu (no GPU)")
    assert unit == "Samples per second; more is better."
