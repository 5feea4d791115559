# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of pods in each dialect, as the core's Demand; and assignments, as annotations of pods and nodes.

Names of resources, annotations and variables stay in this package.
"""
