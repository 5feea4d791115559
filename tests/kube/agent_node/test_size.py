# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""An agent runs on every node, so what it does not need is not loaded there."""

import subprocess
import sys
from pathlib import Path


def test_an_agent_loads_no_arrays() -> None:
    code = "import sys, cotenant.kube.agent.process; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_agent_reads_its_settings_without_arrays(tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text("queue: {namespaces: [batch], order: sjf}")
    code = (
        "import sys, pathlib, cotenant.kube.settings as settings;"
        f" settings.read_settings(pathlib.Path({str(tmp_path / 'settings.yaml')!r}), check_queue=False);"
        " sys.exit('numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
