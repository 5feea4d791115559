# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The definition of the custom resource WorkloadProfile: its schema refuses everything that is out of bounds."""

from typing import Any

from cotenant.kube.api.names import Json, object_of
from cotenant.kube.codec.profiles import (
    ACCEPTED,
    FASTEST,
    GROUP,
    KIND,
    LARGEST_GAIN,
    LARGEST_RATE,
    LONGEST_NODE,
    LONGEST_STEP,
    LONGEST_TYPE,
    LONGEST_WORKLOAD,
    MOST_BESIDE,
    MOST_PODS,
    MOST_SEPARATED,
    MOST_TIMES,
    PLURAL,
    VERSION,
)

LARGEST_AMOUNT, LARGEST_BATCH = 1e9, 1 << 24
MOST_CONDITIONS = 8


def profile_definition() -> Json:
    """Return the CustomResourceDefinition."""
    names = {
        "plural": PLURAL,
        "singular": KIND.lower(),
        "kind": KIND,
        "listKind": f"{KIND}List",
        "shortNames": ["wlp"],
        "categories": ["cotenant"],
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "selectableFields": [{"jsonPath": ".spec.node"}],
        "additionalPrinterColumns": _columns(),
        "schema": {"openAPIV3Schema": _schema()},
    }
    spec = {"group": GROUP, "scope": "Cluster", "names": names, "versions": [version]}
    return object_of(
        "CustomResourceDefinition", "apiextensions.k8s.io/v1", f"{PLURAL}.{GROUP}", cluster_wide=True, spec=spec
    )


def _columns() -> list[Json]:
    columns = {
        "Namespace": ("string", ".spec.namespace"),
        "Workload": ("string", ".spec.workload"),
        "GPU type": ("string", ".spec.gpuType"),
        "Node": ("string", ".spec.node"),
        "Samples/s alone": ("number", ".spec.alone.samplesPerSecond"),
        "Accepted": ("string", f'.status.conditions[?(@.type=="{ACCEPTED}")].status'),
        "Measured": ("date", ".spec.measuredAt"),
    }
    return [{"name": name, "type": kind, "jsonPath": path} for name, (kind, path) in columns.items()]


def _schema() -> Json:
    rest = "self.metadata.name.substring(size(self.spec.node) + 1)"
    named = f"self.metadata.name.startsWith(self.spec.node + '.') && {rest}.matches('^(0|[1-9][0-9]?)$')"
    schema = _object(
        {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _spec(),
            "status": _object({"conditions": _conditions(), "separations": _separations()}, ()),
        },
        ("spec",),
    )
    schema["description"] = (
        "What the agent of one node has measured of one workload on one type of GPU. Agents write these objects; the "
        "scheduler predicts from them how fast workloads run beside each other."
    )
    message = "the name must be that of spec.node, a dot and a number below 100"
    return {**schema, "x-kubernetes-validations": [{"rule": named, "message": message}]}


def _spec() -> Json:
    alone = _object(
        {
            "samplesPerSecond": _positive(LARGEST_RATE),
            "stepSeconds": _positive(LONGEST_STEP),
            "utilisation": _number(1),
            "bandwidth": _number(1),
            "memoryMiB": _number(LARGEST_AMOUNT),
            "pcieMiBPerSecond": _number(LARGEST_AMOUNT),
            "times": _count(MOST_TIMES),
        },
        ("times",),
    )
    beside = _object(
        {
            "namespace": _text(63),
            "workload": _text(LONGEST_WORKLOAD),
            "speed": _positive(FASTEST),
            "times": _count(MOST_TIMES),
        },
        ("namespace", "workload", "speed", "times"),
    )
    pod = _object(
        {
            "name": _text(253),
            "uid": _text(64),
            "batch": _count(LARGEST_BATCH),
            "tuned": {"type": "boolean"},
            "samplesPerSecond": _positive(LARGEST_RATE),
            "speed": _positive(LARGEST_GAIN),
        },
        ("name", "uid", "batch", "samplesPerSecond"),
    )
    identity = {
        "node": _text(LONGEST_NODE),
        "namespace": _text(63),
        "workload": _text(LONGEST_WORKLOAD),
        "gpuType": _text(LONGEST_TYPE),
    }
    return _object(
        {
            **identity,
            "measuredAt": {"type": "string", "format": "date-time", "maxLength": 40},
            "alone": alone,
            "beside": _list(beside, MOST_BESIDE, "namespace", "workload"),
            "pods": _list(pod, MOST_PODS, "uid"),
        },
        tuple(identity),
    )


def _conditions() -> Json:
    texts = {"type": 316, "status": 7, "reason": 1024, "message": 32768}
    fields = {name: {"type": "string", "maxLength": most} for name, most in texts.items()}
    fields["lastTransitionTime"] = {"type": "string", "format": "date-time", "maxLength": 40}
    return _list(_object(fields, ("type", "status")), MOST_CONDITIONS, "type")


def _separations() -> Json:
    fields = {"controller": _text(64), "pod": _text(253), "at": {"type": "string", "maxLength": 40}}
    return _list(_object(fields, tuple(fields)), MOST_SEPARATED, "controller")


def _object(properties: Json, required: tuple[str, ...]) -> Json:
    return {"type": "object", "properties": properties} | ({"required": list(required)} if required else {})


def _list(items: Json, most: int, *keys: str) -> Json:
    """A list whose entries differ in these fields; the API server refuses two that agree."""
    kind: dict[str, Any] = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
    return {"type": "array", "maxItems": most, "items": items, **kind}


def _text(longest: int) -> Json:
    return {"type": "string", "minLength": 1, "maxLength": longest}


def _number(most: float) -> Json:
    return {"type": "number", "minimum": 0, "maximum": most}


def _positive(most: float) -> Json:
    return {**_number(most), "exclusiveMinimum": True}


def _count(most: int) -> Json:
    return {"type": "integer", "minimum": 1, "maximum": most}
