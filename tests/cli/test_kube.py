# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube` as a user runs it: what it prints, and what it refuses."""

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.command import environment, refusal, run

PRINT = ("kube", "install", "--print", "--kube-version", "1.34.4")


def test_manifests_are_the_same_as_yaml_and_as_json() -> None:
    chosen = (*PRINT, "--set", "scheduler.image=ours:7")
    as_yaml, as_json = run(*chosen).stdout, run(*chosen, "-o", "json").stdout
    listed, documents = json.loads(as_json), list(yaml.safe_load_all(as_yaml))
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    assert documents == listed["items"]
    assert "ours:7" in as_yaml
    assert "&id" not in as_yaml


def test_the_namespace_comes_first_and_can_be_another_one() -> None:
    first, *others = json.loads(run(*PRINT, "-o", "json", "--namespace", "gpus").stdout)["items"]
    assert (first["kind"], first["metadata"]["name"]) == ("Namespace", "gpus")
    assert {one["metadata"].get("namespace", "gpus") for one in others} == {"gpus", "kube-system"}
    assert "cotenant-system" not in json.dumps(others)


def test_the_version_of_a_cluster_may_be_short() -> None:
    printed = run("kube", "install", "--print", "--kube-version", "1.35").stdout
    assert "image: registry.k8s.io/kube-scheduler:v1.35.0\n" in printed


def test_a_user_without_a_cluster_is_told_how_to_name_one(tmp_path: Path) -> None:
    why = refusal("kube", "status", env=environment(HOME=str(tmp_path)))
    there_is_none = f"no cluster is configured: there is no {tmp_path}/.kube/config"
    assert why == f"{there_is_none}; set KUBECONFIG, or name a file by --kubeconfig"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((*PRINT, "--set", "web"), "--set 'web': expected NAME=VALUE, such as scheduler.replicas=2"),
        (
            (*PRINT, "--set", "devices.memory=much"),
            "values: devices.memory: expected an amount of memory, such as 4GiB or 4096MiB",
        ),
        (
            ("kube", "install", "--kube-version", "1.34.4"),
            "--kube-version: only with --print; an installation asks the cluster for its version",
        ),
        (
            (*PRINT, "--set", "scheduler.resources.request.cpu=1"),
            "values: scheduler.resources: unknown name 'request'; did you mean 'requests'?",
        ),
        (
            ("kube", "install", "--print", "--kube-version", "1.33.2", "--set", "settings.claims.enabled=true"),
            "settings.claims.enabled needs Kubernetes 1.34 or later, and this cluster runs v1.33.2: upgrade it first,"
            " or leave ResourceClaims disabled",
        ),
        ((*PRINT, "--set", "webb.actions=true"), "values: unknown name 'webb'; did you mean 'web'?"),
        (
            ("kube", "install", "--print", "--kube-version", "1.29.1"),
            "this cluster runs Kubernetes v1.29.1, and cotenant needs 1.30 or later: upgrade it first",
        ),
        (
            ("kube", "install", "--print", "--kube-version", "latest"),
            "--kube-version latest: expected a version of Kubernetes, such as 1.34.4",
        ),
        (
            (*PRINT, "--namespace", "My GPUs"),
            "--namespace My GPUs: expected up to 63 lowercase letters, digits and dashes",
        ),
        (("kube", "scheduler", "--extender", "8888"), "'8888': expected HOST:PORT, such as 127.0.0.1:8888"),
        (("kube", "scheduler", "--status", "::1:x"), "'::1:x': expected HOST:PORT, such as 127.0.0.1:8888"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(words: tuple[str, ...], why: str) -> None:
    assert refusal(*words) == why


def test_settings_are_read_before_anything_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("defaults: {gpus: none}\n")
    why = "values: settings.defaults.gpus: expected a whole number, not a text"
    assert refusal(*PRINT, "--settings", file).startswith(why)


def test_helm_that_is_asked_for_and_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert refusal("kube", "install", "--helm").startswith("--helm: there is no helm on the PATH")
