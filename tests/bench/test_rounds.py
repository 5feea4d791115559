# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks on a cluster rely on, without a cluster."""

from bench.claims_placement import _our_request, _stock_request
from bench.rounds import without_lease
from cotenant.core.model import Demand
from cotenant.core.units import MilliGpu
from cotenant.kube.api.names import SCHEDULER
from cotenant.kube.codec.claims import SHARED, WHOLE
from tests.cluster.engine import manifests


def test_the_scheduler_of_a_benchmark_elects_no_leader() -> None:
    """The chart writes the option, and the benchmark must find it: otherwise the extender would never be ready."""
    (deployment,) = [one for one in manifests() if one["kind"] == "Deployment" and one["metadata"]["name"] == SCHEDULER]
    words = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    assert len(without_lease(words)) == len(words) - 1
    assert not any("lease" in word for word in without_lease(words))


def test_both_allocators_are_asked_for_the_same() -> None:
    share = Demand(gpus=1, compute=MilliGpu(460), use_types=("T4",))
    (ours,), (stock,) = _our_request(share)["requests"], _stock_request(share)["requests"]
    assert (ours["exactly"]["deviceClassName"], ours["exactly"]["count"]) == (SHARED, 1)
    assert stock["exactly"]["capacity"] == {"requests": {"compute": "460"}}
    (config,) = _our_request(share)["config"]
    assert config["opaque"]["parameters"]["compute"] == 46
    for one in (ours, stock):
        assert one["exactly"]["selectors"][0]["cel"]["expression"].endswith(".type in ['T4']")
    whole = Demand(gpus=4, compute=MilliGpu(1000))
    (ours,), (stock,) = _our_request(whole)["requests"], _stock_request(whole)["requests"]
    assert ours["exactly"] == {"deviceClassName": WHOLE, "count": 4}
    assert stock["exactly"]["count"] == 4
