# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a family of tasks gives to the trainer: a model, a loss, data and an optimiser."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cotenant.workloads.nn import Model, Optimiser

Arrays = Mapping[str, np.ndarray]
"""samples by name; the first axis of each array counts them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A task at one size, before it is compiled."""

    loss: Model
    predict: Model
    samples: Arrays
    """the samples that batches are drawn from"""
    optimiser: Optimiser
    rate: float
    """the learning rate at the default batch size"""
