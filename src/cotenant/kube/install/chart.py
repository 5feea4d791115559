# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The chart, rendered without helm: the same files, values and checks, and the same objects."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

import cotenant
from cotenant.errors import InputError
from cotenant.kube.api.names import DEFAULT_NAMESPACE, NAMESPACE, OUR_LABELS, Json
from cotenant.kube.install.template import Templates
from cotenant.kube.install.template_functions import FUNCTIONS, LOADER
from cotenant.kube.install.values import Values, check_present, explained
from cotenant.kube.settings import MIGRATIONS, MOST_BYTES, parse_settings
from cotenant.wire.codec import read_bounded, refusal
from cotenant.wire.migration import FIRST, Step, migrate

RELEASE = "cotenant"
SERVICE = "cotenant"
"""what `app.kubernetes.io/managed-by` says of objects that we apply; helm says Helm"""
OLDEST = (1, 30)
"""the oldest Kubernetes that works: admission policies are stable since then; Chart.yaml says the same to helm"""
ORDER = (
    *("Namespace", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount", "Secret", "ConfigMap"),
    *("PersistentVolumeClaim", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
    *("Service", "DaemonSet", "Deployment", "Job"),
)
"""the order in which kinds are created, as helm has it; the others follow"""
HOOK = "helm.sh/hook"
PRIVILEGED = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "audit", "warn")}
"""Agents mount folders of their node. All other pods fulfil `restricted`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """What templates ask of a cluster."""

    version: str = "v1.34.0"
    apis: frozenset[str] = field(default_factory=frozenset)
    """groups and versions that it serves, such as cert-manager.io/v1"""
    objects: Mapping[tuple[str, str], Sequence[Json]] = field(default_factory=dict)
    """what `lookup` finds, by version and kind; empty if templates are rendered without a cluster"""

    def lookup(self, version: str, kind: str, namespace: str, name: str) -> Json:
        """Return an object, or without a name the list of all, as helm's function does; empty if there is none."""
        found = self.objects.get((version, kind), ())
        if not name:
            return {"items": list(found)} if found else {}
        identity = (name, namespace)
        return next((one for one in found if (one["metadata"]["name"], one["metadata"]["namespace"]) == identity), {})


def chart_folder() -> Path:
    """Return the folder of the chart: in the package, or beside its sources."""
    package = Path(cotenant.__file__).parent
    for place in (package / "_chart", package.parents[1] / "deploy" / "helm" / "cotenant"):
        if (place / "Chart.yaml").is_file():
            return place
    raise InputError("this installation of cotenant contains no chart; install the package with pip")


def merged_values(
    files: Iterable[Path] = (),
    assignments: Iterable[str] = (),
    settings: Path | None = None,
    migrations: Sequence[Step] = MIGRATIONS,
) -> Json:
    """Return what a settings file, files of values and assignments `a.b=c` say, without defaults. The later is above
    the earlier, and settings are those of the newest version."""
    said: Json = {} if settings is None else newest({"settings": _read_values(settings)}, settings, migrations)
    for file in files:
        said = merged(said, newest(_read_values(file), file, migrations))
    for assignment in assignments:
        said = merged(said, parse_assignment(assignment))
    return said


def checked_values(said: Mapping[str, Any]) -> Json:
    """Return all values, defaults included; InputError if one is unknown or wrong."""
    defaults = yaml.load((chart_folder() / "values.yaml").read_bytes(), LOADER)
    values = merged(defaults, said, defaults_end=True)
    try:
        msgspec.convert(values, Values)
    except msgspec.ValidationError as error:
        raise InputError(f"values: {explained(refusal(error, Values))}") from None
    check_present(values)
    parse_settings(json.dumps(values["settings"]).encode(), "values: settings")
    return values


def rendered(
    values: Mapping[str, Any],
    facts: ClusterFacts | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    *,
    upgrade: bool = False,
) -> list[Json]:
    """Return the objects of an installation with all its values, in the order of their creation; hooks are first.
    InputError if the chart refuses it."""
    facts = facts or ClusterFacts()
    folder, chart = chart_folder(), _chart()
    check_version(facts.version)
    templates = Templates(functions={**FUNCTIONS, "lookup": facts.lookup})
    bodies = {path.name: templates.add(path.name, path.read_text()) for path in sorted(folder.glob("templates/*"))}
    dot = {
        "Values": values,
        "Release": {"Name": RELEASE, "Namespace": namespace, "Service": SERVICE, "IsInstall": not upgrade},
        "Chart": {"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
        "Capabilities": {"KubeVersion": {"Version": facts.version}, "APIVersions": {"Has": facts.apis.__contains__}},
        "Files": {"Get": lambda name: (folder / name).read_text()},
    }
    objects: list[Json] = []
    for name, body in bodies.items():
        if name.endswith(".yaml"):
            objects += [one for one in yaml.load_all(templates.render(body, dot), LOADER) if one]
    return sorted(objects, key=_rank)


def check_upgrade(installed: str) -> None:
    """InputError if this version cannot follow the one that is installed. The rule is a template of the chart."""
    templates = Templates()
    templates.add("names", (chart_folder() / "templates" / "_names.tpl").read_text())
    if obstacle := templates.include(
        "cotenant.upgradeObstacle", {"installed": installed, "new": _chart()["appVersion"]}
    ):
        raise InputError(obstacle)


def _chart() -> Json:
    return dict(yaml.load((chart_folder() / "Chart.yaml").read_bytes(), LOADER))


def without_removal(objects: Sequence[Json]) -> list[Json]:
    """Return the objects without those that helm creates only to remove an installation."""
    return [one for one in objects if "pre-delete" not in (one["metadata"].get("annotations") or {}).get(HOOK, "")]


def installed_objects(objects: Sequence[Json]) -> list[Json]:
    """Return the objects without hooks, whose work we do ourselves."""
    return [one for one in objects if HOOK not in one["metadata"].get("annotations", {})]


def namespace_object() -> Json:
    """Return our namespace, in which privileged pods are allowed."""
    labels = {**OUR_LABELS, **PRIVILEGED}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def check_version(version: str) -> None:
    """InputError if Kubernetes is too old."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise InputError(
            f"this cluster runs Kubernetes {version}, and cotenant needs {oldest} or later: upgrade it first"
        )


def full_version(text: str) -> str:
    """Return a version of Kubernetes with all three numbers, as helm does; the image of kube-scheduler has them."""
    found = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+)([-+].+)?)?", text, re.ASCII)
    if found is None:
        raise InputError(f"--kube-version {text}: expected a version of Kubernetes, such as 1.34.4")
    return f"v{found[1]}.{found[2]}.{found[3] or 0}{found[4] or ''}"


def parse_assignment(text: str) -> Json:
    """Parse `a.b=c` as helm does: a backslash before a dot keeps it, {x,y} is a list, and null removes a default."""
    path, equals, value = text.partition("=")
    keys = [key.replace("\\.", ".") for key in re.split(r"(?<!\\)\.", path)]
    if not equals or not all(keys) or "[" in path:
        raise InputError(f"--set {text!r}: expected NAME=VALUE, such as scheduler.replicas=2")
    made: Any = _typed(value)
    for key in reversed(keys):
        made = {key: made}
    return dict(made)


def _typed(text: str) -> Any:
    if text.startswith("{") and text.endswith("}"):
        return [_typed(one) for one in text[1:-1].split(",")]
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    return int(text) if re.fullmatch(r"-?(0|[1-9]\d*)", text) else text


def _read_values(file: Path) -> Json:
    content = read_bounded(file, MOST_BYTES, "a file of values")
    try:
        found = yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        raise InputError(f"values {file}: {' '.join(str(error).split())}") from None
    if found is not None and not isinstance(found, dict):
        raise InputError(f"values {file}: expected a map of values")
    return found or {}


def newest(values: Json, what: object, migrations: Sequence[Step] = MIGRATIONS) -> Json:
    """Return values with their settings in the newest version; templates and the schema know no other."""
    settings = values.get("settings")
    if not isinstance(settings, dict):
        return values
    try:
        content = migrate(settings, migrations, lambda line: print(f"{what}: settings: {line}", file=sys.stderr))
    except InputError as error:
        raise InputError(f"{what}: settings: {error}") from None
    version = {"version": FIRST + len(migrations)} if migrations else {}
    return {**values, "settings": {**version, **content}}


def merged(below: Mapping[str, Any], above: Mapping[str, Any], *, defaults_end: bool = False) -> Json:
    """Return the values of both, those of `above` first. With `defaults_end`, null removes a default, as in helm."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        lower, upper = below[key], above[key]
        if isinstance(lower, Mapping) and isinstance(upper, Mapping):
            both[key] = merged(lower, upper, defaults_end=defaults_end)
        elif upper is None and defaults_end:
            del both[key]
    return both


def _rank(made: Json) -> tuple[bool, int, int, str, str]:
    annotations = made["metadata"].get("annotations") or {}
    kind = made["kind"]
    place = ORDER.index(kind) if kind in ORDER else len(ORDER)
    return (HOOK not in annotations, int(annotations.get(f"{HOOK}-weight", 0)), place, kind, made["metadata"]["name"])
