# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant doctor --on kubernetes`: compares an installation with what it should be, and says how to fix it."""
