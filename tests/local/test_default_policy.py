# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The default policy of one machine: jobs that share start on the least loaded GPU."""

from pathlib import Path

from cotenant.cli.daemon import up
from cotenant.core.cluster import Cluster
from cotenant.core.placement.deciding import decide
from cotenant.core.placement.policies import build_policy
from cotenant.core.units import Seconds
from cotenant.local.daemon_options import Options
from cotenant.wire.job_demands import job_of
from cotenant.wire.job_requests import JobRequest
from tests.local.engines import TWO_CARDS

DEFAULT = Options(state=Path("/")).policy


def test_the_command_line_has_the_default_of_the_daemon() -> None:
    assert next(option.default for option in up.params if option.name == "policy") == DEFAULT


def test_jobs_that_name_memory_use_all_gpus_by_default() -> None:
    request = JobRequest(command=("true",), cwd="/", memory="100MiB")
    jobs = [job_of(f"j-{i}", request, float(i)) for i in range(4)]
    decision = decide(build_policy(DEFAULT), jobs, Cluster.of([TWO_CARDS]), Seconds(9.0))
    assert [placement.slot.gpus for placement in decision.placements] == [(0,), (1,), (0,), (1,)]
