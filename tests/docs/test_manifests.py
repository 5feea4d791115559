# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that pages show are admitted by the webhook as they are written."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cotenant.kube.settings import parse_settings
from cotenant.kube.webhook.mutation import mutate
from tests.docs.test_house import PAGES, named
from tests.kube.reviews import response, review


def pods_on(page: Path) -> Iterator[dict[str, Any]]:
    """The pods of the YAML blocks of a page, with what is missing of a whole one."""
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
        for shown in yaml.safe_load_all(textwrap.dedent(block)):
            if isinstance(shown, dict) and (containers := shown.get("spec", {}).get("containers")):
                whole = [{"name": f"c{i}", "image": "your/image"} | one for i, one in enumerate(containers)]
                metadata = {"name": "p", "namespace": "team"} | shown.get("metadata", {})
                kind = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
                yield kind | {"spec": shown["spec"] | {"containers": whole}}


SHOWN = [(page, pod) for page in PAGES for pod in pods_on(page)]


def test_pods_are_found_on_pages() -> None:
    assert {named(page) for page, _ in SHOWN} >= {"docs/howto/mps.md", "docs/howto/kubernetes.md"}


@pytest.mark.parametrize(("page", "pod"), SHOWN, ids=[named(page) for page, _ in SHOWN])
def test_a_pod_on_a_page_is_admitted(page: Path, pod: dict[str, Any]) -> None:
    answer = response(mutate(review(pod), parse_settings(b"")))
    assert answer["allowed"], answer["status"]["message"]
    requests = any("nvidia.com" in str(one.get("resources", {})) for one in pod["spec"]["containers"])
    assert "patch" in answer or not requests, "a pod with GPUs is prepared"
