# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The third engine: Kubernetes. Pods ask in one of several dialects; the same core places them."""
