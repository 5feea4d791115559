# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent beside the GPUs, for both live engines: devices, limits, and the socket that jobs report to."""
