# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the containers of a prepared ResourceClaim get from their node: a CDI device with the library, the limits, a
usage region and the GPUs of the claim.

A claim is written down before its files are made, so an agent that was killed in between removes them when kubelet has
the claim unprepared. All steps can be repeated, also while the containers run.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cotenant.errors import CotenantError
from cotenant.kube.agent.allocating import CommonMounts, HostPlaces, ensure_slice, own_mounts, remove_slice
from cotenant.kube.agent.strict import KIND, Owned, VendorEdits, edits_for, forget_spec, write_spec
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.assignment import Share
from cotenant.kube.codec.keys import container_key
from cotenant.kube.codec.paths import AGENT_SOCKET, LIMITS, LIMITS_FOLDER
from cotenant.node.devices.vendors import Vendor
from cotenant.node.limits import write_read_only
from cotenant.wire.codec import decode

VERSION = 1
FOLDER = "claims"
"""Of the records of prepared claims."""
LIMITS_NAME = "limits"
"""The folder of a slice with the limits of a claim. It is mounted as a whole, so that the file can be replaced."""
_SUFFIX = ".json"


class PreparedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim whose files were made, or may have been."""

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)] = VERSION
    uid: str
    pod: str
    """UID."""
    number: int
    """Of the container for which the claim counts."""

    @property
    def slice(self) -> str:
        """The name of its slice, and of its CDI device."""
        return slice_of_claim(self.uid)


def slice_of_claim(uid: str) -> str:
    """The name of the slice of a claim."""
    return hashlib.sha256(f"claim {uid}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class ClaimFiles:
    """The files of all claims of a node."""

    host: HostPlaces
    vendor: Vendor
    common: CommonMounts
    strict: bool
    """Whether GPUs are passed on by the vendor's CDI devices."""

    @property
    def _folder(self) -> Path:
        return self.host.lasting.seen / FOLDER

    def prepare(self, claim: PreparedClaim, pod: Pod, shares: Iterable[Share]) -> str:
        """Makes the files of a claim; returns the full name of its CDI device. CotenantError if it is impossible."""
        name, gpus = claim.slice, tuple(share.gpu for share in shares)
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_read_only(self._path(claim.uid), msgspec.json.encode(claim).decode())
            ensure_slice(self.host, name)
            limits = self.host.slices.seen / name / LIMITS_NAME
            limits.mkdir(exist_ok=True)
            limits.chmod(0o755)  # whatever the umask is: the container may run as any user
            self.write_limits(claim, pod)
        except OSError as error:
            raise CotenantError(f"{error.filename}: a claim cannot be prepared there: {error.strerror}") from None
        edits = edits_for(self.vendor, gpus, self.host.cdi_folders) if self.strict else VendorEdits()
        own: dict[str, list[Any]] = {"env": self._variables(claim, pod), "mounts": self._mounts(name)}
        write_spec(self.host.cdi, name, self.vendor, Owned(gpus, sure=True), edits.adding(own))
        return f"{KIND}={name}"

    def unprepare(self, uid: str) -> None:
        """Removes the files of a claim, if there are any; CotenantError if they cannot be removed."""
        name = slice_of_claim(uid)
        try:
            forget_spec(self.host.cdi, name)
            remove_slice(self.host, name)
            self._path(uid).unlink(missing_ok=True)
        except OSError as error:
            raise CotenantError(f"{error.filename}: cannot be removed: {error.strerror}") from None

    def prepared(self) -> list[PreparedClaim]:
        """All claims that were prepared; CotenantError if one cannot be read."""
        return [decode(path.read_bytes(), PreparedClaim, str(path)) for path in self._folder.glob(f"*{_SUFFIX}")]

    def write_limits(self, claim: PreparedClaim, pod: Pod) -> None:
        """Writes the limits that the assignment of the pod says now, if they have changed; OSError if it cannot."""
        path = self.host.slices.seen / claim.slice / LIMITS_NAME / LIMITS
        text = pod.metadata.annotations.get(container_key(claim.number, LIMITS), "")
        if not path.is_file() or path.read_text() != text:
            write_read_only(path, text)

    def _path(self, uid: str) -> Path:
        if not uid or not uid.replace("-", "").isalnum():
            raise CotenantError(f"claim {uid[:80]!r}: not a UID")
        return self._folder / f"{uid}{_SUFFIX}"

    def _variables(self, claim: PreparedClaim, pod: Pod) -> list[str]:
        prefix, of_pod = container_key(claim.number, ""), pod.metadata.annotations.items()
        own = {key.removeprefix(prefix): text for key, text in of_pod if key.startswith(prefix)}
        own |= {"COTENANT_AGENT": str(AGENT_SOCKET)}
        return [f"{name}={text}" for name, text in sorted(own.items()) if name != LIMITS]

    def _mounts(self, name: str) -> list[dict[str, object]]:
        limits = str((self.host.slices / name / LIMITS_NAME).host)
        all_mounts = (*self.common, *own_mounts(self.host, name))
        mounts = [(one.container_path, one.host_path, one.read_only) for one in all_mounts]
        return [
            {
                "containerPath": inside,
                "hostPath": outside,
                "options": ["bind", "ro" if read_only else "rw", "nosuid", "nodev"],
            }
            for inside, outside, read_only in (*mounts, (str(LIMITS_FOLDER), limits, True))
        ]
