# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The manifest of a job of a user: a Job whose pods request GPUs, alone, as an array, or as a gang."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cotenant.core.units import parse_memory, parse_percent, parse_profile
from cotenant.errors import InputError
from cotenant.kube.api.names import Json
from cotenant.kube.codec.amounts import AUTO
from cotenant.kube.codec.automatic_memory import MEMORY
from cotenant.kube.codec.constraints import PROFILE
from cotenant.kube.codec.isolation import ISOLATION
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.policy import POLICY
from cotenant.kube.codec.queueing import ESTIMATE, GANG, GANG_SIZE, MOST_MEMBERS
from cotenant.kube.codec.vgpu import VGPU
from cotenant.kube.deploy.objects import JOB, RUN, labelled
from cotenant.kube.deploy.pods import Volume, check_image, check_name, container, pod_spec

MOST_INDICES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRequest:
    """A job as a user describes it, with the options that `cotenant submit` has on one machine too."""

    name: str
    image: str
    command: tuple[str, ...]
    gpus: int = 1
    memory: str | None = None
    """An amount such as 4GiB, a percentage such as 50%, or `auto`: that of the workload's profile."""
    compute: str | None = None
    mig: str | None = None
    """Profile of the MIG instances that it needs."""
    isolation: str | None = None
    """Rung of the isolation ladder that it wishes for; None: that of the cluster."""
    types: tuple[str, ...] = ()
    exclusive: bool = False
    estimate_s: float | None = None
    workload: str | None = None
    retries: int = 0
    grace_s: float = 10.0
    priority_class: str | None = None
    array: int | None = None
    """Number of pods with an index of their own, which start when each fits."""
    at_most: int | None = None
    """Number of pods of the array that may run at a time; None: all."""
    replicas: int | None = None
    """Number of pods that start together or not at all."""
    variables: Mapping[str, str] = field(default_factory=dict)
    tune: bool = True
    """Whether its batch size may be changed."""
    policy: str | None = None
    """Placement policy of its pods; None: that of the cluster."""
    volumes: tuple[Volume, ...] = ()
    group: int | None = None
    """Group that may write to its volumes; None: that of the volumes."""
    run: str | None = None
    """Label of the jobs that one command submitted."""


def job_object(request: TrainingRequest) -> Json:
    """Return the Job; InputError if the request is not valid."""
    if request.array is not None and request.replicas is not None:
        raise InputError("--array and --replicas: expected one of them; the pods of an array are independent")
    if request.replicas is not None and request.replicas > MOST_MEMBERS:
        raise InputError(f"--replicas {request.replicas}: expected at most {MOST_MEMBERS}")
    if request.array is not None and request.array > MOST_INDICES:
        raise InputError(f"--array {request.array}: expected at most {MOST_INDICES:,}")
    name = check_name(request.name)
    main = container(check_image(request.image), request.command, _limits(request), request.variables, request.volumes)
    spec = pod_spec(main, request.volumes)
    spec |= {"restartPolicy": "Never", "terminationGracePeriodSeconds": round(request.grace_s)}
    if request.group is not None:
        spec["securityContext"] = {"fsGroup": request.group, "fsGroupChangePolicy": "OnRootMismatch"}
    if request.priority_class is not None:
        spec["priorityClassName"] = request.priority_class
    made = labelled("Job", "batch/v1", name, JOB, {}, **({RUN: request.run} if request.run else {}))
    metadata: Json = {"labels": dict(made["metadata"]["labels"])}
    if annotations := _annotations(request):
        metadata["annotations"] = annotations
    made["spec"] = {"backoffLimit": request.retries, "template": {"metadata": metadata, "spec": spec}}
    if count := request.array or request.replicas:
        made["spec"] |= {"completionMode": "Indexed", "completions": count, "parallelism": request.at_most or count}
    return made


def _limits(request: TrainingRequest) -> dict[str, int]:
    if request.gpus == 0:
        if request.memory is not None or request.compute is not None:
            raise InputError("--gpus 0: --memory and --compute are parts of a GPU; leave them out")
        return {}
    for option, amount in (("--memory", request.memory), ("--compute", request.compute)):
        if amount is not None and ":" in amount:
            raise InputError(
                f"{option} {amount[:40]}: a limit above a request works on one machine only; give one amount"
            )
    limits = {str(VGPU.count): request.gpus}
    if request.memory == AUTO and (request.workload is None or request.gpus != 1):
        raise InputError("--memory auto: expected 1 GPU, and --workload, which says whose profile counts")
    try:
        if request.memory == AUTO:
            pass  # an annotation says so
        elif request.memory is not None and request.memory.strip().endswith("%"):
            limits[str(VGPU.memory_percent)] = parse_percent(request.memory)
        elif request.memory is not None:
            limits[str(VGPU.memory)] = parse_memory(request.memory)
    except ValueError as error:
        raise InputError(f"--memory: {error}") from None
    try:
        if request.compute is not None:
            limits[str(VGPU.compute)] = parse_percent(request.compute)
    except ValueError as error:
        raise InputError(f"--compute: {error}") from None
    return limits


def _profile(request: TrainingRequest) -> str | None:
    if request.mig is None:
        return None
    if request.gpus == 0:
        raise InputError("--gpus 0: --mig is for jobs with GPUs; leave it out")
    try:
        return parse_profile(request.mig)
    except ValueError as error:
        raise InputError(f"--mig: {error}") from None


def _annotations(request: TrainingRequest) -> dict[str, str]:
    found = {
        PROFILE: _profile(request),
        ISOLATION: request.isolation,
        own_key("use-types"): ",".join(request.types) or None,
        own_key("exclusive"): "true" if request.exclusive else None,
        ESTIMATE: None if request.estimate_s is None else f"{request.estimate_s:g}s",
        own_key("workload"): request.workload,
        MEMORY: AUTO if request.memory == AUTO else None,
        POLICY: request.policy,
        own_key("tune"): None if request.tune else "false",
        GANG: request.name if request.replicas else None,
        GANG_SIZE: str(request.replicas) if request.replicas else None,
    }
    return {key: text for key, text in found.items() if text is not None}
