# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster whose GPUs are given by ResourceClaims alone: pods that request them under resources are converted."""

from collections.abc import Iterator

import pytest

from cotenant.kube.codec.claims import DRIVER, SHARED
from cotenant.kube.codec.inventory import AWAY, INVENTORY
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.claiming import API, CLAIMS
from tests.cluster.engine import COUNT, Engine, chart_values, run_install
from tests.cluster.gpus import uuid
from tests.cluster.pods import path_of
from tests.cluster.tenant import STAYS

TEMPLATE = "cotenant-1x-2048mib-25c"
MEMORY, CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"
ONLY = "claims: {enabled: true, convert: true, only: true}"
BOTH = "claims: {enabled: true, convert: false, only: false}"
"""what an upgrade does not state stays as it was"""


@pytest.fixture(scope="module")
def installed(with_claims: Engine) -> Iterator[Engine]:
    """The cluster of the tests about claims, without the device plugin for a while."""
    run_install(with_claims.cluster, "upgrade", chart_values(ONLY), "--wait")
    wait_for("the agent", lambda: has_no_devices(with_claims))
    yield with_claims
    run_install(with_claims.cluster, "upgrade", chart_values(BOTH), "--wait")
    with_claims.wait_for_scheduler()
    try:
        with_claims.wait_for_agent("node1")
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{with_claims.node('node1')}\n{with_claims.agent_log('node1')}") from None


def has_no_devices(engine: Engine) -> bool:
    """Whether a new agent has published its GPUs, and states no resources of the device plugin."""
    node = engine.node("node1")
    said, has = node["metadata"]["annotations"], node["status"]["allocatable"]
    is_ready = INVENTORY in said and AWAY not in said and f"kubelet knows {DRIVER}" in engine.agent_log("node1")
    return is_ready and has.get(COUNT, "0") == "0" and MEMORY not in has


def test_a_pod_that_requests_gpus_under_resources_gets_them_by_a_claim(engine: Engine) -> None:
    for name in ("first", "second"):
        engine.create(name, {COUNT: 1, MEMORY: 2048, CORES: 25}, STAYS)
    for name in ("first", "second"):
        pod = engine.started(name)
        (claim,) = pod["spec"]["resourceClaims"]
        assert claim["resourceClaimTemplateName"] == TEMPLATE
        assert MEMORY not in str(pod["spec"]["containers"][0]["resources"])
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        seen = engine.said(name)
        assert (seen["gpus"], seen["totals"], seen["room"]) == ([uuid(1, 0)], [2048], 2048)
        assert "compute=250" in seen["limits"]
    made = claims_of_pods(engine)
    assert [one["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] for one in made] == [SHARED] * 2
    for name in ("first", "second"):
        engine.delete(name)
    wait_for("the claims to go with their pods", lambda: not claims_of_pods(engine))
    engine.cluster.delete(f"{API}/namespaces/default/resourceclaimtemplates/{TEMPLATE}")


def claims_of_pods(engine: Engine) -> list[Json]:
    """The claims that Kubernetes made from templates."""
    found = engine.cluster.get(CLAIMS)["items"]
    return [one for one in found if any(owner["kind"] == "Pod" for owner in one["metadata"].get("ownerReferences", ()))]


def test_what_claims_cannot_express_is_refused_because_nothing_else_gives_gpus(engine: Engine) -> None:
    with pytest.raises(RefusedError, match="a claim cannot express this request"):
        engine.create("lends", {MEMORY: 2048}, annotations={"cotenant.io/isolation": "mig"})
    with pytest.raises(RefusedError, match="404"):
        engine.cluster.get(path_of("lends"))
