# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a training script imports: it reports steps and learns which batch size to use. Standard library only.

Nothing here raises into training or waits for an agent: without one, every call is a cheap no-op.
"""

from cotenant.job.session import Session, connect

__all__ = ["Session", "connect"]
