# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube demo` on a real cluster: its report, and that nothing remains, whatever ends it."""

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.api import Json, wait_for
from tests.cluster.engine import Engine
from tests.cluster.images import WORKLOADS, workloads_image
from tests.cluster.test_serving import command, refused, run_cotenant

DEMO = ("kube", "demo", "--image", WORKLOADS, "--mix", "neumf", "--scale", "0")


def names(engine: Engine, path: str) -> list[str]:
    return sorted(one["metadata"]["name"] for one in engine.cluster.get(path)["items"])


def left(engine: Engine) -> tuple[list[str], list[str], Json]:
    """What a demo could leave: namespaces, Jobs, labels of the node."""
    labels = engine.node("node1")["metadata"]["labels"]
    return names(engine, "/api/v1/namespaces"), names(engine, "/apis/batch/v1/jobs"), labels


def test_a_demo_reports_both_runs_and_leaves_nothing(engine: Engine, tmp_path: Path) -> None:
    engine.cluster.add_image(workloads_image())
    before, out = left(engine), tmp_path / "new" / "report"
    words = ("--policy", "iadeep", "--jobs", "2", "--work", "0.02", "--label-nodes", "--out", str(out))
    done = run_cotenant(engine, *DEMO, *words)
    assert done.returncode == 0, done
    lines = done.stdout.splitlines()
    assert lines[0].startswith("3 GPUs on 1 node; namespace cotenant-demo-")
    assert "labelled 1 node gpushare=true, until the demo ends" in lines
    assert {"2 jobs, iadeep", "2 jobs, exclusive"} <= set(lines)
    assert sum("started on node1 GPU" in line for line in lines) == 4
    assert "2 jobs on 3 GPUs (1 Tesla T4, 2 Tesla V100-PCIE-32GB) of 1 node, up to " in done.stdout
    head = next(line for line in lines if line.startswith("JOB"))
    assert " ".join(head.split()) == "JOB NODE GPU BATCH STATE JCT IADEEP EXCLUSIVE RAN IADEEP EXCLUSIVE SLOWDOWN"
    assert "This was one run of each kind." in done.stdout

    summary = json.loads((out / "summary.json").read_text())
    assert (summary["policy"], summary["baseline"], summary["gpus"]) == ("iadeep", "exclusive", 3)
    assert [job["name"] for job in summary["jobs"]] == ["neumf-1", "neumf-2"]
    for job in summary["jobs"]:
        for run in ("policy", "baseline"):
            assert job["times"][run]["state"] == "done"
            assert job["results"][run]["samples"] >= 5120
    jcts = [job["times"]["policy"]["finish"] - job["times"]["policy"]["submit"] for job in summary["jobs"]]
    assert summary["metrics"]["policy"]["mean_jct"] == sum(jcts) / 2
    assert len(list(out.glob("*.csv"))) == 2
    assert left(engine) == before


def test_ctrl_c_removes_everything(engine: Engine) -> None:
    engine.cluster.add_image(workloads_image())
    before = left(engine)
    with in_background(engine, *DEMO, "--jobs", "2", "--work", "1000", "--baseline", "none") as process:
        wait_for("a running task", lambda: running(engine, "cotenant-demo-"))
        engine.kill("cotenant kube demo", number=signal.SIGINT)
        said, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "removing what the demo created" in said
    assert errors.strip() == "cotenant: interrupted"
    assert left(engine) == before


@contextlib.contextmanager
def in_background(engine: Engine, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a user runs it; `engine.kill` sends it a signal. A command that still runs when its test has
    failed is killed, so that no later test finds it."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command(engine, *words), stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def running(engine: Engine, namespace: str) -> list[Json]:
    """The running pods of the namespaces whose names begin like this."""
    found = engine.cluster.get("/api/v1/pods?fieldSelector=status.phase%3DRunning")["items"]
    return [pod for pod in found if pod["metadata"]["namespace"].startswith(namespace)]


def test_an_image_that_cannot_exist_ends_the_demo_and_leaves_nothing(engine: Engine) -> None:
    before = left(engine)
    code, line = refused(engine, *DEMO[:3], "localhost//none:1", "--jobs", "1")
    assert (code, "cannot start: pod lstm-1-" in line, "an invalid name" in line) == (1, True, True), line
    assert left(engine) == before


def test_a_user_without_rights_reads_which_are_missing(engine: Engine) -> None:
    engine.cluster.add_user("visitor", "visits")
    config = ("--kubeconfig", str(engine.cluster.credentials / "visitor.kubeconfig"))
    before = left(engine)
    code, line = refused(engine, *DEMO, *config)
    assert code == 1
    assert "you may not list nodes, create jobs in namespace cotenant-demo-" in line
    assert line.endswith("create namespaces, delete namespaces; ask an administrator of the cluster for these rights")
    code, line = refused(engine, *DEMO, *config, "--namespace", "visits")
    assert line == "cotenant: you may not list nodes; ask an administrator of the cluster for these rights"
    assert left(engine) == before


def test_a_volume_that_is_not_there_is_refused(engine: Engine) -> None:
    code, line = refused(engine, *DEMO, "--namespace", "default", "--volume", "none")
    assert (code, line) == (
        2,
        "cotenant: --volume none: namespace default has no PersistentVolumeClaim of this name",
    )
