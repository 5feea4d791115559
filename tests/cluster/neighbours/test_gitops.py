# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The chart brought into a real cluster without GPUs by the engine of Argo CD, by Flux, and by kubectl, which knows no
hooks: installed, compared again, changed and removed."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cotenant.kube.api.names import AGENT, CLEANUP, NAMESPACE, SCHEDULER, WEBHOOK
from cotenant.kube.install.chart import chart_folder, merged
from tests.cluster.api import wait_for
from tests.cluster.binaries import Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import until_last_use
from tests.cluster.engine import Engine, chart_values
from tests.cluster.neighbours import gitops
from tests.cluster.neighbours.conftest import built_by, shares, without_cotenant
from tests.cluster.test_chart import files_of, traces

VALUES = chart_values(devices={"simulate": "auto"})
FEWER = merged(VALUES, {"podDisruptionBudgets": {"enabled": False}})
BUDGETS = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
HOOKS = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{SCHEDULER}"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"
KEYS_JOB, CLEANUP_JOB = "Job/cotenant-keys", f"Job/{CLEANUP}"


class Team(NamedTuple):
    """A cluster without cotenant, and the programs that bring charts into it."""

    engine: Engine
    programs: Path

    @property
    def cluster(self) -> Cluster:
        return self.engine.cluster


@pytest.fixture(scope="module")
def team(say: Callable[[str], None], programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    folder = built_by(gitops.programs, say)
    with until_last_use("team", without_cotenant(programs, tmp_path_factory.mktemp("gitops"))) as cluster:
        yield Team(Engine(cluster), folder)


def rendered(team: Team, values: dict[str, Any]) -> str:
    """What `helm template` prints, hooks included, as Argo CD calls it."""
    file = team.cluster.folder / "rendered.json"
    file.write_text(json.dumps(values))
    version = str(team.cluster.get("/version")["gitVersion"])
    command = ("helm", "template", "cotenant", str(chart_folder()), "--namespace", NAMESPACE, "--values", str(file))
    return team.cluster.machines[0].run(*command, "--kube-version", version)


def create_namespace(cluster: Cluster) -> None:
    cluster.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})


def wait_until_installed(team: Team) -> None:
    team.engine.wait_for_scheduler()
    team.engine.wait_for_agent("node1")


def state(team: Team) -> dict[str, Any]:
    """What another comparison must not change: generations, pods, keys, and the CAs that the API server trusts."""
    kinds = ("deployments", "daemonsets")
    found = [one for kind in kinds for one in team.cluster.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/{kind}")["items"]]
    secrets = team.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"]
    trusted = team.cluster.get(HOOKS)["webhooks"]
    return {
        "generations": {one["metadata"]["name"]: one["metadata"]["generation"] for one in found},
        "pods": {one["metadata"]["uid"] for name in (SCHEDULER, WEBHOOK, AGENT) for one in team.engine.our_pods(name)},
        "keys": {one["metadata"]["name"]: one["data"] for one in secrets if one["type"] != "helm.sh/release.v1"},
        "trusted": [one["clientConfig"]["caBundle"] for one in trusted],
    }


def wait_until_gone(team: Team) -> None:
    """Returns when nothing of cotenant is left but the kind of its profiles, and its namespace is gone, too."""
    assert files_of(team.cluster) == []
    notes = team.engine.node("node1")["metadata"].get("annotations", {})
    assert [key for key in notes if "cotenant.io/" in key] == []
    wait_for("everything to be gone", lambda: traces(team.cluster) <= {"customresourcedefinitions"})
    team.cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")


def test_the_engine_of_argo_cd_installs_the_chart_finds_no_drift_prunes_and_removes_it(team: Team) -> None:
    create_namespace(team.cluster)  # as Argo CD does with CreateNamespace=true
    found, text, fewer = gitops.Application(team.cluster, team.programs), rendered(team, VALUES), rendered(team, FEWER)
    first = found.sync(text)
    assert (KEYS_JOB in first, CLEANUP_JOB in first) == (True, False)
    wait_until_installed(team)
    assert team.cluster.get(JOBS)["items"] == [], "the engine deletes a hook that succeeded"
    shares(team.engine, "by-argo")
    before = state(team)
    assert found.compare(text) == []
    team.cluster.delete(f"{BUDGETS}/{WEBHOOK}")
    budget = f"PodDisruptionBudget/{WEBHOOK}"
    assert found.compare(text) == [budget, f"{budget} by server"]
    found.sync(text)
    assert (found.compare(text), state(team)) == ([], before)
    pruned = {key for key, said in found.sync(fewer).items() if "pruned" in said}
    assert pruned == {f"PodDisruptionBudget/{name}" for name in (SCHEDULER, WEBHOOK)}
    assert (found.compare(fewer), team.cluster.get(BUDGETS)["items"], state(team)) == ([], [], before)
    shares(team.engine, "later")
    team.engine.tidy()
    # Argo CD's controller, not its engine, runs hooks before a deletion. Here the engine does, before it prunes.
    assert CLEANUP_JOB in found.sync(text_of_removal(text))
    wait_until_gone(team)


def text_of_removal(text: str) -> str:
    """The hooks for the uninstallation and nothing else, as hooks of a sync."""
    ours = [one for one in text.split("\n---\n") if "helm.sh/hook: pre-delete" in one]
    return "\n---\n".join(ours).replace("helm.sh/hook: pre-delete", "helm.sh/hook: pre-install")


def test_flux_installs_the_chart_corrects_drift_upgrades_and_removes_it(team: Team, tmp_path: Path) -> None:
    with gitops.flux(team.cluster, tmp_path, team.programs) as found:
        found.release(VALUES)
        shares(team.engine, "by-flux")  # at once: the controller says Ready no sooner
        before = state(team)
        found.reconcile()
        assert (found.events("DriftDetected"), state(team)) == ([], before)
        team.cluster.delete(f"{BUDGETS}/{WEBHOOK}")
        found.reconcile()
        wait_for("the budget", lambda: team.cluster.get(f"{BUDGETS}/{WEBHOOK}"))
        (drift,) = wait_for("the event", lambda: found.events("DriftDetected"))
        assert drift.splitlines()[1:] == [f"PodDisruptionBudget/{NAMESPACE}/{WEBHOOK} removed"]
        assert state(team) == before
        assert found.release(FEWER)["history"][0]["version"] == 2
        assert (team.cluster.get(BUDGETS)["items"], state(team)) == ([], before)
        shares(team.engine, "later")
        team.engine.tidy()
        found.delete()
    wait_until_gone(team)


def test_kubectl_which_knows_no_hooks_installs_the_chart_and_applies_it_again(team: Team) -> None:
    create_namespace(team.cluster)
    text = rendered(team, VALUES)
    apply = ("apply", "--server-side", "--filename=-")
    team.cluster.kubectl(*apply, feed=text)
    wait_until_installed(team)
    wait_for("the job for the removal", lambda: team.cluster.get(f"{JOBS}/{CLEANUP}")["status"].get("succeeded"))
    assert "so nothing is removed" in team.cluster.kubectl("-n", NAMESPACE, "logs", f"job/{CLEANUP}")
    shares(team.engine, "by-kubectl")
    before = state(team)
    team.cluster.kubectl(*apply, feed=text)
    assert state(team) == before
    team.engine.tidy()
    where = f"--kubeconfig={team.cluster.credentials / 'admin.kubeconfig'}"
    team.cluster.machines[0].run(sys.executable, "-m", "cotenant", "kube", "clean", where)
    team.cluster.kubectl("delete", "--filename=-", "--ignore-not-found", feed=text)
    wait_until_gone(team)
