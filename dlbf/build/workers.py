"""Who runs the tasks of a build: this process, processes of this machine, Dask, Ray or Spark; all in the same way.

Functions and tasks are pickled, and what they return is small.  Whoever loses a worker runs its tasks again.
"""

import contextlib
import importlib
import multiprocessing
import pickle
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


class Ray:
    """The workers of a Ray cluster; a lost one's tasks are run by others."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        """See ``Workers``."""
        remote = self.ray.remote(max_retries=ATTEMPTS)(function)
        waiting = {remote.remote(task): number for number, task in enumerate(tasks)}
        while waiting:
            done, _ = self.ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(done[0]), self.ray.get(done[0])


class Spark:
    """The executors of a Spark cluster, by ``mapInArrow``: a task is a row, and a partition."""

    # Tasks of one job, for each that can run at a time: between jobs it is noted what is done.
    TASKS_OF_A_CORE = 4

    def __init__(self, session: Any) -> None:
        self.session = session

    def run(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[tuple[int, R]]:
        """See ``Workers``."""
        at_once = self.TASKS_OF_A_CORE * max(1, self.session.sparkContext.defaultParallelism)
        rows = [(number, bytearray(pickle.dumps((function, task)))) for number, task in enumerate(tasks)]
        for first in range(0, len(rows), at_once):
            some = rows[first : first + at_once]
            spread = self.session.sparkContext.parallelize(some, len(some))
            frame = self.session.createDataFrame(spread, "number long, task binary")
            for number, result in frame.mapInArrow(_run_rows, "number long, result binary").collect():
                yield number, pickle.loads(bytes(result))


def _run_rows(batches: Iterator[Any]) -> Iterator[Any]:
    """What ``Spark`` has executors do."""
    arrow = importlib.import_module("pyarrow")
    for batch in batches:
        for number, pickled in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            function, task = pickle.loads(pickled)
            columns = [arrow.array([number], arrow.int64()), arrow.array([pickle.dumps(function(task))], arrow.binary())]
            yield arrow.RecordBatch.from_arrays(columns, names=["number", "result"])


@contextlib.contextmanager
def workers_on(on: object = "processes", n_workers: int | None = None) -> Iterator[Workers]:
    """Who is meant by ``on``, let go of afterwards.

    Parameters
    ----------
    on : str, dask.distributed.Client or pyspark.sql.SparkSession
        ``"processes"``, ``"dask://host:port"`` (the address of a scheduler), ``"ray"``, ``"ray://host:port"``,
        ``"spark"``, or a client of Dask or session of Spark.
    n_workers : int, optional
        Processes, by default one for every processor; 1: this process alone.
    """
    if hasattr(on, "map") and hasattr(on, "scheduler"):
        yield Dask(on)
    elif hasattr(on, "createDataFrame") and hasattr(on, "sparkContext"):
        yield Spark(on)
    elif on == "processes":
        n_workers = n_workers or usable_cores()
        yield Here() if n_workers == 1 else Processes(n_workers)
    elif isinstance(on, str) and on.startswith("dask://"):
        with _client(on) as client:
            yield Dask(client)
    elif on == "ray" or (isinstance(on, str) and on.startswith("ray://")):
        with _ray(on) as ray:
            yield Ray(ray)
    elif on == "spark":
        yield Spark(_library("pyspark.sql", on, "spark").SparkSession.builder.appName("dlbf").getOrCreate())
    else:
        raise ValueError(
            "expected 'processes', 'dask://host:port', 'ray', 'ray://host:port', 'spark', a client of Dask or a session "
            f"of Spark, found {on!r}"
        )


def _library(name: str, on: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise DlbfError(f"{on}: this needs {name} ({error}); install it with: pip install 'dlbf[{extra}]'") from error


def _client(address: str) -> Any:
    distributed = _library("distributed", address, "dask")
    try:
        return distributed.Client(address.replace("dask://", "tcp://"), timeout=20)
    except OSError as error:
        raise DlbfError(f"{address}: no scheduler of Dask answers there ({error})") from error


@contextlib.contextmanager
def _ray(address: str) -> Iterator[Any]:
    """Ray, which is left as it was found."""
    ray = _library("ray", address, "ray")
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(**({} if address == "ray" else {"address": address}), log_to_driver=False, logging_level="error")
    except (ConnectionError, RuntimeError) as error:
        raise DlbfError(f"{address}: no cluster of Ray answers there ({error})") from error
    try:
        yield ray
    finally:
        ray.shutdown()
