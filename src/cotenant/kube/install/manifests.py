# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""All objects of an installation, in the order in which they should be created."""

import base64
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cotenant.errors import InputError
from cotenant.kube.api.names import DECISIONS, NAMESPACE, SCHEDULER, WEB, WEBHOOK, WHY, WHY_KEY, Json, object_of
from cotenant.kube.install.admission import webhook_configuration
from cotenant.kube.install.certificate import Certificate
from cotenant.kube.install.configuration import configuration
from cotenant.kube.install.policies import admission_policies
from cotenant.kube.install.profiles import profile_definition
from cotenant.kube.install.rbac import rbac_objects, web_rbac_objects
from cotenant.kube.install.workloads import (
    AgentFlags,
    Images,
    daemon_set,
    disruption_budget,
    mps_daemon_set,
    scheduler,
    service,
    web,
    webhook,
)
from cotenant.kube.settings import read_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallOptions:
    """Options of an installation."""

    images: Images
    agents: AgentFlags
    settings: Path | None = None
    replicas: int = 1
    """Replicas of the scheduler, and of the webhook."""
    pages: bool = True
    """Whether the pages are installed."""
    actions: bool = False
    """Whether viewers of the pages can delete pods and cordon nodes, with their own rights."""


def manifests(options: InstallOptions, certify: Callable[[str], Certificate]) -> list[Json]:
    """Return all objects of an installation; InputError if the settings are invalid.

    `certify` creates the certificate of a service. Each service has its own, so that the webhook, which every pod can
    reach, does not have the scheduler's key.
    """
    settings = read_settings(options.settings)
    files = configuration(settings, _text_of(options.settings))
    certificates = {name: certify(name) for name in (SCHEDULER, WEBHOOK, *((WEB,) if options.pages else ()))}
    pairs = [
        _secret(name, "kubernetes.io/tls", {"tls.crt": one.certificate, "tls.key": one.key})
        for name, one in certificates.items()
    ]
    content = hashlib.sha256(json.dumps([files, pairs]).encode()).hexdigest()[:16]
    return [
        _namespace(),
        profile_definition(),
        *rbac_objects(),
        *(web_rbac_objects() if options.pages else ()),
        files,
        *pairs,
        *(_secret(name, "Opaque", {WHY_KEY: secrets.token_hex(32)}) for name in (WHY, DECISIONS)),
        *(service(name) for name in certificates),
        scheduler(options.images, content, options.replicas),
        webhook(options.images, content, options.replicas),
        *((web(options.images, content, options.actions),) if options.pages else ()),
        *(disruption_budget(name) for name in (SCHEDULER, WEBHOOK)),
        daemon_set(options.images, options.agents, content, settings.webhook.runtime_class, settings.metrics.port),
        *(
            [mps_daemon_set(options.images, options.agents, settings.webhook.runtime_class)]
            if options.agents.mps
            else []
        ),
        *admission_policies(settings),
        webhook_configuration(settings, certificates[WEBHOOK].certificate),
    ]


def _text_of(file: Path | None) -> str:
    """Return the text of the settings file."""
    try:
        return "" if file is None else file.read_text("utf-8")
    except UnicodeError:
        raise InputError(f"settings {file}: not valid UTF-8") from None


def _namespace() -> Json:
    made = object_of("Namespace", "v1", NAMESPACE, cluster_wide=True)
    # Agents mount folders of their node and see its processes.
    made["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "privileged"
    return made


def _secret(name: str, kind: str, texts: Mapping[str, str]) -> Json:
    data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    return object_of("Secret", "v1", name, type=kind, data=data)
