# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The files of a release: one version for all, checksums that hold, a chart and a bill of materials."""

import hashlib
import json
import tarfile
from pathlib import Path

import pytest

from release import dist
from release.sbom import bill_of_materials
from tests.native import kit as native
from tests.packaging import kit

pytestmark = pytest.mark.slow

CHART = """apiVersion: v2
name: cotenant
version: 0.1.0
appVersion: 0.1.0
annotations:
  artifacthub.io/images: |
    - name: cotenant-agent
      image: registry.example/cotenant-agent:0.1.0
"""


def test_make_dist_builds_all_files_with_one_version_and_their_checksums(tmp_path: Path) -> None:
    python = native.environment("release") / "bin" / "python"
    kit.run([python, "-m", "release.dist", "--out", tmp_path], cwd=kit.ROOT)
    names = sorted(file.name for file in tmp_path.iterdir())
    (sdist,) = (name for name in names if name.endswith(".tar.gz"))
    version = sdist.removeprefix("cotenant-").removesuffix(".tar.gz")
    wheels = [f"cotenant-{version}-py3-none-manylinux_2_17_{machine}.whl" for machine in dist.MACHINES]
    expected = {sdist, *wheels, f"cotenant-{version}.cdx.json", "SHA256SUMS"}
    if (kit.ROOT / dist.CHART).is_dir():
        expected.add(f"cotenant-{dist.chart_version(version)}.tgz")
    assert set(names) == expected
    kit.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path)
    assert len((tmp_path / "SHA256SUMS").read_text().splitlines()) == len(names) - 1


def test_a_release_is_refused_for_a_tree_that_has_no_tag(tmp_path: Path) -> None:
    root = kit.copy_sources(tmp_path / "tree")
    python = native.environment("release") / "bin" / "python"
    done = kit.run([python, "-m", "release.dist", "--release", "--out", tmp_path / "dist"], cwd=root, code=1)
    assert "not a release: commit all changes and tag the commit" in done.stderr
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize(
    ("version", "chart"),
    [
        ("0.1.0", "0.1.0"),
        ("0.1.1.dev3", "0.1.1-dev.3"),
        ("0.2.0rc1", "0.2.0-rc.1"),
        ("0.2.0rc2.dev4", "0.2.0-rc.2.dev.4"),
    ],
)
def test_the_chart_has_the_version_of_the_release_in_the_form_of_helm(version: str, chart: str) -> None:
    assert dist.chart_version(version) == chart


def test_a_packed_chart_names_the_release_and_is_the_same_every_time(tmp_path: Path) -> None:
    chart = tmp_path / "chart"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text(CHART)
    (chart / "templates" / "a.yaml").write_text("a: 1\n")
    packed = dist.pack_chart(chart, tmp_path, "0.2.0rc1", 1767225600)
    assert packed.name == "cotenant-0.2.0-rc.1.tgz"
    first = packed.read_bytes()
    assert dist.pack_chart(chart, tmp_path, "0.2.0rc1", 1767225600).read_bytes() == first
    with tarfile.open(packed) as archive:
        assert archive.getnames() == ["cotenant/Chart.yaml", "cotenant/templates/a.yaml"]
        content = archive.extractfile("cotenant/Chart.yaml")
        assert content is not None
        text = content.read().decode()
    assert "\nversion: 0.2.0-rc.1\n" in text
    assert '\nappVersion: "0.2.0rc1"\n' in text
    assert "image: registry.example/cotenant-agent:0.2.0rc1\n" in text


def test_a_chart_without_its_versions_is_refused() -> None:
    with pytest.raises(dist.DistError, match="expected one line `version:`"):
        dist.stamped("name: cotenant\n", "0.1.0", "0.1.0")


def test_the_bill_of_materials_lists_what_is_inside_and_what_is_needed(wheel: Path) -> None:
    bill = json.loads(bill_of_materials([wheel]))
    parts = {part["name"]: part for part in bill["components"]}
    assert len(parts) == len(bill["components"])
    assert {"uPlot", "numpy", "jax", "nvidia-ml-py"} <= set(parts)
    assert (parts["numpy"]["scope"], parts["jax"]["scope"]) == ("required", "optional")
    assert parts["uPlot"]["version"]
    extras = {one["name"]: one["value"] for one in parts["uvloop"]["properties"]}
    assert extras == {"cotenant:versions": ">=0.21", "cotenant:extras": "all, kube, web"}
    assert [name for name in parts if name.startswith("cotenant/_native/")]
    named = bill["metadata"]["component"]["components"][0]
    assert named["hashes"][0]["content"] == hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert {entry for one in bill["dependencies"] for entry in one["dependsOn"]} == {
        part["bom-ref"] for part in bill["components"]
    }
    assert bill_of_materials([wheel]) == json.dumps(bill, indent=2) + "\n"
