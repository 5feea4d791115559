# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Sends one notice by mail or to a web hook, with the rights of the owner of the job.

The supervisor loads this file before it gives up its rights, because the user may not be able to read the interpreter,
and calls `main` afterwards. So all that it needs is imported here, from the standard library only. The notice is in the
variable `COTENANT_NOTICE`: the URL of a web hook is often a secret, and command lines can be read by all users.
"""

import encodings.idna  # noqa: F401 - loaded by urllib when it is needed, which may be too late
import http.client
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

VARIABLE = "COTENANT_NOTICE"
PAUSES_S = (1.0, 4.0, 10.0)
"""after an attempt that failed, before the next one"""
ATTEMPT_S = 10.0
SHOWN_BYTES = 200
"""of an answer that refuses a notice"""


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: a notice goes to the URL that the user chose, or nowhere."""

    def redirect_request(self, *_: object) -> None:
        return None


def main() -> int:
    """The exit code: 0 if the notice was sent."""
    notice = json.loads(os.environ[VARIABLE])
    try:
        return _mail(notice) if notice["way"] == "mail" else _post(notice)
    except (OSError, ValueError, ImportError, http.client.HTTPException) as error:
        print(f"cannot be sent: {error}")
        return 1
    finally:
        sys.stdout.flush()


def _mail(notice: dict[str, Any]) -> int:
    program = notice["sendmail"]
    if program is None:
        print("this machine has no sendmail: install a mail transfer agent, or use a web hook")
        return 1
    done = subprocess.run([program, "-i", "--", notice["target"]], input=notice["mail"].encode(), check=False)
    print(f"{program} exited with code {done.returncode}")
    return 0 if done.returncode == 0 else 1


def _post(notice: dict[str, Any]) -> int:
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "cotenant",
        "Idempotency-Key": notice["id"],  # a receiver can recognise a notice that arrives twice
    }
    body = json.dumps(notice["job"]).encode()
    opener = urllib.request.build_opener(NoRedirects)
    for pause in (*PAUSES_S, None):
        request = urllib.request.Request(notice["target"], body, headers)
        try:
            with opener.open(request, timeout=ATTEMPT_S) as answer:
                print(f"answered with HTTP status {answer.status}")
                return 0
        except urllib.error.HTTPError as error:
            text = error.read(SHOWN_BYTES).decode(errors="replace")
            print(" ".join(f"answered with HTTP status {error.code}: {text}".split()))
            if error.code < 500 and error.code not in (408, 429):
                return 1
        except (OSError, http.client.HTTPException) as error:
            print(f"does not answer: {error}")
            if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
                return 1
        if pause is not None:
            sys.stdout.flush()
            time.sleep(pause)
    return 1
