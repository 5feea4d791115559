# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How jobs slow each other down on one GPU: learned from measured pairs, predicted for all others."""

from cotenant.core.interference.catalogue import Profile, Signature, typical
from cotenant.core.interference.observations import FASTEST, MOST_ROWS
from cotenant.core.interference.predictor import ALONE, Measured, Predictor, PredictorState, Speed, Speeds

__all__ = ["ALONE", "FASTEST", "MOST_ROWS", "Measured", "Predictor", "PredictorState", "Profile", "Signature"]
__all__ += ["Speed", "Speeds", "typical"]
