# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The optional packages: which extra of cotenant installs each, and the command that installs an extra here."""

import sys
from collections.abc import Mapping

EXTRAS: Mapping[str, str] = {
    **dict.fromkeys(("h11", "grpc", "google", "uvloop", "httptools"), "kube"),
    **dict.fromkeys(("jax", "jaxlib"), "workloads"),
    **dict.fromkeys(("mcp", "mcp_types", "pydantic"), "mcp"),
    "pynvml": "nvidia",
}
"""module that not every installation has -> the extra that installs it"""
INSTALLERS: Mapping[str, str] = {
    "pipx": "pipx install --force 'cotenant[{extra}]'",
    "tools": "uv tool install 'cotenant[{extra}]'",
    "archive-v0": "uvx --from 'cotenant[{extra}]' cotenant",
}
"""a folder in the path of an environment that an installer made -> the command of that installer"""


def install_command(extra: str, prefix: str = sys.prefix) -> str:
    """The command that adds an extra to this installation, by the program that made its environment (`prefix`)."""
    folders = prefix.split("/")
    installer = next((command for folder, command in INSTALLERS.items() if folder in folders), None)
    return (installer or "pip install 'cotenant[{extra}]'").format(extra=extra)


def require(package: str) -> None:
    """ModuleNotFoundError if a package is not installed. Commands whose jobs need it ask before they start anything."""
    from importlib.util import find_spec

    if find_spec(package) is None:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)


def missing_package(error: ModuleNotFoundError) -> str | None:
    """One line that says how to install the package that an import lacks; None if no extra contains it."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    command = install_command(EXTRAS[package])
    return f"this command needs the package {package}, which is not installed: `{command}` installs it"
