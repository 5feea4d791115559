# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Stands in for a vendor's container runtime: gives a container the GPUs that the vendor's variable names.

Called in place of runc (see `gpus.py`) when a container is created. As the real one does, it reads the container's
environment, adds the driver's libraries, refuses what there is not, and calls runc. The driver is the stand-in; what
would be device files is a variable of its own. Standard library only.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

STATE = "/run/standin/state"
"""of the driver, on the node and in its containers: so they share GPUs"""


def named_by(process: dict[str, Any], node: dict[str, Any]) -> tuple[dict[str, str], str]:
    """The environment of a process, and the GPUs that it names."""
    environment = dict(word.split("=", 1) for word in process.get("env", []))
    return environment, environment.get(node["variable"], "")


def set_variables(process: dict[str, Any], node: dict[str, Any]) -> None:
    """Tells a process of the GPUs that it names; for the stand-in, these are variables instead of device files."""
    environment, named = named_by(process, node)
    space = os.stat("/proc/self/ns/pid").st_ino  # of the node: NVML names processes as the node does
    settings = {"STANDIN_STATE": STATE, "STANDIN_HOST_PIDS": str(space), **node["settings"]}
    if named != "all":
        settings["STANDIN_VISIBLE"] = "" if named == "none" else named
    process["env"] = [f"{name}={value}" for name, value in {**environment, **settings}.items()]


def give_gpus(config: dict[str, Any], node: dict[str, Any]) -> str | None:
    """Changes a container's configuration; why it cannot be, in one line."""
    _, named = named_by(config["process"], node)
    if named in ("", "void"):
        return None
    for word in [] if named in ("all", "none") else named.split(","):
        known = (*node["uuids"], *map(str, range(len(node["uuids"]))))
        if not word.startswith("MIG-") and word not in known:
            return f"device error: {word}: unknown device"
    set_variables(config["process"], node)
    options = ["bind", "rprivate", "nosuid"]
    for name in node["brought"]:
        source, place = f"{node['driver']}/{name}", f"{node['libraries']}/{name}"
        config["mounts"].append({"source": source, "destination": place, "type": "bind", "options": [*options, "ro"]})
    for program in node["programs"]:
        place = f"/usr/bin/{os.path.basename(program)}"
        config["mounts"].append({"source": program, "destination": place, "type": "bind", "options": [*options, "ro"]})
    config["mounts"].append({"source": STATE, "destination": STATE, "type": "bind", "options": [*options, "rw"]})
    return None


def create(node: dict[str, Any], arguments: list[str]) -> None:
    """A container is created."""
    bundle = Path(arguments[arguments.index("--bundle") + 1]) / "config.json"
    config = json.loads(bundle.read_text())
    if problem := give_gpus(config, node):
        log = Path(arguments[arguments.index("--log") + 1])  # where containerd looks for what went wrong
        log.write_text(json.dumps({"level": "error", "msg": f"stand-in for the NVIDIA runtime: {problem}"}) + "\n")
        sys.exit(1)
    os.makedirs(os.path.dirname(STATE), exist_ok=True)
    state = os.open(STATE, os.O_CREAT | os.O_RDWR)
    os.fchmod(state, 0o666)  # whoever a container runs as
    bundle.write_text(json.dumps(config))


def execute(node: dict[str, Any], arguments: list[str]) -> None:
    """Another process is started in a container."""
    file = Path(arguments[arguments.index("--process") + 1])
    process = json.loads(file.read_text())
    set_variables(process, node)
    file.write_text(json.dumps(process))


def main(node: Path, runc: str, arguments: list[str]) -> None:
    about = json.loads(node.read_text())
    (execute if "exec" in arguments else create)(about, arguments)
    os.execv(runc, [runc, *arguments])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
