# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A job as `cotenant show` draws it."""

from cotenant.cli.jobs import describe
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView

REQUEST = JobRequest(
    command=("python", "my train.py"), cwd="/", env={"PATH": "/bin"}, memory="4GiB", batch_range=(8, 64)
)
TUNED = JobView(
    id="j-000001",
    name="tuned",
    state="running",
    submitted=1_700_000_000.0,
    gpus=(0, 1),
    speed=0.834,
    memory_used_mib=120,
    enforcement=("memory: 4096 MiB", "compute: not limited"),
    request=REQUEST,
    tuning=(
        {"at": 12.5, "kind": "default", "sizes": {"j-000001": 32}, "predicted": None, "measured": {"j-000001": 410.25}},
        {"at": 14.0, "kind": "choice", "sizes": {"j-000001": 64}, "predicted": {"j-000001": 1500.4}, "note": "better"},
    ),
)


def test_what_tuning_tried_is_a_table_with_predicted_and_measured_goodput() -> None:
    assert describe(TUNED, wide=False).split("tuning:\n")[1].splitlines() == [
        "  AT    KIND     SIZES        MEASURED        PREDICTED      NOTE",
        "  12.5  default  j-000001=32  j-000001=410.2",
        "  14    choice   j-000001=64                  j-000001=1500  better",
    ]


def test_each_value_is_said_as_people_say_it() -> None:
    lines = [" ".join(line.split()) for line in describe(TUNED, wide=False).splitlines()]
    assert {"gpus 0 1", "speed 83% of its speed alone", "memory used 120 MiB", "batch range 8-64"} <= set(lines)
    assert "command python 'my train.py'" in lines
    assert lines[lines.index("enforcement memory: 4096 MiB") + 1] == "compute: not limited"


def test_the_environment_is_shown_only_where_there_is_room() -> None:
    assert "PATH" not in describe(TUNED, wide=False)
    assert "PATH=/bin" in describe(TUNED, wide=True)
