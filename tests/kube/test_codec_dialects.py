# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tables in `dialects`: what pods request, what they receive, and the message that refuses an invalid request.

A case has `expect` or `refused`; a case with `at` is also placed, and then needs `variables`. All keys:

name: what it shows
settings: {default_memory: 5000}        # of the codec
dialects: mib                           # gpushare in MiB; env-share: cambricon in that mode
annotations: {...}                      # of the pod
labels: {...}                           # of the pod
init: [{...}]                           # limits of each init container; sidecar: true
containers: [{...}]
expect: {...}                           # fields of the Demand that are not at their defaults
refused: sentence                       # instead
at: [0, 2]                              # indices of the GPUs of `pods.NODE` on which the pod is placed
variables: [{...}]  # all variables of each container with GPUs, but COTENANT_JOB and COTENANT_ISOLATION
pinned: {...}                           # all annotations of the placed pod that do not begin with cotenant.io/
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.core.model import Container, ContainerKind, Demand, Link, Slot
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.annotations import binding_annotations, variable_names
from cotenant.kube.codec.assignment import record_for
from cotenant.kube.codec.cambricon import CAMBRICON
from cotenant.kube.codec.gpushare import GPUSHARE
from cotenant.kube.codec.keys import PREFIX
from cotenant.kube.codec.paths import LIMITS
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.settings import Settings
from tests.kube.pods import NODE, UID, pod
from tests.tables import tables_in

CHOSEN = {"mib": replace(GPUSHARE, memory_unit=MiB(1)), "env-share": replace(CAMBRICON, env_share=True)}
MOMENT = 1_700_000_000_000_000_000

Case = dict[str, Any]


def cases(key: str) -> list[Any]:
    """Those that have this key."""
    found = tables_in(Path(__file__).parent / "dialects")
    return [pytest.param(case, id=f"{stem}: {case['name']}") for stem, case in found if key in case]


def pod_of(case: Case) -> Pod:
    annotations = {key: str(value) for key, value in case.get("annotations", {}).items()}
    made = pod(*case["containers"], init=case.get("init", ()), annotations=annotations)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels=case.get("labels", {})))


def settings_of(case: Case) -> Settings:
    settings = Settings(**case.get("settings", {}))
    return replace(settings, dialects=(CHOSEN[case["dialects"]],)) if "dialects" in case else settings


def expected_demand(said: Case) -> Demand:
    """A Demand from the words of a table, where a container claims a whole GPU unless it says otherwise."""
    given = dict(said)
    for name in ("use_types", "avoid_types"):
        given[name] = tuple(given.get(name, ()))
    for name in ("use_uuids", "avoid_uuids"):
        given[name] = frozenset(given.get(name, ()))
    if "link" in given:
        given["link"] = Link[given["link"]]
    given["containers"] = tuple(
        Container(**{**of, "kind": ContainerKind(of.get("kind", "app"))}) for of in given.get("containers", ())
    )
    return Demand(**given)


@pytest.mark.parametrize("case", cases("expect"))
def test_what_a_pod_asks_for(case: Case) -> None:
    assert request_of(pod_of(case), settings_of(case)).demand == expected_demand(case["expect"])


@pytest.mark.parametrize("case", cases("refused"))
def test_nonsense_is_refused_with_a_sentence(case: Case) -> None:
    with pytest.raises(InputError) as refusal:
        request_of(pod_of(case), settings_of(case))
    assert str(refusal.value) == case["refused"]


@pytest.mark.parametrize("case", cases("at"))
def test_variables_and_annotations_of_a_placed_pod(case: Case) -> None:
    wanting = pod_of(case)
    request = request_of(wanting, settings_of(case))
    record = record_for(wanting, request, Slot(NODE.name, tuple(case["at"])), NODE)
    annotations = binding_annotations(wanting, request, record, NODE, moment=MOMENT)
    for one, variables in zip(request.containers, case["variables"], strict=True):
        start = f"{PREFIX}/{one.number}."
        own = {key.removeprefix(start): value for key, value in annotations.items() if key.startswith(start)}
        assert own.pop(LIMITS).startswith("cotenant-limits ")
        has_ladder = any(name.startswith("NVIDIA_") for name in variables)
        ours = {"COTENANT_JOB": UID, **({"COTENANT_ISOLATION": "preload"} if has_ladder else {})}
        assert own == {**ours, **variables}
        assert set(variable_names(one.amounts.dialect, one.amounts.container.gpus)) == set(own)
    if "pinned" in case:
        assert {key: value for key, value in annotations.items() if not key.startswith(f"{PREFIX}/")} == case["pinned"]
