# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube` as a user runs it: what it prints, and what it refuses."""

import json
from pathlib import Path

import pytest
import yaml

from tests.cli.command import refusal, run

INSTALL = ("kube", "install", "--dev")


def test_manifests_are_the_same_as_yaml_and_as_json() -> None:
    as_yaml, as_json = (
        run(*INSTALL, "--image", "ours:7").stdout,
        run(*INSTALL, "--image", "ours:7", "-o", "json").stdout,
    )
    listed, documents = json.loads(as_json), list(yaml.safe_load_all(as_yaml))
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    assert [(one["kind"], one["metadata"]) for one in documents] == [
        (one["kind"], one["metadata"]) for one in listed["items"]
    ]
    assert "ours:7" in as_yaml
    assert "&id" not in as_yaml


def test_every_installation_has_a_key_of_its_own() -> None:
    keys = set()
    for _ in range(2):
        objects = json.loads(run(*INSTALL, "-o", "json").stdout)["items"]
        secrets = {one["metadata"]["name"]: one["data"] for one in objects if one["kind"] == "Secret"}
        keys |= {secrets[f"cotenant-{part}"]["tls.key"] for part in ("scheduler", "webhook")}
        keys |= {secrets["cotenant-why"]["key"]}
    assert len(keys) == 6


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("kube", "install"), "kube install needs --dev, the only way to install yet (with a self-signed certificate)"),
        (
            (*INSTALL, "--gpu-memory", "much"),
            "--gpu-memory 'much' is not an amount of memory; write for example 4GiB or 4096MiB",
        ),
        ((*INSTALL, "--node-selector", "gpu"), "--node-selector 'gpu': expected KEY=VALUE"),
        (("kube", "scheduler", "--extender", "8888"), "'8888': expected HOST:PORT, such as 127.0.0.1:8888"),
        (("kube", "scheduler", "--status", "::1:x"), "'::1:x': expected HOST:PORT, such as 127.0.0.1:8888"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(words: tuple[str, ...], why: str) -> None:
    assert refusal(*words) == why


def test_settings_are_read_before_anything_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("defaults: {gpus: none}\n")
    assert refusal(*INSTALL, "--settings", file).startswith(f"settings {file}: ")
