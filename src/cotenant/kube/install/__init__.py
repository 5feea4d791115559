# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a cluster needs to run this engine, as the objects that `kubectl apply` takes: `manifests.manifests`."""
