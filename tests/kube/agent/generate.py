# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the Python of the .proto files beside them: `python -m tests.kube.agent.generate`; a test compares."""

import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parents[3] / "src"
FOLDER = Path("cotenant/kube/agent/proto")
LICENCE = "# SPDX-FileCopyrightText: 2026 The cotenant authors\n# SPDX-License-Identifier: Apache-2.0\n"


def generated() -> dict[str, str]:
    """What the files should be, by name."""
    protos = sorted(path.relative_to(SOURCES) for path in (SOURCES / FOLDER).glob("*.proto"))
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", f"--python_out={out}", f"--pyi_out={out}"]
        subprocess.run([*command, *map(str, protos)], cwd=SOURCES, check=True)
        return {path.name: LICENCE + path.read_text() for path in sorted((Path(out) / FOLDER).iterdir())}


if __name__ == "__main__":
    for name, content in generated().items():
        (SOURCES / FOLDER / name).write_text(content)
