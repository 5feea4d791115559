# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Puts the vGPU library, cotenant-smi and the charts of the pages into the package: into the wheel, or beside the
sources if it is editable.

The library's name holds a part of its content's hash, so that an upgrade never writes to a file that a process has
mapped. If it cannot be built the package is installed all the same, and says at use that limits on real GPUs are not
enforced.
"""

import hashlib
import importlib.util
import platform
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ARCHITECTURES = ("x86_64", "aarch64")


class VgpuLibraryHook(BuildHookInterface[Any]):
    """Called by the package's build, once for each wheel or editable install."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root, machine = Path(self.root), platform.machine()
        self._add_charts(root / "src" / "cotenant" / "web" / "_uplot", version, build_data)
        beside = root / "src" / "cotenant" / "_native"
        if version == "editable":
            shutil.rmtree(beside, ignore_errors=True)  # of an older content, or of another machine
        build = _build_script(root)
        self._made = tempfile.TemporaryDirectory(prefix="cotenant-")
        try:
            if platform.system() != "Linux" or machine not in ARCHITECTURES:
                raise build.BuildError(f"it is for Linux on {' and '.join(ARCHITECTURES)}, not for this machine")
            library, smi = build.library(Path(self._made.name)), build.smi(Path(self._made.name))
        except build.BuildError as error:
            self.app.display_warning(f"cotenant is built without the vGPU library: {error}")
            return
        name = f"libcotenant-{hashlib.sha256(library.read_bytes()).hexdigest()[:16]}.so"
        if version == "editable":
            (beside / machine).mkdir(parents=True)
        for built, its_name in ((library, name), (smi, build.SMI)):
            if version == "editable":
                shutil.copyfile(built, beside / machine / its_name)
            else:
                build_data["force_include"][str(built)] = f"cotenant/_native/{machine}/{its_name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{machine}"

    def _add_charts(self, beside: Path, version: str, build_data: dict[str, Any]) -> None:
        """uPlot, which the pages draw charts with, from the package that contains it as a browser needs it."""
        if version == "editable":  # a wheel leaves the files of an editable install alone
            shutil.rmtree(beside, ignore_errors=True)
        found = importlib.util.find_spec("uplot")
        if found is None or found.origin is None:
            self.app.display_warning("cotenant is built without uPlot: its pages will have no charts")
            return
        static = Path(found.origin).parent / "static"
        for source in (static / "uPlot.iife.js", static / "uPlot.min.css"):
            if version == "editable":
                beside.mkdir(exist_ok=True)
                shutil.copyfile(source, beside / source.name)
            else:
                build_data["force_include"][str(source)] = f"cotenant/web/_uplot/{source.name}"

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
