# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Many deep-learning jobs on shared GPUs: one placement brain for a machine, a cluster and a simulator."""

try:
    import cotenant._version as _built  # type: ignore[import-not-found, unused-ignore]

    __version__: str = _built.VERSION
except ModuleNotFoundError:  # a copy of the sources that no build has seen
    __version__ = "0.0.0"
