# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Lists what is in the wheels of a release, and what they depend on, in the format CycloneDX 1.6."""

import email
import hashlib
import json
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path

UPLOT = "cotenant/web/_uplot/uPlot.iife.js"
REQUIREMENT = re.compile(r"([\w.-]+)([^;]*)(?:;.*extra == ['\"]([\w-]+)['\"])?")
"""a line of Requires-Dist: name, range of versions, extra"""


def bill_of_materials(wheels: Sequence[Path]) -> str:
    """The bill of all these wheels, which differ in their library only; the same wheels give the same text."""
    with zipfile.ZipFile(wheels[0]) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
        about = email.message_from_bytes(archive.read(name))
        charts = archive.read(UPLOT)
    own = f"pkg:pypi/cotenant@{about['Version']}"
    bundled = [*_native(wheels, own), _charts(charts)]
    needed = _dependencies(about.get_all("Requires-Dist", []))
    content = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": "cotenant",
                "version": about["Version"],
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "components": [_file(wheel.name, wheel.read_bytes()) for wheel in wheels],
            }
        },
        "components": [*bundled, *needed],
        "dependencies": [{"ref": own, "dependsOn": [one["bom-ref"] for one in [*bundled, *needed]]}],
    }
    return json.dumps(content, indent=2) + "\n"


def _native(wheels: Sequence[Path], own: str) -> list[dict[str, object]]:
    found = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(one for one in archive.namelist() if "/_native/" in one):
                part = _file(name, archive.read(name))
                found.append({**part, "bom-ref": f"{own}#{name}"})
    return found


def _charts(content: bytes) -> dict[str, object]:
    version = re.search(rb"\(v([\d.]+)\)", content[:500])
    known = {"version": version[1].decode()} if version else {}
    purl = f"pkg:npm/uplot@{known['version']}" if known else "pkg:npm/uplot"
    license_ = [{"license": {"id": "MIT"}}]
    part = {"type": "library", "bom-ref": purl, "name": "uPlot", **known, "purl": purl, "licenses": license_}
    return {**part, "hashes": _hashes(content)}


def _dependencies(lines: Sequence[str]) -> list[dict[str, object]]:
    """Packages that are installed beside the wheel: name, range of versions, and the extras that need each."""
    found = dict[str, tuple[str, set[str]]]()
    for line in lines:
        name, versions, extra = REQUIREMENT.match(line).groups()  # type: ignore[union-attr]
        found.setdefault(name, (versions.strip(), set()))[1].add(extra or "")
    return [_dependency(name, versions, extras) for name, (versions, extras) in found.items()]


def _dependency(name: str, versions: str, extras: set[str]) -> dict[str, object]:
    always = "" in extras
    known = {"cotenant:versions": versions} | ({} if always else {"cotenant:extras": ", ".join(sorted(extras))})
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}",
        "name": name,
        "purl": f"pkg:pypi/{name}",
        "scope": "required" if always else "optional",
        "properties": [{"name": key, "value": value} for key, value in known.items()],
    }


def _file(name: str, content: bytes) -> dict[str, object]:
    return {"type": "file", "name": name, "hashes": _hashes(content)}


def _hashes(content: bytes) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
