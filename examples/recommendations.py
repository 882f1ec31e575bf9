"""Recommendations of films, answered from a model that is trained meanwhile.

    stratagem run --ps 2 --workers 2 examples/recommendations.py [--port 8000] [--epochs 30]

Both workers train the model of `movielens.py`, and the chief publishes it five times a second. The
chief also starts this file as a web service, which follows the servers and answers each request
from one version of the model; http://127.0.0.1:8000 shows how old that is.
"""

from __future__ import annotations

import multiprocessing
import os
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from signal import SIGTERM
from threading import Thread
from typing import TYPE_CHECKING

import torch
import uvicorn
from fastapi import FastAPI, HTTPException, Query
from fastapi.responses import HTMLResponse

import stratagem
from stratagem.cluster_resolver import TFConfigClusterResolver

if TYPE_CHECKING or __package__:
    from examples import movielens
else:  # a script sees what lies beside it
    import movielens

USERS, FILMS = 944, 1683  # ids start at 1

PAGE = """<!doctype html>
<meta charset="utf-8">
<title>Recommendations</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; margin: 3rem auto; max-width: 40rem }
  svg { width: 100%; height: 8rem; background: #f4f4f6 }
  polyline { fill: none; stroke: #2457d6; stroke-width: 2 }
</style>
<h1>Recommendations</h1>
<p>Version <b id="version">none</b> of the model, published <b id="age">never</b> seconds ago.</p>
<svg viewBox="0 0 100 100" preserveAspectRatio="none"><polyline id="line"/></svg>
<p>The age of the version that answers, over the last half minute; the upper edge is one second.</p>
<p>User <input id="user" type="number" value="1" min="1" max="943">: <span id="films"></span></p>
<script>
  const ages = [], get = id => document.getElementById(id);
  setInterval(async () => {
    const answer = await (await fetch(`recommendations/${get("user").value || 1}`)).json();
    get("version").textContent = answer.version;
    get("age").textContent = answer.age_seconds.toFixed(2);
    get("films").textContent = answer.films.map(film => film.id).join(", ");
    ages.push(answer.age_seconds);
    if (ages.length > 100) ages.shift();
    const points = ages.map((age, x) => `${x},${100 * (1 - Math.min(1, age))}`);
    get("line").setAttribute("points", points.join(" "));
  }, 300);
</script>
"""


def service(servers: Sequence[str]) -> FastAPI:
    """A web service that answers from the latest version of the model.

    Args:
        servers: The addresses of the parameter servers.
    """
    app = FastAPI(title="Recommendations")
    reader = stratagem.Reader(servers)
    model = reader.module(lambda: movielens.Recommender(USERS, FILMS))
    films = torch.arange(1, FILMS)

    @app.get("/recommendations/{user}")
    def recommend(user: int, count: int = Query(10, ge=1, le=100)) -> dict[str, object]:
        """The films that a user would rate best."""
        if not 0 < user < USERS:
            raise HTTPException(404, f"users are 1 to {USERS - 1}")
        with reader.pin() as version, torch.no_grad():
            ratings = model(torch.full_like(films, user), films)
            age = reader.age
        best = ratings.topk(count)
        found = zip(films[best.indices].tolist(), best.values.tolist(), strict=True)
        return {
            "version": version,
            "age_seconds": age,
            "films": [{"id": film, "rating": rating} for film, rating in found],
        }

    @app.get("/", response_class=HTMLResponse)
    def page() -> str:
        """What shows how fresh the answers are."""
        return PAGE

    return app


def end_with_parent() -> None:
    """Ends this process when the one that has started it has ended, however that was."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os.kill(os.getpid(), SIGTERM)


def serve(servers: Sequence[str], port: int) -> None:
    """Answers requests until it is ended, or whoever has started it as a process has ended."""
    Thread(target=end_with_parent, daemon=True).start()
    uvicorn.run(service(servers), port=port, log_level="warning")


@contextmanager
def serving(servers: Sequence[str], port: int) -> Iterator[None]:
    """Has the service answer in a process of its own."""
    spawning = multiprocessing.get_context("spawn")
    process = spawning.Process(target=serve, args=(servers, port))
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def main() -> None:
    """Runs the worker that TF_CONFIG describes, or the service of some servers."""
    parser = ArgumentParser(description=main.__doc__)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--epochs", type=int, default=movielens.EPOCHS)
    parser.add_argument("--servers", nargs="+", help="only answer, from these servers")
    options = parser.parse_args()
    if options.servers:
        serve(options.servers, options.port)
        return
    resolver = TFConfigClusterResolver()
    servers = [server for server in resolver.cluster_spec().job_tasks("ps") if server]
    with nullcontext() if resolver.task_id else serving(servers, options.port):
        chosen = movielens.Options(epochs=options.epochs, publish_every=0.2)
        movielens.train(resolver, Path("runs/recommendations"), chosen)


if __name__ == "__main__":
    main()
