# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant token` makes, lists and revokes tokens."""

from cotenant.local.owners import own_account
from tests.cli.command import environment, run
from tests.local.daemon import Daemon


def said(daemon: Daemon, *words: str) -> str:
    done = run("token", *words, env=environment(COTENANT_STATE=str(daemon.state)))
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_token_is_made_listed_and_revoked(daemon: Daemon) -> None:
    user = own_account().owner.user
    made = said(daemon, "create", "--label", "laptop").strip()
    token_id = made.split("_")[1]
    listed = said(daemon, "list")
    assert [word in listed for word in (token_id, user, "laptop", made)] == [True, True, True, False]
    assert said(daemon, "revoke", token_id) == f"the token {token_id} of {user} is not valid any more\n"
    assert said(daemon, "list", "-o", "json") == "[]\n"
