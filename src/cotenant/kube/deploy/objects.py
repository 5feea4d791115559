# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of Deployments, Services, Jobs and their pods that the commands of users read, and the labels of ours."""

from datetime import datetime
from typing import Any

import msgspec

from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.names import Json
from cotenant.kube.api.objects import Condition, Metadata, PodSpec
from cotenant.kube.codec.keys import own_key

MANAGED = {"app.kubernetes.io/managed-by": "cotenant"}
"""Label of all objects that users create with our commands. Only objects with it are listed, changed or deleted."""
SERVING, JOB, FRAMEWORK = own_key("serving"), own_key("job"), own_key("framework")
"""Labels: the name of the model server or of the job that an object belongs to, and the framework of a model server."""
CANCELLED = own_key("cancelled")
"""Label of a job that was cancelled."""
RUN = own_key("run")
"""Label: the jobs that one `cotenant generate` or one demo submitted."""
TEMPLATE = "pod-template-hash"
"""Label that a Deployment gives to the pods of one version of its template."""


class About(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Identity, labels and generation of a Deployment or a Job."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """State of a container that has not started."""

    reason: str = ""
    message: str = ""


class Running(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """State of a running container."""

    started_at: str | None = None


class Terminated(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """State of a container that has ended."""

    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    message: str = ""
    started_at: str | None = None
    finished_at: str | None = None


class State(msgspec.Struct, frozen=True, kw_only=True):
    """State of a container; one of the fields is set."""

    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class Container(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Status of a container."""

    name: str = ""
    state: State = State()
    last_state: State = State()
    restart_count: int = 0


class PodStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Status of a pod."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[Container, ...] = ()


class OwnPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod of a model server or a job."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class DeploymentStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Status of a Deployment."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    conditions: tuple[Condition, ...] = ()


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A Deployment, with its spec as it is stored."""

    metadata: About = About()
    spec: dict[str, Any] = {}
    status: DeploymentStatus = DeploymentStatus()


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A Service."""

    metadata: About = About()
    spec: dict[str, Any] = {}


class Event(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An Event."""

    metadata: Metadata = Metadata()
    reason: str = ""
    message: str = ""
    last_timestamp: str | None = None


OWN_PODS = Kind("pods", OwnPod)
DEPLOYMENTS = Kind("deployments", Deployment, group="apis/apps/v1")
SERVICES = Kind("services", Service)
EVENTS = Kind("events", Event)


def belongs(labels: dict[str, str], label: str, name: str) -> bool:
    """Return whether an object with these labels was created by our commands for this model server or job."""
    return labels.get(label) == name and MANAGED.items() <= labels.items()


def selector(label: str, name: str | None = None) -> str:
    """Return the label selector of one model server or job, or of all."""
    ours = ",".join(f"{key}={value}" for key, value in MANAGED.items())
    return f"{ours},{label}" if name is None else f"{ours},{label}={name}"


def seconds(stamp: str | None) -> float | None:
    """Return a timestamp of Kubernetes in seconds since 1970."""
    return None if stamp is None else datetime.fromisoformat(stamp).timestamp()


def condition_of(conditions: tuple[Condition, ...], kind: str) -> Condition | None:
    """Return the condition of this type."""
    return next((one for one in conditions if one.type == kind), None)


def labelled(kind: str, api: str, name: str, label: str, spec: Json, **labels: str) -> Json:
    """Return an object of ours with its labels."""
    own = {**MANAGED, label: name, **labels}
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": own}, "spec": spec}
