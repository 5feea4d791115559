# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Templates, and the words in which they write numbers. Everything that is inserted is escaped."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cotenant.web.model import Gpu, Tenant

GIB = 1024
SPEEDS = ((0.95, "s1"), (0.85, "s2"), (0.7, "s3"), (0.0, "s4"))
"""(least speed, class in the style sheet): full speed, slightly slower, slower, much slower"""
UNKNOWN = "s0"
LONGEST_NAME = 300
"""characters of a name that a page contains; the style sheet shows fewer"""


def memory(mib: int | None) -> str:
    """`512 MiB`, `3.5 GiB`, `80 GiB`."""
    if mib is None:
        return "–"
    if mib < GIB:
        return f"{mib} MiB"
    gib = mib / GIB
    return f"{gib:.1f} GiB" if gib < 10 and mib % GIB else f"{gib:.0f} GiB"


def speed(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def speed_class(value: float | None) -> str:
    return UNKNOWN if value is None else next(name for least, name in SPEEDS if value >= least or least == 0.0)


def percent(part: float | None, whole: float = 100.0) -> str:
    return "–" if part is None or not whole else f"{100 * part / whole:.0f} %"


def share(part: float, whole: float) -> str:
    """A length in an SVG image, in percent of its width; short, because a page contains thousands of them."""
    return f"{min(100.0, max(0.0, 100 * part / whole)):.4g}%" if whole else "0%"


def shortened(text: str) -> str:
    return text if len(text) <= LONGEST_NAME else text[:LONGEST_NAME] + "…"


def moment(at: float) -> Markup:
    """A time that the script keeps writing as an age, by the clock of the server."""
    when = datetime.fromtimestamp(min(max(at, 0.0), 4e9), UTC)
    text = when.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" data-at="{}">{}</time>').format(when.isoformat(), int(at), text)


def path(text: str) -> str:
    """A name as a part of an address; slashes stay."""
    return quote(text, safe="/")


def segments(gpu: Gpu, of: str) -> list[dict[str, Any]]:
    """The parts of a GPU's bar of memory or compute: where each tenant begins, how much it has and how much it uses."""
    whole = gpu.memory_mib if of == "memory" else gpu.compute
    found, at = [], 0.0
    for one in gpu.tenants:
        held, used = _held(one, of)
        width = held or used or 0
        found.append(
            {
                "x": share(at, whole),
                "width": share(width, whole),
                "used": share(min(used or 0, width), whole),
                "tenant": one,
                "speed_class": speed_class(one.speed),
            }
        )
        at += width
    return found


def _held(tenant: Tenant, of: str) -> tuple[int, int | None]:
    if of == "memory":
        return tenant.memory_mib, tenant.used_mib
    return tenant.compute, tenant.used_compute


def promised(gpu: Gpu, of: str) -> int:
    """What the tenants of a GPU requested together."""
    return sum(_held(one, of)[0] for one in gpu.tenants)


def worst_speed(tenants: Sequence[Tenant]) -> float | None:
    return min((one.speed for one in tenants if one.speed is not None), default=None)


def filled(html: Markup, pieces: Sequence[Markup]) -> Markup:
    """The row of a node with its tiles."""
    end = Markup("</div></section>")
    return html.removesuffix(end) + Markup("").join(pieces) + end


@cache
def environment(base: str) -> Environment:
    """The templates of this package, for pages that are served under the path `base`."""
    found = Environment(
        loader=PackageLoader("cotenant.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {
        "memory": memory,
        "speed": speed,
        "speed_class": speed_class,
        "percent": percent,
        "shortened": shortened,
        "moment": moment,
        "path": path,
        "filled": filled,
    }
    found.globals |= {
        "base": base,
        "segments": segments,
        "promised": promised,
        "worst_speed": worst_speed,
        "share": share,
    }
    return found
