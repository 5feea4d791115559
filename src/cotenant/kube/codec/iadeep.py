# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The dialect of IADeep: as gpushare, with resource names of its own and memory in GiB."""

from dataclasses import replace

from cotenant.kube.codec.gpushare import GPUSHARE

IADEEP = replace(
    GPUSHARE,
    name="iadeep",
    count="gpushare/gpu-count",
    memory="gpushare/gpu-mem",
    compute=None,
)
