# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A copy of the job library for containers whose image does not have it: the library needs nothing but Python."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import cotenant


def stage_job_library(base: Path) -> Path:
    """The folder with the package, for PYTHONPATH; it is made once for each content. Raises OSError."""
    source = Path(cotenant.__file__).parent
    files = {
        path.relative_to(source.parent): path.read_bytes()
        for path in (source / "__init__.py", *sorted((source / "job").glob("*.py")))
    }
    digest = hashlib.sha256(b"".join(str(name).encode() + content for name, content in files.items()))
    folder = base / f"job-{digest.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    base.mkdir(mode=0o755, parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=base))
    try:
        for name, content in files.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            (fresh / name).write_bytes(content)
        for path in (fresh, *fresh.rglob("*")):  # whatever the umask is: the container may run as any user
            path.chmod(0o755 if path.is_dir() else 0o644)
        os.rename(fresh, folder)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not folder.is_dir():  # another process may have made the same folder meanwhile
            raise
    return folder
