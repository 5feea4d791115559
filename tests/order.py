# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The order of all tests, and which of them one test process runs.

A test on a Kubernetes cluster mostly waits. So most test processes begin with such tests, one cluster after the other,
and the last one runs other tests meanwhile. All draw from the same groups, so that they end at the same time.
"""

CLUSTER = "tests/cluster/"


def _files(*names: str) -> tuple[str, ...]:
    return tuple(f"{CLUSTER}{name}" for name in names)


# A cluster ends with the last test that uses it. Few run at a time if the tests of each are neighbours in these lists.
OWN_CLUSTERS = (
    *_files("test_chaos.py", "mixed/", "test_lifecycle.py", "test_rungs.py", "test_chart.py", "test_interference.py"),
    *_files(
        "test_topology.py",
        "test_dra.py",
        "test_claim",  # all files that begin so, on one cluster
        "test_podgroups.py",
        "neighbours/",
    ),
)
"""groups with clusters of their own, the longest first"""
BARE = (
    # without a cluster, or with one in which cotenant is not installed
    *_files("test_binaries.py", "test_checker.py", "test_observing.py"),
    # the first of them on a cluster with real nodes only
    *_files("test_tutorial.py", "test_admission.py", "test_cluster.py"),
    # with that one and the one of `SHARING`
    *_files("test_outage.py"),
)
"""the group after those"""
SHARING = _files("test_preemption.py", "test_queue.py", "test_failover.py", "test_doctor.py", "test_attacks.py")
"""after that group come all other files on clusters, each a group, the long ones first: they share a cluster, of which
each process has one"""
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
    """The tests of one group run in one test process: a file, whose daemon is then started only once, or several."""
    if test.startswith(BARE):
        return f"{CLUSTER}bare"
    if own := next((name for name in OWN_CLUSTERS if test.startswith(name)), None):
        return own
    return test if test.startswith(ONE_BY_ONE) else test.partition("::")[0]


def cluster_processes(processes: int) -> int:
    """How many of these test processes run tests on clusters; others do so only if there is nothing else to do."""
    return max(2, processes - 1)


def is_on_cluster(group: str) -> bool:
    """Whether the tests of a group belong to the processes that have clusters."""
    return group.startswith(CLUSTER)


def shares_cluster(group: str) -> bool:
    """Whether its tests use the cluster of a process that further groups use, too."""
    return is_on_cluster(group) and group not in OWN_CLUSTERS


def rank_of(test: str) -> tuple[int, int]:
    """Tests run in the order of their ranks."""
    if test.startswith(CLUSTER):
        return 0, _place(test, OWN_CLUSTERS + BARE + SHARING)
    return 1, _place(test, LONG)


def _place(test: str, files: tuple[str, ...]) -> int:
    """The index of the entry that a test belongs to; the number of entries if it belongs to none."""
    return next((index for index, name in enumerate(files) if test.startswith(name)), len(files))
