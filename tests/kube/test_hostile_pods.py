# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever its owner writes on a pod after it was admitted, the scheduler answers, and others are placed as before."""

from hypothesis import example, given
from hypothesis import strategies as st

from cotenant.core.model import Reason
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.objective import LATENCY
from cotenant.kube.codec.policy import GPU_POLICY, NODE_POLICY, POLICY
from cotenant.kube.codec.settings import DIALECTS
from cotenant.kube.scheduler.explaining import explain
from cotenant.kube.scheduler.placement import Choice, Placer
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.resize import RESIZE, resize
from cotenant.kube.state.cluster import ClusterState
from tests.kube.worlds import annotated, args, free_memory, machine, node, place, placer_of, state_of, waiting

FIELDS = ("use_types", "avoid_types", "use_uuids", "avoid_uuids", "one_numa")
WISHES = ("exclusive", "link", "affinity", "anti-affinity", "workload", "least-speed", "use-types", "use-uuids")


def keys_of(dialect: Dialect) -> list[str]:
    found = [getattr(dialect, name) for name in FIELDS]
    return [key for key in found if key is not None and key != "*"]


KEYS = [
    RESIZE,
    POLICY,
    NODE_POLICY,
    GPU_POLICY,
    LATENCY,
    *map(own_key, WISHES),
    *(key for one in DIALECTS for key in keys_of(one)),
]
WORDS = ["", "{", "}", '"', ":", ",", "=", "/", "+", "*", "[", "%", "-", "9" * 30, "1e999", "memory", "compute", "main"]
WORDS += ["binpack", "spread", "fgd", "true", "NV1", "\u0663", "\x00", "\ud7ff", "c0", "0", "4Gi", "null", "[" * 2000]
HOSTILE = st.dictionaries(
    st.sampled_from(KEYS), st.lists(st.sampled_from(WORDS), max_size=8).map("".join) | st.text(max_size=40), max_size=3
)


@given(written=HOSTILE)
@example(written={RESIZE: '{"c0": {"memory": 1e999}}'})
@example(written={RESIZE: '{"c0": {"memory": ' + "9" * 400 + "}}"})
@example(written={RESIZE: "memory=\u0663Gi"})
@example(written={RESIZE: '{"\u0660": {"compute": "50"}}'})
@example(written={POLICY: "binpack/" * 25})
@example(written={LATENCY: "p99=1e999ms"})
@example(written={NODE_POLICY: "/", GPU_POLICY: "/"})
def test_a_pod_disturbs_nobody_by_what_is_written_on_it(written: dict[str, str]) -> None:
    state = state_of(node(machine("n1")), node(machine("n2")))
    placer = placer_of(state)
    running, waits = place(state, placer, waiting("running"), "n1"), waiting("waits")
    state.pod_changed(None, waits)
    hostile = [annotated(pod, written) for pod in (running, waits)]
    for before, after in zip((running, waits), hostile, strict=True):
        state.pod_changed(before, after)
        placer.filter(args(after, "n1", "n2"), 0.0)
        placer.prioritize(args(after, "n1", "n2"), 0.0)
        placer.would_fit(after)
        explain(after, state, placer)
    check_resize(state, hostile[0])
    check_bind(state, placer, hostile[1])
    assert state.closed == {}
    assert free_memory(state, "n1") == (16000 - 4000, 16000)
    assert placer.filter(args(waiting("other"), "n1", "n2"), 0.0).node_names


def check_resize(state: ClusterState, pod: Pod) -> None:
    """Answered, and given up again."""
    found = resize(pod, state, Quotas(), moment=1)
    assert found is None or isinstance(found, Reason) or found.annotations
    state.release(pod.metadata.uid)


def check_bind(state: ClusterState, placer: Placer, pod: Pod) -> None:
    found = placer.choose(pod, "n1", 0.0, 1)
    assert isinstance(found, Choice | Reason)
    state.release(pod.metadata.uid)
