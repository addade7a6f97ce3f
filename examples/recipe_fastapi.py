"""FastAPI before Redis: a name that nobody has is answered from memory, without a round trip.

Run with ``python examples/recipe_fastapi.py [port]`` beside a Redis or Valkey server; needs
``pip install fastapi httpx redis``.  In a service: ``uvicorn --factory yourmodule:make_app``.
"""

import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import redis
from fastapi import Body, FastAPI, HTTPException, Response

from dlbf.storage import Guard
from dlbf.storage.engines import RedisEngine


def make_app(client: redis.Redis, folder: str) -> FastAPI:
    """An application whose records are on the server, and whose filter is in ``folder`` on this machine's disk.

    Every worker process opens the same folder.  Endpoints are plain functions, which FastAPI runs in threads: a guard
    serves any number of them.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with Guard(RedisEngine(client, prefix=b"user:"), folder) as app.state.users:
            yield

    app = FastAPI(lifespan=lifespan)

    @app.get("/users/{name}")
    def read(name: str) -> Response:
        record = app.state.users.get(name)
        if record is None:  # most often without asking the server
            raise HTTPException(404)
        return Response(record, media_type="application/octet-stream")

    @app.put("/users/{name}", status_code=204)
    def write(name: str, record: Annotated[bytes, Body()], seconds: float | None = None) -> None:
        app.state.users.put(name, record, ttl=seconds)

    @app.delete("/users/{name}", status_code=204)
    def forget(name: str) -> None:
        if not app.state.users.delete(name):
            raise HTTPException(404)

    return app


def main() -> None:
    """Ask for absent users and count the commands that reach the server."""
    from fastapi.testclient import TestClient

    with (
        redis.Redis(port=int(sys.argv[1]) if len(sys.argv) > 1 else 6379) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        with TestClient(make_app(server, folder)) as http:
            assert http.put("/users/ada", content=b"1815").status_code == 204
            assert http.get("/users/ada").content == b"1815"
            before = server.info("stats")["total_commands_processed"]
            assert all(http.get(f"/users/guest{i}").status_code == 404 for i in range(200))
            asked = server.info("stats")["total_commands_processed"] - before - 1
            assert http.delete("/users/ada").status_code == 204
            assert http.get("/users/ada").status_code == 404
        RedisEngine(server, prefix=b"user:").release()  # the folder goes; the next run has another
        print(f"200 absent users: {asked} commands reached the server")


if __name__ == "__main__":
    main()
