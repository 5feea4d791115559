# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the container images: their sizes, compressed and not, and how soon cotenant answers in a container.

The images are those that the tests build from deploy/images/Containerfile. The baseline of a size is the image without
our package, that of a start is a Python interpreter that does nothing in a container of the same image.
"""

import gzip
import statistics
import tarfile
import time
from collections.abc import Iterator

from bench.harness import Figure, at_most, benchmark
from tests.cluster.images import AGENT, SCHEDULER, WORKLOADS, our_images, read_json, workloads_image
from tests.images.kit import Opened, opened

MOST_MB = {SCHEDULER: 80, AGENT: 80, WORKLOADS: 350}
"""limits of the compressed sizes: what a node pulls"""
MOST_START_S = 2.0
RUNS = 11


@benchmark("images")
def images() -> Iterator[Figure]:
    """Yields three figures for each image."""
    for name, limit in MOST_MB.items():
        short = name.removeprefix("localhost/").removesuffix(":1")
        plain, packed, rest = sizes(name)
        note = f"{plain:.0f} MB uncompressed; gzip, level 6"
        yield at_most(
            f"{short}, compressed", packed, "MB", limit=limit, baseline=f"without our package {rest:.0f}", note=note
        )
        ours, bare = starts(opened(name))
        yield at_most(
            f"{short}, container created to `cotenant --version`",
            ours,
            "s",
            limit=MOST_START_S,
            baseline=f"python3 -c pass {bare:.2f}",
            note=f"median of {RUNS}, in turns; read-only root, files in the page cache",
        )


def sizes(name: str) -> tuple[float, float, float]:
    """The size of an image in MB, its compressed size, and the compressed size without the layer of our package."""
    image = workloads_image() if name == WORKLOADS else our_images()
    plain, packed, ours = 0, 0, 0
    with tarfile.open(image.archive) as archive:
        (entry,) = [one for one in read_json(archive, "manifest.json") if one["RepoTags"] == [name]]
        for layer in entry["Layers"]:
            file = archive.extractfile(layer)
            assert file is not None
            content = file.read()
            size = len(gzip.compress(content, compresslevel=6))
            plain, packed = plain + len(content), packed + size
            if b"site-packages/cotenant/__init__.py" in content:
                ours += size
    return plain / 1e6, packed / 1e6, (packed - ours) / 1e6


def starts(image: Opened) -> tuple[float, float]:
    """The median seconds from the creation of a container to its end: with `cotenant --version`, and with nothing."""
    rounds = [
        (_seconds(image, "cotenant", "--version"), _seconds(image, "python3", "-c", "pass")) for _ in range(RUNS + 1)
    ]
    ours, bare = zip(*rounds[1:], strict=True)  # the first round fills caches
    return statistics.median(ours), statistics.median(bare)


def _seconds(image: Opened, *command: str) -> float:
    start = time.perf_counter()
    done = image.run_instead(*command)
    assert done.returncode == 0, done.stderr
    return time.perf_counter() - start
