# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The order of all tests, and which of them one test process runs.

A test on a Kubernetes cluster mostly waits. So two test processes begin with a chain of such tests each, one cluster
after the other, and further processes run other tests meanwhile.
"""

CLUSTER = "tests/cluster/"


def _files(*names: str) -> tuple[str, ...]:
    return tuple(f"{CLUSTER}{name}" for name in names)


# A cluster ends with the last test that uses it. Few run at a time if the tests of each are neighbours in these lists.
FIRST_CHAIN = (
    # without a cluster, or with one in which cotenant is not installed
    *_files("test_binaries.py", "test_checker.py", "test_observing.py"),
    # the first of them on a cluster with real nodes only
    *_files("test_tutorial.py", "test_admission.py", "test_cluster.py"),
    # with that one and another one, which those use that no list names
    *_files("test_outage.py"),
)
"""which tests begin the first chain, which has all tests on clusters that are not in the second"""
SECOND_CHAIN = (
    # with clusters of their own
    *_files("mixed/", "test_chaos.py", "test_rungs.py", "test_interference.py", "test_topology.py"),
    *_files("test_lifecycle.py"),
    # with one that they share
    *_files("test_failover.py", "test_gangs.py", "test_preemption.py", "test_queue.py"),
)
"""the second chain, which takes as long as the first"""
ONE_BY_ONE = ("tests/docs/test_recipes.py", "tests/native/test_sanitizers.py", "tests/sim/test_published.py")
"""files with long tests that share no fixture"""
LONG = (
    *ONE_BY_ONE,
    "tests/cli/test_demo.py",
    "tests/cli/test_simulate.py",
    "tests/kube/test_fuzz.py",
    "tests/workloads",
)
"""what takes long; it begins before all others, so that all test processes end at the same time"""


def group_of(test: str) -> str:
    """The tests of one group run in one test process: a chain, or a file, whose daemon is then started only once."""
    if test.startswith(SECOND_CHAIN):
        return "second chain"
    if test.startswith(CLUSTER):
        return "first chain"
    return test if test.startswith(ONE_BY_ONE) else test.partition("::")[0]


def rank_of(test: str) -> tuple[int, int]:
    """Tests run in the order of their ranks."""
    match group_of(test):
        case "first chain":
            return 0, _place(test, FIRST_CHAIN)
        case "second chain":
            return 1, _place(test, SECOND_CHAIN)
        case _:
            return 2, _place(test, LONG)


def _place(test: str, files: tuple[str, ...]) -> int:
    """The index of the entry that a test belongs to; the number of entries if it belongs to none."""
    return next((index for index, name in enumerate(files) if test.startswith(name)), len(files))
