# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""An agent runs on every node, so what it does not need is not loaded there."""

import subprocess
import sys


def test_an_agent_loads_no_arrays() -> None:
    code = "import sys, cotenant.kube.agent.process; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
