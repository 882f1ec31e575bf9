"""The command `stratagem dashboard`.

Exit codes: 0 after Ctrl-C or SIGTERM, and 2 when there was nobody to ask, or no page to be had.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from stratagem_deploy.watching.looks import (
    Cluster,
    Interval,
    Patience,
    Run,
    Servers,
    Timeout,
    TokenFile,
    found_cluster,
    look_at,
    nobody_to_ask,
)

Bind = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where the page is; port 0 takes a free one.")
]
Tls = Annotated[
    Path | None,
    typer.Option(help="Folder with the certificate of the page: tls.crt, tls.key and ca.crt."),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Let other machines read the page unencrypted.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the addresses as a line of JSON.")]


def dashboard(  # noqa: PLR0913  # one parameter for each option
    servers: Servers = None,
    cluster: Cluster = None,
    token_file: TokenFile = None,
    run: Run = None,
    bind: Bind = "127.0.0.1:0",
    tls: Tls = None,
    insecure: Insecure = False,
    interval: Interval = 2.0,
    patience: Patience = 2.0,
    as_json: AsJson = False,
    timeout: Timeout = 5.0,
) -> None:
    """Serve a live page about a cluster until Ctrl-C.

    Servers are found as by `stratagem status`. The command prints an address that signs a browser
    in; whoever has it can read the page, and nobody can change anything there. The page shows what
    `status`, `top` and `doctor` say, and how it has changed in the last hour that this command ran.

    Exit code: 0 after Ctrl-C or SIGTERM, and 2 if there was nobody to ask, or if the page cannot be
    served.
    """
    from stratagem_deploy.dashboard.pages import PageServer
    from stratagem_deploy.dashboard.watcher import Watched, Watcher
    from stratagem_rpc.serving.command_line import asked_to_stop

    found = found_cluster(servers, cluster, run)
    look = look_at(found, token_file, timeout)
    closely = look_at(found, token_file, timeout, with_variables=True)
    watcher = Watcher(Watched(look, closely, found.heading, interval, patience))
    with nobody_to_ask():
        page = PageServer(watcher, bind, tls, insecure)
    with asked_to_stop() as (asked, _):
        watcher.start()
        if as_json:
            typer.echo(json.dumps({"url": page.url, "address": page.address}))
        else:
            typer.echo(f"The dashboard is at {page.url}")
        asked.recv(1)
    page.stop()
