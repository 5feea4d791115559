# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Puts the vGPU library, cotenant-smi, the version and the charts of the pages into the package: into the wheel, or
beside the sources if it is editable.

The library's name holds a part of its content's hash, so that an upgrade never writes to a file that a process has
mapped. If it cannot be built the package is installed all the same, and says at use that limits on real GPUs are not
enforced. A wheel of a release is built for the machine that $COTENANT_RELEASE_FOR names, against an old glibc, and not
without the library.
"""

import hashlib
import importlib.util
import os
import platform
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ARCHITECTURES = ("x86_64", "aarch64")
VERSION_FILE = """\
# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
\"\"\"Written by the build.\"\"\"

VERSION = "{version}"
"""


class PackageHook(BuildHookInterface[Any]):
    """Called by the package's build, once for each wheel or editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._made = tempfile.TemporaryDirectory(prefix="cotenant-")
        self._editable = version == "editable"
        self._build_data = build_data
        self._add_version()
        self._add_charts()
        release_for = os.environ.get("COTENANT_RELEASE_FOR")
        build = _build_script(Path(self.root))
        self._empty("_native")  # of an older content, or of another machine
        try:
            self._add_library(build, release_for)
        except build.BuildError as error:
            if release_for:
                raise
            self.app.display_warning(f"cotenant is built without the vGPU library: {error}")

    def _add(self, source: Path, place: str) -> None:
        """Adds a file to the package, at this place in it."""
        if self._editable:
            beside = Path(self.root, "src", "cotenant", place)
            beside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, beside)
        else:  # a wheel leaves the files of an editable install alone
            self._build_data["force_include"][str(source)] = f"cotenant/{place}"

    def _empty(self, folder: str) -> None:
        if self._editable:
            shutil.rmtree(Path(self.root, "src", "cotenant", folder), ignore_errors=True)

    def _add_version(self) -> None:
        file = Path(self._made.name, "_version.py")
        file.write_text(VERSION_FILE.format(version=self.metadata.version))
        self._add(file, "_version.py")

    def _add_charts(self) -> None:
        """uPlot, which the pages draw charts with, from the package that contains it as a browser needs it."""
        self._empty("web/_uplot")
        found = importlib.util.find_spec("uplot")
        if found is None or found.origin is None:
            self.app.display_warning("cotenant is built without uPlot: its pages will have no charts")
            return
        static = Path(found.origin).parent / "static"
        for source in (static / "uPlot.iife.js", static / "uPlot.min.css"):
            self._add(source, f"web/_uplot/{source.name}")

    def _add_library(self, build: ModuleType, release_for: str | None) -> None:
        machine = release_for or platform.machine()
        if platform.system() != "Linux" or machine not in ARCHITECTURES:
            raise build.BuildError(f"it is for Linux on {' and '.join(ARCHITECTURES)}, not for this machine")
        compiler = build.release_compiler(machine) if release_for else None
        made = Path(self._made.name)
        library, smi = build.library(made, cc=compiler), build.smi(made, cc=compiler)
        name = f"libcotenant-{hashlib.sha256(library.read_bytes()).hexdigest()[:16]}.so"
        self._add(library, f"_native/{machine}/{name}")
        self._add(smi, f"_native/{machine}/{build.SMI}")
        runs_on = f"manylinux_{build.OLDEST_GLIBC.replace('.', '_')}" if release_for else "linux"
        self._build_data["pure_python"] = False
        self._build_data["tag"] = f"py3-none-{runs_on}_{machine}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._made.cleanup()


def _build_script(root: Path) -> ModuleType:
    """native/build.py, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("native_build", root / "native" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
