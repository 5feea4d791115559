# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods of model servers and jobs: checked names, literal words, and the container that all of them have."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cotenant.errors import InputError
from cotenant.kube.api.names import Json
from cotenant.wire.text import printable

MAIN = "main"
"""Name of the container."""
MOST_WORDS, MOST_CHARACTERS = 1000, 100_000
"""Of a command and of the variables together: the API server stores objects of about 1.5 MB."""

_NAME = re.compile(r"[a-z](?:[-a-z0-9]{0,48}[a-z0-9])?", re.ASCII)
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,499}", re.ASCII)
_CLAIM = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}", re.ASCII)


class Volume(NamedTuple):
    """A PersistentVolumeClaim, and the folder at which a container reads it."""

    claim: str
    path: str
    writable: bool = False


def check_name(name: str) -> str:
    """Return the name; InputError if a Deployment, a Service and a Job could not all have it."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"--name {printable(name[:60])}: expected up to 50 lowercase letters, digits and dashes, "
            "beginning with a letter and not ending with a dash"
        )
    return name


def check_namespace(name: str) -> str:
    """Return the namespace; InputError if it cannot be one."""
    if not _NAMESPACE.fullmatch(name):
        raise InputError(f"--namespace {printable(name[:60])}: expected up to 63 lowercase letters, digits and dashes")
    return name


def check_image(image: str) -> str:
    """Return the image; InputError if it cannot be one."""
    if not _IMAGE.fullmatch(image):
        raise InputError(f"--image {printable(image[:60])}: expected the name of an image, such as team/model:1")
    return image


def parse_volume(text: str) -> Volume:
    """Parse `CLAIM:/folder`; InputError if it has another form."""
    claim, colon, path = text.partition(":")
    if not colon or not _CLAIM.fullmatch(claim) or not is_path(path):
        raise InputError(f"--volume {printable(text[:80])}: expected CLAIM:/folder, such as models:/models")
    return Volume(claim, path)


def check_claim(claim: str) -> str:
    """Return the name of a PersistentVolumeClaim; InputError if it cannot be one."""
    if not _CLAIM.fullmatch(claim):
        raise InputError(
            f"--volume {printable(claim[:60])}: expected the name of a PersistentVolumeClaim, such as datasets"
        )
    return claim


def parse_variable(text: str) -> tuple[str, str]:
    """Parse `NAME=VALUE`; InputError if it has another form."""
    name, equals, value = text.partition("=")
    if not equals or not _VARIABLE.fullmatch(name):
        raise InputError(f"--env {printable(text[:60])}: expected NAME=VALUE")
    return name, value


def is_path(text: str) -> bool:
    """Return whether this is an absolute path that Kubernetes accepts as a mount point."""
    return text.startswith("/") and len(text) <= 1000 and text.isprintable() and ":" not in text


def literal(word: str) -> str:
    """Return a word of a command so that kubelet leaves it unchanged: it would replace `$(NAME)` by a variable."""
    return word.replace("$", "$$")


def container(
    image: str,
    command: Sequence[str],
    limits: Mapping[str, int],
    variables: Mapping[str, str],
    volumes: Sequence[Volume] = (),
) -> Json:
    """Return the container; its limits are GPU resources."""
    words = [*command, *variables.values()]
    if len(words) > MOST_WORDS or sum(map(len, words)) > MOST_CHARACTERS:
        raise InputError(
            f"the command and the variables have {len(words):,} words and {sum(map(len, words)):,} characters, "
            f"expected at most {MOST_WORDS:,} and {MOST_CHARACTERS:,}; put them into a file of the image"
        )
    made: Json = {
        "name": MAIN,
        "image": image,
        "resources": {"limits": dict(limits)},
        "securityContext": {"allowPrivilegeEscalation": False, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if command:
        made["command"] = [literal(word) for word in command]
    if variables:
        made["env"] = [{"name": name, "value": literal(value)} for name, value in variables.items()]
    if volumes:
        made["volumeMounts"] = [
            {"name": f"volume-{number}", "mountPath": one.path, "readOnly": not one.writable}
            for number, one in enumerate(volumes)
        ]
    return made


def pod_spec(one: Json, volumes: Sequence[Volume] = ()) -> Json:
    """Return the spec of a pod with one container. It gets no token: neither servers nor jobs need the API server."""
    spec: Json = {"containers": [one], "automountServiceAccountToken": False, "enableServiceLinks": False}
    if volumes:
        spec["volumes"] = [
            {
                "name": f"volume-{number}",
                "persistentVolumeClaim": {"claimName": volume.claim, "readOnly": not volume.writable},
            }
            for number, volume in enumerate(volumes)
        ]
    return spec
