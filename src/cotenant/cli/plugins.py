# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Commands under the names by which kubectl finds its plugins: `kubectl inspect gpu` runs `kubectl-inspect-gpu`."""

from cotenant.cli.main import main


def inspect_gpushare() -> None:
    """`kubectl inspect gpushare`."""
    main("kube", "inspect", "gpushare")


def inspect_gpu() -> None:
    """`kubectl inspect gpu`."""
    main("kube", "inspect", "gpu")
