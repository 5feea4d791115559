# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of kubelet's interfaces, generated from the .proto files beside; tests/kube/agent/generate.py does it."""
