"""A second process with a guard of its own, which does what it is told."""

import contextlib
import traceback

from dlbf.storage import Guard
from support import guard_engines, guard_kill


def serve(name, folder, place, options, pipe):
    """Answer calls of the guard's methods until the other side hangs up."""
    with (
        guard_engines.opened(name, folder) as engine,
        Guard(engine, place, **options) as guard,
        contextlib.suppress(EOFError),
    ):
        pipe.send(None)
        while True:
            method, arguments = pipe.recv()
            try:
                if method == "number":
                    result = guard._writes.log.folder.state.file.number
                elif method == "answer":  # of the filter, up to date
                    guard.get(b"")
                    result = guard.ledger.ask(*arguments)
                else:
                    result = getattr(guard, method)
                    result = result(*arguments) if callable(result) else result
            except Exception as error:
                traceback.print_exc()
                result = error
            pipe.send(result)


class Peer:
    """Calls methods of a guard in another process."""

    def __init__(self, name, folder, place, **options):
        processes = guard_kill.context()
        self._pipe, there = processes.Pipe()
        self._process = processes.Process(target=serve, args=(name, folder, place, options, there), daemon=True)
        self._process.start()
        there.close()
        self._pipe.recv()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self._pipe.close()
        self._process.join(60)
        assert self._process.exitcode == 0

    def __call__(self, method, *arguments):
        self._pipe.send((method, arguments))
        result = self._pipe.recv()
        if isinstance(result, Exception):
            raise result
        return result
