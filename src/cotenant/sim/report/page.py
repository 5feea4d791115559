# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The HTML report: one self-contained file with the command that reproduces it."""

from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import TYPE_CHECKING

from cotenant.sim.report.charts import figures
from cotenant.sim.report.stats import by_policy
from cotenant.sim.report.summary import BOLD, VARY, summarise, varies
from cotenant.sim.results import Results

if TYPE_CHECKING:
    from jinja2 import Template


def render(results: Results) -> str:
    """Renders the report as HTML."""
    seeds = sorted({run.seed for run in results.runs})
    return template("template.html").render(
        results=results,
        policies=list(by_policy(results)),
        seeds=spans(seeds),
        several=len(seeds) > 1,
        bold=BOLD if varies(results) else f"All seeds gave the same results ({VARY}).",
        summary=summarise(results),
        unplaceable=int(max((run.summary.get("unplaceable", 0.0) for run in results.runs), default=0.0)),
        figures=figures(results),
    )


def spans(numbers: list[int]) -> str:
    """Formats sorted numbers with ranges: `1, 4–7`."""
    parts = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}–{members[-1]}")
    return ", ".join(parts)


@cache
def template(name: str) -> "Template":
    """Loads an HTML template of this package."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        loader=FunctionLoader(lambda file: files(__package__).joinpath(file).read_text("utf-8")),
    )
    return environment.get_template(name)
