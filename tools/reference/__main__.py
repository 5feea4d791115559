# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.reference` renews all pages; with names of pages, only these."""

import sys
from pathlib import Path

from tools.reference.registry import PAGES

ROOT = Path(__file__).parents[2]


def main(names: list[str]) -> None:
    """Writes the pages that changed and prints their names."""
    for path, renewed in PAGES.items():
        old = (ROOT / path).read_text()
        new = renewed(old)
        if new != old and (not names or path in names):
            (ROOT / path).write_text(new)
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
