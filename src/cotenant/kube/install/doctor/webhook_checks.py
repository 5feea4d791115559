# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the API server can call the webhook: its certificate, the bundle that it trusts, and a pod that is tried."""

from base64 import b64decode
from collections.abc import Iterator
from datetime import UTC, datetime

from cotenant.kube.api.certificates import validity_of
from cotenant.kube.api.names import SCHEDULER, WEBHOOK
from cotenant.kube.install.doctor.facts import Facts, Trial
from cotenant.kube.settings import KubeSettings
from cotenant.wire.diagnosis import Finding, error, warning

NEW_CERTIFICATE = "make new certificates: `cotenant kube upgrade`"
SOON_S = 30 * 86_400.0


def check_webhook(facts: Facts) -> Iterator[Finding]:
    about = "webhook"
    certificate = _certificate(facts)
    now = facts.own_time if facts.server_time is None else facts.server_time
    if certificate is not None:
        yield from _expiry(certificate, now)
    trial, settings = facts.trial, facts.settings
    if trial is not None and trial.problem is not None:
        if settings is not None and settings.claims.only and "claims.only" in trial.problem:  # as it should
            return
        bundles = _bundles(facts)
        if certificate is not None and bundles and not any(certificate.strip() in one for one in bundles):
            text = (
                f"the CA bundle of its configuration is not that of Secret {WEBHOOK}, and calls fail: {trial.problem}"
            )
            yield error("webhook", about, text, NEW_CERTIFICATE)
        elif "failed calling webhook" in trial.problem:
            fix = (
                f"see `kubectl -n cotenant-system get pods,endpoints -l app.kubernetes.io/name={WEBHOOK}` and its logs"
            )
            yield error("webhook", about, f"the API server cannot call it: {trial.problem}", fix)
        else:
            fix = "read the message: another admission plugin or a quota may refuse pods with GPUs"
            yield warning("webhook", about, f"a pod with a GPU was refused: {trial.problem}", fix)
    elif trial is not None and settings is not None and not _is_prepared(trial, settings):
        text = f"did not prepare a pod with a GPU: its scheduler is {trial.scheduler!r}"
        fix = "see whether the namespace is skipped by the settings, and whether the webhook configuration is ours"
        yield error("webhook", about, text, fix)


def _is_prepared(trial: Trial, settings: KubeSettings) -> bool:
    return trial.has_claims or trial.scheduler == settings.scheduler.name


def _expiry(certificate: str, now: float) -> Iterator[Finding]:
    validity = validity_of(certificate)
    ends = None if validity is None else validity[1]
    about = f"Secret {WEBHOOK}"
    if ends is None:
        yield error("webhook", about, "its tls.crt is no certificate", NEW_CERTIFICATE)
    elif ends <= now:
        yield error("webhook", about, f"its certificate expired on {_day(ends)}", NEW_CERTIFICATE)
    elif ends <= now + SOON_S:
        yield warning("webhook", about, f"its certificate expires on {_day(ends)}", NEW_CERTIFICATE)


def _certificate(facts: Facts) -> str | None:
    secret = facts.get("Secret", WEBHOOK)
    return None if secret is None else _decoded(secret.data.get("tls.crt", ""))


def _bundles(facts: Facts) -> list[str]:
    """The authorities that the API server trusts for our webhook."""
    configuration = facts.get("MutatingWebhookConfiguration", SCHEDULER, "")
    hooks = () if configuration is None else configuration.webhooks
    found = [hook.get("clientConfig", {}).get("caBundle", "") for hook in hooks]
    return [_decoded(one) for one in found if isinstance(one, str)]


def _decoded(text: str) -> str:
    try:
        return b64decode(text).decode("ascii", "replace")
    except ValueError:
        return ""


def _day(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d")
