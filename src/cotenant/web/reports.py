# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reports of the simulator: the folders that `cotenant simulate --out` and `cotenant experiment --out` wrote."""

from dataclasses import dataclass
from pathlib import Path

from cotenant.web.source import AbsentError

MOST_LISTED = 500
MOST_BYTES = 64 * 1024 * 1024
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".csv": "text/csv; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS = {
    "content-security-policy": "sandbox allow-scripts; default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; img-src data:"
}
"""A report contains its own styles and scripts, so it is shown as if it came from another site: it can read nothing."""


@dataclass(frozen=True, slots=True)
class Report:
    """One folder."""

    name: str
    page: str
    """the file to read first"""
    files: tuple[str, ...]
    at: float


def find(folder: Path) -> tuple[Report, ...]:
    """The folders that contain an HTML file, newest first."""
    found = []
    try:
        folders = [one for one in folder.iterdir() if one.is_dir() and not one.is_symlink()]
    except OSError:
        return ()
    for one in folders[: MOST_LISTED * 4]:
        names = sorted(file.name for file in one.iterdir() if file.suffix in TYPES and _plain(file))
        pages = [name for name in names if name.endswith(".html")]
        if pages:
            page = "report.html" if "report.html" in pages else pages[0]
            found.append(Report(one.name, page, tuple(names[:20]), (one / page).stat().st_mtime))
    return tuple(sorted(found, key=lambda report: -report.at)[:MOST_LISTED])


def read(folder: Path, name: str, file: str) -> bytes:
    """A file of a report; only names that the list contains are opened."""
    report = next((one for one in find(folder) if one.name == name), None)
    if report is None or file not in report.files:
        raise AbsentError(f"no report {name[:60]}/{file[:60]} here")
    path = folder / name / file
    if path.stat().st_size > MOST_BYTES:
        raise AbsentError(f"{file}: larger than {MOST_BYTES >> 20} MiB; open it from its folder")
    return path.read_bytes()


def type_of(file: str) -> str:
    return TYPES[Path(file).suffix]


def _plain(file: Path) -> bool:
    return file.is_file() and not file.is_symlink()
