# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What would make a job fit that waits, and what would happen to a job that does not exist yet."""
