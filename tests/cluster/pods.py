# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that run a piece of Python: made, waited for, read."""

from collections.abc import Mapping
from typing import Any

from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.cluster import Cluster
from tests.cluster.images import PYTHON


def path_of(name: str, namespace: str = "default") -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def container(name: str, code: str, limits: Mapping[str, Any] | None = None, **more: Any) -> Json:
    """A container that runs a piece of Python once."""
    said = {"name": name, "image": PYTHON, "imagePullPolicy": "Never", "command": ["python3", "-c", code]}
    return {**said, "resources": {"limits": dict(limits or {})}, **more}


def create_pod(
    cluster: Cluster,
    name: str,
    *containers: Json,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    **spec: Any,
) -> Json:
    """A pod that is not started again."""
    metadata = {"name": name, "annotations": dict(annotations or {}), "labels": dict(labels or {})}
    whole = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": list(containers), **spec}
    return cluster.post(path_of("", namespace).rstrip("/"), {"metadata": metadata, "spec": whole})


def pod_in(cluster: Cluster, name: str, *phases: str, namespace: str = "default", seconds: float = 120.0) -> Json:
    """The pod once it is in one of these phases; one that has failed instead is told of at once."""

    def look() -> Json | None:
        pod = cluster.get(path_of(name, namespace))
        phase = pod["status"]["phase"]
        assert phase in phases or phase != "Failed", (pod["status"], log_of(cluster, name, namespace=namespace))
        return pod if phase in phases else None

    return wait_for(f"pod {name} to be {' or '.join(phases)}", look, seconds)


def ended(cluster: Cluster, name: str, namespace: str = "default") -> Json:
    """The pod once it has ended well."""
    return pod_in(cluster, name, "Succeeded", namespace=namespace)


def pod_of_job(cluster: Cluster, job: str, namespace: str = "default") -> Json:
    """The pod of a Job once the Job is complete; a Job that has failed instead is told of at once."""

    def look() -> Json | None:
        status = cluster.get(f"/apis/batch/v1/namespaces/{namespace}/jobs/{job}")["status"]
        ended = {one["type"] for one in status.get("conditions", [])}  # "SuccessCriteriaMet" comes before "Complete"
        if not ended & {"Complete", "Failed"}:
            return None
        found = cluster.get(f"{path_of('', namespace)[:-1]}?labelSelector=job-name%3D{job}")["items"]
        assert "Complete" in ended, (
            status,
            [log_of(cluster, one["metadata"]["name"], None, namespace) for one in found],
        )
        return dict(found[0])

    return wait_for(f"job {job} to be complete", look, 300)


def log_of(cluster: Cluster, name: str, container: str | None = None, namespace: str = "default") -> str:
    """What a container wrote; nothing where it has not begun."""
    which = "" if container is None else f"?container={container}"
    try:
        return cluster.text(f"{path_of(name, namespace)}/log{which}")
    except RefusedError:
        return ""


def delete_pod(cluster: Cluster, name: str, namespace: str = "default", *, force: bool = False) -> None:
    """Deletes a pod; unless by force, returns when it is gone."""
    cluster.delete(f"{path_of(name, namespace)}{'?gracePeriodSeconds=0' if force else ''}")
    if not force:
        wait_for(f"pod {name} to be gone", lambda: is_gone(cluster, name, namespace))


def is_gone(cluster: Cluster, name: str, namespace: str = "default") -> bool:
    try:
        cluster.get(path_of(name, namespace))
    except RefusedError as error:
        if error.status == 404:
            return True
        raise
    return False
