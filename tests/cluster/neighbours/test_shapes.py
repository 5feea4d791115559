# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods in the shape that controllers make which are not run here: Argo Workflows and KServe."""

import os

import pytest

from tests.cluster.engine import Engine, record_of
from tests.cluster.neighbours.conftest import WANTED, WHY
from tests.cluster.pods import container, create_pod
from tests.cluster.tenant import SEES

pytestmark = pytest.mark.skipif(not os.environ.get(WANTED), reason=WHY)

LIMITS = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 20}
SCRATCH = {"name": "var-run-argo", "mountPath": "/var/run/argo"}


def test_a_step_of_a_workflow_has_its_slice_and_its_sidecar_sees_no_gpu(beside: Engine) -> None:
    create_pod(
        beside.cluster,
        "workflow-step",
        container("wait", "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])", volumeMounts=[SCRATCH]),
        container("main", SEES, LIMITS, volumeMounts=[SCRATCH]),
        initContainers=[container("init", "open('/var/run/argo/template', 'w').write('{}')", volumeMounts=[SCRATCH])],
        volumes=[{"name": "var-run-argo", "emptyDir": {}}],
        labels={"workflows.argoproj.io/workflow": "workflow", "workflows.argoproj.io/completed": "false"},
        annotations={"workflows.argoproj.io/node-name": "workflow.step"},
    )
    pod = beside.ended("workflow-step")
    assert beside.said("workflow-step", "main")["room"] == 3000
    assert beside.log("workflow-step", "wait") == "void\n"
    assert [(share.memory, share.compute) for share in record_of(pod).held_by(2)] == [(3000, 200)]


def test_a_predictor_of_kserve_has_its_slice_and_its_agent_sees_no_gpu(beside: Engine) -> None:
    create_pod(
        beside.cluster,
        "iris-predictor",
        container("kserve-container", SEES, LIMITS),
        container("agent", "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])"),
        initContainers=[container("storage-initializer", "print('model')")],
        labels={"serving.kserve.io/inferenceservice": "iris", "component": "predictor"},
        annotations={"serving.kserve.io/deploymentMode": "Standard", "cotenant.io/latency": "p90=200ms"},
    )
    beside.ended("iris-predictor")
    assert beside.said("iris-predictor", "kserve-container")["room"] == 3000
    assert beside.log("iris-predictor", "agent") == "void\n"
