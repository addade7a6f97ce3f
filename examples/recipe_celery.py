"""Celery: each job once, whichever worker process of a machine gets its message, and how often it comes.

``python examples/recipe_celery.py`` tries it in one process; needs ``pip install celery``.
"""

import tempfile
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

from celery import Celery

from dlbf.storage import Store


class Once:
    """Jobs that were done; a store on a local disk that the workers of a machine share.

    A new job is known to be new from memory; one that was done costs one read.  Nothing is ever taken for done that
    was not.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """Opened in the process that uses it: a store does not survive the fork of Celery's pool."""
        if self._store is None:
            self._store = Store(self.path)
        return self._store

    def __call__(self, job: Callable[..., Any]) -> Callable[..., Any]:
        """Let a function run once for each first argument; one that fails may run again."""

        @wraps(job)
        def run(name: str, *arguments: Any) -> Any:
            if not self._claim(name):
                return None
            try:
                return job(name, *arguments)
            except BaseException:
                self.store.delete(name)  # so that a retry is not taken for a duplicate
                raise

        return run

    def _claim(self, name: str) -> bool:
        if name in self.store:
            return False
        with self.store.write() as txn:  # of two workers at the same moment one is first
            if name in txn:
                return False
            txn.put(name, b"%d" % time.time())
        return True

    def forget_before(self, moment: float) -> int:
        """Once a day: forget old jobs, and the filter forgets them, too."""
        old = [key for key, value in self.store.items() if int(value) < moment]
        with self.store.write() as txn:
            return sum(txn.delete(key) for key in old)


def main() -> None:
    """Send messages twice and three times."""
    with tempfile.TemporaryDirectory() as folder:
        app = Celery("jobs", broker="memory://", backend="cache+memory://")
        app.conf.update(task_always_eager=True, task_eager_propagates=True)
        once = Once(f"{folder}/done")
        mails: list[str] = []

        @app.task
        @once
        def welcome(address: str, fails: bool = False) -> None:
            if fails:
                raise ConnectionError("no mail server")
            mails.append(address)

        for address in ("ada", "grace", "ada", "ada", "grace"):
            welcome.delay(address)
        try:
            welcome.delay("linus", True)
        except ConnectionError:
            welcome.delay("linus")
        assert mails == ["ada", "grace", "linus"]
        assert once.forget_before(time.time() + 1) == 3
        welcome.delay("ada")
        print(f"7 messages and one after all was forgotten: {len(mails)} mails")
        once.store.close()


if __name__ == "__main__":
    main()
