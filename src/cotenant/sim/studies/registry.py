# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The table of studies by name; `cotenant experiment` reads it."""

from collections.abc import Mapping

from cotenant.sim.studies import gavel_fifo, placement, prediction, tuning, waits
from cotenant.sim.studies.study import Study

STUDIES: Mapping[str, Study] = {
    "gavel-fifo": gavel_fifo.STUDY,
    "place": placement.STUDY,
    "place-mild": placement.MILD_STUDY,
    "place-worlds": placement.WORLD_STUDY,
    "waits": waits.STUDY,
    "predict": prediction.STUDY,
    "tune-grid": tuning.STUDY,
}
