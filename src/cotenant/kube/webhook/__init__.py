# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The admission webhook: prepares pods with GPUs at their creation, and refuses invalid ones with a message."""
