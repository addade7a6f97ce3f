"""Who runs the tasks of a build: this process, processes of this machine, or Dask.  All are asked in the same way."""

import contextlib
import importlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, TypeVar

from dlbf.errors import DlbfError
from dlbf.filters.ribbon import usable_cores

__all__ = ["Workers", "workers_on"]

T = TypeVar("T")
R = TypeVar("R")
# So often a task may take its process with it before the build gives up.
ATTEMPTS = 4


class Workers(Protocol):
    """What runs tasks."""

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        """Number of the task and its result, as they come.  A task may be run twice; its result is the same."""


class Here:
    """This process, one task after the other."""

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        """See ``Workers``."""
        for number, task in enumerate(tasks):
            yield number, function(task)


class Processes:
    """Processes of this machine; what a killed one had is done again by others."""

    def __init__(self, n_workers: int) -> None:
        self.n_workers = n_workers

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        """See ``Workers``."""
        left = dict(enumerate(tasks))
        context = multiprocessing.get_context("spawn")
        for attempt in range(ATTEMPTS):
            try:
                with ProcessPoolExecutor(min(self.n_workers, max(1, len(left))), context) as pool:
                    waiting = {pool.submit(function, task): number for number, task in left.items()}
                    for done in as_completed(waiting):
                        result = done.result()
                        del left[waiting[done]]
                        yield waiting[done], result
                return
            except BrokenProcessPool as error:
                if attempt == ATTEMPTS - 1:
                    raise DlbfError(
                        f"worker processes were killed {ATTEMPTS} times; is there enough memory? Run it again with "
                        "fewer workers: it goes on where it was"
                    ) from error


class Dask:
    """The workers of a Dask cluster; a lost one's tasks are run by others."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        """See ``Workers``."""
        futures = self.client.map(function, list(tasks), pure=False, retries=ATTEMPTS)
        numbers = {future.key: number for number, future in enumerate(futures)}
        for future in importlib.import_module("distributed").as_completed(futures):
            yield numbers[future.key], future.result()


@contextlib.contextmanager
def workers_on(on: object = "processes", n_workers: int | None = None) -> Iterator[Workers]:
    """Who is meant by ``on``, let go of afterwards.

    Parameters
    ----------
    on : str or dask.distributed.Client
        ``"processes"``, ``"dask://host:port"`` (the address of a scheduler), or a client of Dask.
    n_workers : int, optional
        Processes, by default one for every processor; 1: this process alone.
    """
    if hasattr(on, "map") and hasattr(on, "scheduler"):
        yield Dask(on)
    elif on == "processes":
        n_workers = n_workers or usable_cores()
        yield Here() if n_workers == 1 else Processes(n_workers)
    elif isinstance(on, str) and on.startswith("dask://"):
        with _client(on) as client:
            yield Dask(client)
    else:
        raise ValueError(f"expected 'processes', 'dask://host:port' or a client of Dask, found {on!r}")


def _client(address: str) -> Any:
    try:
        distributed = importlib.import_module("distributed")
    except ImportError as error:
        raise DlbfError(f"{address}: this needs Dask ({error}); install it with: pip install 'dlbf[dask]'") from error
    try:
        return distributed.Client(address.replace("dask://", "tcp://"), timeout=20)
    except OSError as error:
        raise DlbfError(f"{address}: no scheduler of Dask answers there ({error})") from error
