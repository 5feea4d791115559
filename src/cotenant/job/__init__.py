# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The library that a training script imports: it reports steps and receives batch sizes. Standard library only.

No call raises an exception into training or waits for an agent; without an agent every call is a cheap no-op.
"""

from cotenant.job.session import Session, connect

__all__ = ["Session", "connect"]
