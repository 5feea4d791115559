# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What makes a release: its version, its packages, their checksums and the list of what is in them."""
