# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tables in `switching`: manifests as users of other systems write them, and the GPUs that they get there and here.

name: what it shows
nodes: {n1: {gpus: 2, memory: 16384, type: ..., numa: [0, 1], linked: [[0, 1]], mig: [1g.5gb, null]}}  # default: two
dialects: {...}                         # of the settings; the cases of HAMi have `compat: hami` in addition
running: [{node: n1, gpus: [0], limits: {...}}]
manifest: {...}                         # of any kind that has a pod or a template of one
gets: {n1: [0]}                         # the node and the GPUs of the first choice; or
waits: true                             # no node has room; or
refused: part of a sentence             # by the webhook
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cotenant.core.model import Gpu, Link, Machine, Slot
from cotenant.core.units import MiB, MilliGpu
from cotenant.kube.api.objects import Pod, decode_pod
from cotenant.kube.codec.request import request_of
from cotenant.kube.settings import KubeSettings, parse_settings
from cotenant.kube.state.allocation import planned_allocation
from cotenant.kube.state.cluster import ClusterState
from cotenant.kube.webhook.mutation import mutate
from tests.kube.reviews import admitted, refusal, review
from tests.kube.worlds import node, placer_of, state_of, waiting
from tests.tables import tables_in

Case = dict[str, Any]
TWO: Case = {"n1": {"gpus": 2}, "n2": {"gpus": 2}}


def cases() -> list[Any]:
    found = tables_in(Path(__file__).parent / "switching")
    return [pytest.param(system, case, id=f"{system}: {case['name']}") for system, case in found]


def machine(name: str, said: Case) -> Machine:
    count, near = said["gpus"], {frozenset(pair) for pair in said.get("linked", [])}
    numa, mig = said.get("numa", [None] * count), said.get("mig", [None] * count)
    gpus = tuple(
        Gpu(
            uuid=f"GPU-{name}-{i}",
            memory=MiB(said.get("memory", 16384)),
            type=said.get("type", "Tesla V100-SXM2-16GB"),
            numa=numa[i],
            slots=10,
            mig=mig[i],
            part=MilliGpu(1000 if mig[i] is None else int(mig[i][0]) * 1000 // 7),
        )
        for i in range(count)
    )
    links = tuple(
        tuple(Link.PIX if frozenset((a, b)) in near else Link.SYS for b in range(count)) for a in range(count)
    )
    return Machine(name=name, gpus=gpus, links=links)


def settings_of(system: str, case: Case) -> KubeSettings:
    compat = {"compat": "hami"} if system == "hami" else {}
    return parse_settings(yaml.safe_dump({**compat, "dialects": case.get("dialects", {})}).encode())


def pod_of(manifest: Case) -> Case:
    """The pod that the controller of a manifest creates."""
    template = manifest["spec"].get("template", manifest)
    about = {"namespace": "team", "name": "p", "uid": "uid-p", **template.get("metadata", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": template["spec"], "status": {}}


def read(made: Case) -> Pod:
    return decode_pod(json.dumps(made).encode())


def run(state: ClusterState, running: list[Case], settings: KubeSettings) -> None:
    for number, one in enumerate(running):
        pod = waiting(f"running-{number}", one["limits"])
        here = state.cluster.node(one["node"]).machine
        request = request_of(pod, settings.codec())
        state.hold(planned_allocation(pod, request, Slot(here.name, tuple(one["gpus"])), here), 1e9)


@pytest.mark.parametrize(("system", "case"), cases())
def test_a_manifest_of_another_system_gets_what_its_documents_promise(system: str, case: Case) -> None:
    settings = settings_of(system, case)
    state = state_of(*(node(machine(name, said)) for name, said in case.get("nodes", TWO).items()))
    run(state, case.get("running", []), settings)
    made = pod_of(case["manifest"])
    if "refused" in case:
        assert case["refused"] in refusal(mutate(review(made), settings))
        return
    pod = admitted(made, settings)
    assert pod["spec"]["schedulerName"] == settings.scheduler.name
    fits = placer_of(state, policy=settings.scheduler.policy, settings=settings.codec()).reasons.why(read(pod)).fits
    if case.get("waits"):
        assert not fits
    else:
        ((name, gpus),) = case["gets"].items()
        assert (fits[0].slot.node, sorted(fits[0].slot.gpus)) == (name, gpus)


def test_there_are_enough_of_them() -> None:
    assert len(cases()) >= 40
