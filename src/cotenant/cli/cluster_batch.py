# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant generate --on kubernetes`: the jobs of a plan as Jobs of a cluster."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cotenant.cli.cluster import Connected, connected
from cotenant.cli.cluster_jobs import Where
from cotenant.cli.generate import Submitting, life_of
from cotenant.errors import InputError
from cotenant.workloads.driving import Life
from cotenant.workloads.generator import PlannedJob

if TYPE_CHECKING:
    from cotenant.kube.deploy.batches import BatchOptions
    from cotenant.wire.job_views import JobView


class ClusterSubmitter:
    """Submits planned jobs to a cluster and tracks their states."""

    def __init__(self, cluster: Connected, options: "BatchOptions") -> None:
        from cotenant.kube.deploy.batches import Batch

        assert options.run is not None
        self.batch = Batch(cluster.client, cluster.namespace, options.run)
        self._cluster, self._options = cluster, options
        cluster.start(*self.batch.followers())

    @property
    def listing(self) -> str:
        """The command that lists the jobs."""
        return f"cotenant jobs --on kubernetes -n {self._cluster.namespace}"

    @property
    def views(self) -> "Mapping[str, JobView]":
        """Job name -> its last known state, for every submitted job."""
        return self.batch.views

    def submit(self, planned: PlannedJob) -> Life:
        from cotenant.kube.deploy.batches import request_of
        from cotenant.kube.deploy.training import job_object

        return life_of(self._cluster.do(self.batch.create(job_object(request_of(planned, self._options)))))

    def poll(self, jobs: Sequence[str]) -> Mapping[str, Life]:
        """Returns the jobs that have changed."""
        waiting = set(jobs)
        return {view.id: life_of(view) for view in self.batch.changed() if view.id in waiting}

    def cancel(self) -> None:
        """Cancels the jobs that have not ended."""
        from cotenant.kube.deploy.batches import cancel

        self._cluster.do(cancel(self._cluster.client, self._cluster.namespace, list(self.views)))


@contextmanager
def on_cluster(where: Where, options: "BatchOptions") -> Iterator[tuple[Submitting, Callable[[float], None]]]:
    """A submitter for the chosen cluster, and the function with which its caller waits."""
    from cotenant.kube.deploy.preflight import check_volume

    with connected(*where) as cluster:
        if options.claim is not None:
            cluster.do(check_volume(cluster.client, cluster.namespace, options.claim))
        yield ClusterSubmitter(cluster, options), cluster.sleep


def batch_options(
    image: str | None, policy: str | None, compute: bool, volume: str | None, **more: bool
) -> "BatchOptions":
    """What all jobs have in common, with a new name for the run; InputError if an option is not valid."""
    from cotenant.kube.codec.policy import check_policy
    from cotenant.kube.deploy.batches import BatchOptions
    from cotenant.kube.deploy.pods import check_claim, check_image

    if image is None:
        raise InputError("--image is missing; name an image with cotenant[workloads], in which the tasks run")
    if policy is not None:
        check_policy(policy)
    return BatchOptions(
        run=secrets.token_hex(3),
        image=check_image(image),
        policy=policy,
        compute=compute,
        claim=None if volume is None else check_claim(volume),
        **more,
    )
