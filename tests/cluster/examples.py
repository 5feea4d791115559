# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The manifests in `examples`, applied as they are: the image that they name is the tests' own under another name."""

from pathlib import Path

from tests.cluster.components import CONTAINERD_SOCKET
from tests.cluster.engine import Engine
from tests.cluster.images import PYTHON

EXAMPLES = Path(__file__).parents[2] / "examples"
IMAGE = "registry.example/cotenant:1"
SMI = "/usr/local/lib/cotenant/cotenant-smi"
"""where containers find our program"""


def apply(engine: Engine, name: str) -> None:
    """Creates the objects of a file such as `hami/slices.yaml`."""
    apply_text(engine, (EXAMPLES / name).read_text())


def apply_text(engine: Engine, objects: str) -> None:
    """Creates objects as an example writes them."""
    for machine in engine.cluster.machines:
        ctr = ("ctr", "--address", CONTAINERD_SOCKET, "--namespace", "k8s.io")
        machine.run(*ctr, "image", "tag", "--force", PYTHON, IMAGE)
    engine.cluster.kubectl("apply", "--filename=-", feed=objects)


def run_in(engine: Engine, pod: str, *command: str) -> str:
    """What a command prints that is run in a container of a pod."""
    return engine.cluster.kubectl("exec", pod, "--", *command)
