# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What all tests share."""

import os
from pathlib import Path

import pytest

# Matrices here are small: a second thread of the algebra library only gets in the way of the other test process.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of public traces and measurements."""
    folder = Path(os.environ.get("COTENANT_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"needs COTENANT_DATA: {folder} is not a folder with the public traces")
    return folder
