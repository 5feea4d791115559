# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How jobs slow each other down on one GPU: learned from measured pairs, predicted for all others."""

from cotenant.core.interference.catalogue import Profile, Signature
from cotenant.core.interference.predictor import ABSURD, ALONE, Measured, Predictor, PredictorState, Speed, Speeds

__all__ = ["ABSURD", "ALONE", "Measured", "Predictor", "PredictorState", "Profile", "Signature", "Speed", "Speeds"]
