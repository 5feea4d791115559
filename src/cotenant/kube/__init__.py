# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes engine: pods request GPUs in one of several dialects, and the core places them."""
