# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`FOLDER STEP`: an MPS supervisor in a process of its own, which is killed when a control daemon reaches that step."""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

from cotenant.kube.agent.mps_supervisor import SOCKET, Supervisor, accept_all, listen
from cotenant.node.mps import Mps
from cotenant.node.mps_daemon import MpsDaemon
from tests.node.mps_kit import FileModes, command

OWNER = "agent of n1"


def main(folder: Path, at: str) -> None:
    def step(name: str) -> None:
        if name == at:
            os.kill(os.getpid(), signal.SIGKILL)

    with patch("cotenant.node.mps.MpsDaemon", partial(MpsDaemon, step=step)), listen(folder / SOCKET) as listening:
        mps = Mps(folder, OWNER, FileModes(folder / "mode"), command(), answer_s=30, ask_every_s=0)
        accept_all(listening, Supervisor(mps, installed=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
