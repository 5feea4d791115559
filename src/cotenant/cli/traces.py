# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant traces`: the public traces, their sources, and how they get into the data folder."""

from pathlib import Path

import click

from cotenant.cli.options import output_option
from cotenant.errors import InputError

EPILOG = """\b
Examples:
  cotenant traces list
  git clone --depth 1 https://github.com/alibaba/clusterdata
  COTENANT_DATA=~/traces cotenant traces add openb clusterdata
  COTENANT_DATA=~/traces cotenant simulate --trace openb:default
"""
LIST_EPILOG = """\b
Example:
  cotenant traces list -o wide
"""
ADD_EPILOG = """\b
Examples:
  cotenant traces add openb clusterdata
  cotenant traces add gavel gavel -o json
"""


@click.group(epilog=EPILOG)
def traces() -> None:
    """Lists the public traces that the simulator reads, and adds them to the folder that COTENANT_DATA names."""


@traces.command("list", epilog=LIST_EPILOG)
@output_option
def list_traces(output: str) -> None:
    """Lists the public traces: which the data folder has, and where the others are published."""
    from cotenant.cli.output import emit, note
    from cotenant.cli.simulate import data_folder
    from cotenant.sim.traces.public import PUBLICATIONS, present

    data = data_folder()
    rows = [
        {
            "name": one.name,
            "content": one.content,
            "traces": present(one, data),
            "present": data is not None and (data / one.folder).is_dir(),
            "licence": one.licence,
            "clone": one.clone,
        }
        for one in PUBLICATIONS.values()
    ]
    columns = (
        ("NAME", lambda row: row["name"], False),
        ("PRESENT", lambda row: "yes" if row["present"] else "no", False),
        ("CONTENT", lambda row: row["content"], False),
        ("TRACES", lambda row: ", ".join(row["traces"]) or "-", True),
        ("LICENCE", lambda row: row["licence"], True),
        ("GET IT BY", lambda row: row["clone"], False),
    )
    emit(rows, output, columns)
    if data is None:
        note("COTENANT_DATA is not set; it names the folder of public traces")


@traces.command(epilog=ADD_EPILOG)
@click.argument("name")
@click.argument("checkout", type=click.Path(path_type=Path))
@output_option
def add(name: str, checkout: Path, output: str) -> None:
    """Adds the traces of a public repository to the data folder, in the form that the simulator reads. CHECKOUT is the
    folder into which the repository was cloned. Files of the same name are replaced."""
    from cotenant.cli.output import emit
    from cotenant.cli.simulate import data_folder
    from cotenant.sim.traces.public import PUBLICATIONS
    from cotenant.sim.traces.public import add as add_files

    if name not in PUBLICATIONS:
        raise InputError(f"unknown traces {name[:40]!r}; expected one of {', '.join(PUBLICATIONS)}")
    data = data_folder()
    if data is None:
        raise InputError("COTENANT_DATA is not set; expected the folder that the traces are added to")
    if not checkout.is_dir():
        raise InputError(f"{checkout}: not a folder; expected that of `{PUBLICATIONS[name].clone}`")
    files = [{"file": path, "bytes": size} for path, size in add_files(PUBLICATIONS[name], checkout, data)]
    emit(files, output, (("FILE", lambda row: row["file"], False), ("BYTES", lambda row: f"{row['bytes']:,}", False)))
