# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The certificates of an installation: whom they convince, when they are renewed, and that trust comes before use."""

import ssl
import time
from base64 import b64encode
from pathlib import Path

import pytest

from cotenant.errors import InputError
from cotenant.kube.api.certificates import certificates_of, validity_of
from cotenant.kube.api.keys import CERTIFICATE, KEY, StoredSecret, _trusted, left, service_names, service_pair
from cotenant.kube.api.names import WEBHOOK

DAY_S = 86_400.0


def secret(pair: dict[str, str]) -> StoredSecret:
    return StoredSecret(data={name: b64encode(text.encode()).decode() for name, text in pair.items()})


@pytest.fixture(scope="module")
def pair() -> dict[str, str]:
    return service_pair(WEBHOOK, 90)


def test_a_certificate_is_good_for_the_names_of_the_service_and_trusts_itself(
    pair: dict[str, str], tmp_path: Path
) -> None:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name, text in pair.items():
        (tmp_path / name).write_text(text)
    server.load_cert_chain(tmp_path / CERTIFICATE, tmp_path / KEY)
    for name in service_names(WEBHOOK):
        shake_hands(server, ssl.create_default_context(cadata=pair[CERTIFICATE]), name)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, ssl.create_default_context(cadata=pair[CERTIFICATE]), "other.cotenant-system.svc")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A TLS handshake without a network."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, server_side=True)]
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].version() is not None


def test_the_time_that_is_left_is_a_part_of_the_validity(pair: dict[str, str]) -> None:
    begins, ends = validity_of(pair[CERTIFICATE]) or (0, 0)
    assert ends - begins == 90 * DAY_S
    assert left(secret(pair), begins) == 1
    assert left(secret(pair), begins + 60 * DAY_S) == pytest.approx(1 / 3)
    assert left(secret(pair), ends) <= 0
    assert left(secret(pair), begins - 1) == 0


def test_what_is_no_pair_has_no_time_left(pair: dict[str, str]) -> None:
    other = service_pair(WEBHOOK, 90)
    for broken in ({**pair, KEY: other[KEY]}, {**pair, KEY: ""}, {**pair, CERTIFICATE: "nonsense"}, {}):
        assert left(secret(broken), time.time()) == 0


def test_a_new_certificate_is_trusted_beside_the_old_one_until_that_expires(
    pair: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    new = service_pair(WEBHOOK, 365)[CERTIFICATE]
    both = "".join(_trusted(pair[CERTIFICATE], new))
    assert certificates_of(both) == [new, pair[CERTIFICATE]]
    assert "".join(_trusted(both, new)) == both
    later = time.time() + 91 * DAY_S
    monkeypatch.setattr(time, "time", lambda: later)
    assert _trusted(both, new) == [new]


def test_without_openssl_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "nowhere")
    with pytest.raises(InputError) as refusal:
        service_pair(WEBHOOK, 1)
    sentence = "certificates: the command openssl, which creates the certificate, was not found; install it"
    assert str(refusal.value) == sentence
