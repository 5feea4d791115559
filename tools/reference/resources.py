# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The fields of the custom resource in docs/reference/workload-profile.md, made from its definition."""

from cotenant.kube.install.profiles import profile_definition
from tools.reference.marked import replaced, table
from tools.reference.schemas import fields, type_of


def page(text: str) -> str:
    """The page with its schema renewed."""
    (version,) = profile_definition()["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    rows = [
        (f"`{field.path}`", type_of(field.schema), "yes" if field.is_required else "")
        for field in fields(schema)
        if field.path.startswith(("spec", "status"))
    ]
    return replaced(text, "the definition of the custom resource", table(("Field", "Value", "Required"), rows))
