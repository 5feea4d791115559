# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What pods ask for, in each dialect, as the core's Demand; and where they were put, written down on the pod.

Names of resources, annotations and variables stop here: nothing beyond this folder knows one.
"""
