# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the containers of a prepared ResourceClaim get from their node: a CDI device with the library, the limits, a
usage region and the GPUs of the claim.

A claim is written down before its files are made, so an agent that was killed in between removes them when kubelet has
the claim unprepared. All steps can be repeated, also while the containers run.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cotenant.errors import CotenantError
from cotenant.kube.agent.allocating import CommonMounts, HostPlaces, ensure_slice, own_mounts, remove_slice
from cotenant.kube.agent.strict import KIND, Owned, VendorEdits, edits_for, forget_spec, spec_path, write_spec
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
NO_EDITS: Mapping[str, list[Any]] = MappingProxyType({})
_SUFFIX = ".json"


class PreparedClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim whose files were made, or may have been."""

    version: Annotated[int, Meta(ge=VERSION, le=VERSION)] = VERSION
    uid: str
    pod: str
    """UID of the pod that it was prepared for; others may share it."""
    number: int
    """Of the container of that pod for which the claim counts."""
    carries: bool = True
    """Whether it has files. If a container has several claims, the first brings everything."""
    admin: tuple[str, ...] = ()
    """GPUs that it shows to an administrator, without limits."""

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

    def prepare(
        self, claim: PreparedClaim, pod: Pod, shares: Iterable[Share], more: Mapping[str, list[Any]] = NO_EDITS
    ) -> str | None:
        """Makes the files of a claim; returns the full name of its CDI device, None if it needs none. CotenantError if
        it is impossible. `more` are further edits of its containers."""
        name, gpus = claim.slice, tuple(share.gpu for share in shares)
        try:
            self._write_down(claim)
            if not claim.carries:
                return None
            ensure_slice(self.host, name)
            limits = self.host.slices.seen / name / LIMITS_NAME
            limits.mkdir(exist_ok=True)
            limits.chmod(0o755)  # whatever the umask is: the container may run as any user
            self.write_limits(claim, pod, claim.number)
        except OSError as error:
            raise CotenantError(f"{error.filename}: a claim cannot be prepared there: {error.strerror}") from None
        edits = edits_for(self.vendor, gpus, self.host.cdi_folders) if self.strict else VendorEdits()
        own: dict[str, list[Any]] = {"env": self._variables(claim, pod), "mounts": self._mounts(name)}
        edits = edits.adding(own).adding(dict(more))
        write_spec(self.host.cdi, name, self.vendor, Owned(gpus, sure=True), edits)
        return f"{KIND}={name}"

    def prepare_for_admin(self, claim: PreparedClaim) -> str:
        """Makes the CDI device of a claim that shows GPUs to an administrator; returns its full name."""
        try:
            self._write_down(claim)
        except OSError as error:
            raise CotenantError(f"{error.filename}: a claim cannot be prepared there: {error.strerror}") from None
        edits = edits_for(self.vendor, claim.admin, self.host.cdi_folders) if self.strict else VendorEdits()
        write_spec(self.host.cdi, claim.slice, self.vendor, Owned(claim.admin, sure=True), edits)
        return f"{KIND}={claim.slice}"

    def _write_down(self, claim: PreparedClaim) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_read_only(self._path(claim.uid), msgspec.json.encode(claim).decode())

    def unprepare(self, uid: str) -> None:
        """Removes the files of a claim, if there are any; CotenantError if they cannot be removed."""
        name = slice_of_claim(uid)
        try:
            forget_spec(self.host.cdi, name)
            remove_slice(self.host, name)
            self._path(uid).unlink(missing_ok=True)
        except OSError as error:
            raise CotenantError(f"{error.filename}: cannot be removed: {error.strerror}") from None

    def slices(self) -> list[str]:
        """The slices of all claims that were prepared."""
        return [slice_of_claim(path.stem) for path in self._folder.glob(f"*{_SUFFIX}")]

    def prepared(self, report: Callable[[str], object]) -> list[PreparedClaim]:
        """All claims that were prepared. One that cannot be read, such as that of a newer agent, is reported, and its
        files stay as they are until kubelet has it unprepared, or prepared again."""
        found = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
            try:
                found.append(decode(path.read_bytes(), PreparedClaim, str(path)))
            except (CotenantError, OSError) as error:
                report(str(error))
        return found

    def is_whole(self, claim: PreparedClaim) -> bool:
        """Whether the files of a claim are there: another program may have removed them."""
        spec, region = spec_path(self.host.cdi, claim.slice), self.host.regions.seen / claim.slice
        every = [spec, region, self._limits(claim)] if claim.carries else []
        return all(path.is_file() for path in ([spec] if claim.admin else every))

    def _limits(self, claim: PreparedClaim) -> Path:
        return self.host.slices.seen / claim.slice / LIMITS_NAME / LIMITS

    def write_limits(self, claim: PreparedClaim, pod: Pod, number: int) -> None:
        """Writes the limits that the assignment of the pod says now for this container, if they have changed; OSError
        if it cannot."""
        path = self._limits(claim)
        text = pod.metadata.annotations.get(container_key(number, LIMITS), "")
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
