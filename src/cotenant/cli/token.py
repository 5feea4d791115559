# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant token`: tokens by which a daemon knows its users over TCP."""

import click
import msgspec

from cotenant.cli.options import output_option
from cotenant.cli.output import emit
from cotenant.client.client import Client
from cotenant.client.http import at
from cotenant.wire.text import ago
from cotenant.wire.tokens import NewToken, TokenRequest, TokenView

COLUMNS = (
    ("ID", lambda token: token.id, False),
    ("USER", lambda token: token.user, False),
    ("AGE", lambda token: ago(token.created), False),
    ("LABEL", lambda token: token.label, False),
)


@click.group(epilog="\b\nExample:\n  cotenant token create --label laptop\n")
def token() -> None:
    """Makes, lists and revokes tokens, by which the daemon knows a user over TCP."""


@token.command(epilog="\b\nExample:\n  cotenant token create --label laptop\n")
@click.option("--label", default="", help="What the token is for.")
@click.option("--user", metavar="NAME", help="Make a token of another user; only for root.")
@output_option
def create(label: str, user: str | None, output: str) -> None:
    """Prints a new token, once: the daemon stores only its digest. It has the rights of its user."""
    made = Client().post("/v1/tokens", NewToken, msgspec.json.encode(TokenRequest(user=user, label=label)))
    if output == "table":
        click.echo(made.token)
    else:
        emit(made, output, COLUMNS)


@token.command("list", epilog="\b\nExample:\n  cotenant token list -o json\n")
@output_option
def list_tokens(output: str) -> None:
    """Lists your tokens, without their secrets; for administrators, those of all users."""
    emit(Client().get("/v1/tokens", list[TokenView]), output, COLUMNS, "no tokens")


@token.command(epilog="\b\nExample:\n  cotenant token revoke 0a1b2c3d4e5f\n")
@click.argument("token_id", metavar="ID")
def revoke(token_id: str) -> None:
    """Makes a token invalid at once."""
    done = Client().post(f"/v1/tokens/{at(token_id)}/revoke", TokenView)
    click.echo(f"the token {done.id} of {done.user} is not valid any more")
