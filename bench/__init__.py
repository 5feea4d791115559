# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks that produce every published figure; `make bench` runs all of them."""
