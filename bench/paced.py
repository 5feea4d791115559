# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A job with a known amount of work that runs at the speed of a table beside its neighbours; it computes nothing.

Jobs on one GPU find each other by files in a folder that they share: `FOLDER/GPU/TASK.IDENTIFIER`. A GPU is divided by
what its tenants use alone; that is the table. This file uses only the standard library, because it runs in a container
as `python3 -c`.
"""

import os
import sys
import time
import uuid
from collections.abc import Iterable, Mapping

LOOK_S = 0.02


def speed(own: float, others: Iterable[float]) -> float:
    """Speed of a tenant, by the fractions of its time that each tenant uses the GPU alone."""
    return min(1.0, 1.0 / max(1e-9, own + sum(others)))


def main(task: str, work: float, startup: float, folder: str, busy: Mapping[str, float]) -> None:
    """Wait for `startup` seconds, then do `work` seconds of work at the speed of the table."""
    time.sleep(startup)
    place = os.path.join(folder, os.environ["NVIDIA_VISIBLE_DEVICES"])
    os.makedirs(place, exist_ok=True)
    mine = f"{task}.{uuid.uuid4().hex}"
    open(os.path.join(place, mine), "x").close()
    try:
        done, last = 0.0, time.monotonic()
        while done < work:
            others = [busy[one.split(".")[0]] for one in os.listdir(place) if one != mine]
            time.sleep(LOOK_S)
            now = time.monotonic()
            done, last = done + (now - last) * speed(busy[task], others), now
    finally:
        os.unlink(os.path.join(place, mine))


if __name__ == "__main__":
    table = dict(word.split("=") for word in sys.argv[5:])
    fractions = {name: float(fraction) for name, fraction in table.items()}
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4], fractions)
