# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What runs beside the GPUs of a node, for both live engines: devices, limits, slices and the agent's sockets.

README.md maps the way of a limit from the device to the running process to these modules.
"""
