# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The simulator: replays traces in simulated time with the policies of the core, and writes reports. README.md is the
map."""
