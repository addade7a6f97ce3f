"""Views of a store: a write transaction with its journal, and a snapshot of one moment."""

import logging
from collections.abc import Iterator
from itertools import chain
from typing import Any, Self, TypeVar, overload

import lmdb

from dlbf.errors import StoreError
from dlbf.kernels.changes import PutPath
from dlbf.kernels.journal import OperationLog
from dlbf.kernels.ledger import ABSENT
from dlbf.kernels.methods import own_methods
from dlbf.storage import steps
from dlbf.storage.commits import Commits
from dlbf.storage.environment import Environment, Overtaken
from dlbf.storage.keys import Key, Value, as_key, as_value
from dlbf.storage.layout import PLAIN_KEY_BYTES
from dlbf.storage.ledger import Ledger
from dlbf.storage.lmdbtypes import Txn
from dlbf.storage.longkeys import Databases, count_keys, delete_long, get_any, is_plain, put_long, scan
from dlbf.storage.traffic import Traffic
from dlbf.storage.views import bounds

__all__ = ["Snapshot", "WriteTransaction", "put_all"]

log = logging.getLogger("dlbf.storage")

T = TypeVar("T")


class _View:
    """What reading views share."""

    _environment: Environment
    _txn: Any  # Txn; None: it has ended

    @property
    def _dbs(self) -> Databases:
        return self._environment.dbs

    def _live(self) -> Txn:
        if self._txn is None:
            raise StoreError("this transaction has ended; begin another one")
        self._environment.check()
        txn: Txn = self._txn
        return txn

    def _read(self, key: bytes) -> bytes | None:
        txn = self._live()
        try:
            return get_any(txn, self._dbs, key)
        except lmdb.Error:
            self._live()  # or else it has ended meanwhile
            raise

    def _look_up(self, key: bytes) -> bytes | None:
        return self._read(key)

    @overload
    def get(self, key: Key, default: None = None) -> bytes | None: ...
    @overload
    def get(self, key: Key, default: T) -> bytes | T: ...
    def get(self, key: Key, default: object = None) -> object:
        """The value of a key as this view sees it, or ``default``."""
        value = self._look_up(as_key(key))
        return default if value is None else value

    def __getitem__(self, key: Key) -> bytes:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        return self._look_up(as_key(key)) is not None

    def __len__(self) -> int:
        try:
            return count_keys(self._live(), self._dbs)
        except lmdb.Error:
            self._live()
            raise

    def items(
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in key order; see ``dlbf.storage.Store.items``."""
        txn = self._live()
        found = scan(txn, self._dbs, *bounds(prefix, start, stop), reverse)
        return self._walk(found, txn)

    def _walk(self, found: Iterator[tuple[bytes, bytes]], txn: Txn) -> Iterator[tuple[bytes, bytes]]:
        """The same items; as long as there may be more the view is not collected, which would end it."""
        environment = self._environment
        try:
            for item in found:
                yield item
                if environment.was_forked():
                    environment.check()
        except lmdb.Error as error:
            if self._live() is not txn:
                raise StoreError(
                    "the LMDB map has grown, and the changes of this transaction were made again: iterators that were "
                    "begun before have ended. Change nothing while you iterate (list(txn.keys())), or begin another"
                ) from error
            raise

    def keys(
        self, prefix: Key = b"", start: Key | None = None, stop: Key | None = None, reverse: bool = False
    ) -> Iterator[bytes]:
        """Keys in order."""
        return (key for key, _ in self.items(prefix, start, stop, reverse))

    __iter__ = keys


class Snapshot(_View):
    """The store as it was at one moment; made by ``dlbf.storage.Store.snapshot``.

    Attributes
    ----------
    txn_id : int
        LMDB's number of the newest transaction that it sees.

    Notes
    -----
    While it is open LMDB keeps every page it can see, so the file grows with each write: close it soon.

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Store
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Store(folder.name) as store:
    ...     store[b"key"] = b"old"
    ...     with store.snapshot() as view:
    ...         store[b"key"] = b"new"
    ...         view.get(b"key"), store.get(b"key")
    (b'old', b'new')
    >>> folder.cleanup()
    """

    def __init__(self, environment: Environment, ledger: Ledger[Txn], traffic: Traffic) -> None:
        self._environment = environment
        self._ledger = ledger
        self._traffic = traffic
        self._txn = None
        self._reading = environment.reading()
        try:
            self._txn = self._reading.__enter__()
            self.txn_id: int = self._txn.id()
            # Not in another transaction: there may be no slot for it, and it could not follow a map that has grown.
            ledger.refresh(txn=self._txn)
        except BaseException as error:
            self._reading.__exit__(type(error), error, error.__traceback__)
            raise

    def _look_up(self, key: bytes) -> bytes | None:
        self._live()
        # The filter is complete for a newer state; it may answer for this one unless a key was removed in between.
        value = None if self._ledger.ask_at(key, self.txn_id) == ABSENT else self._read(key)
        if value is None:
            self._traffic.absent(key)
        return value

    def close(self) -> None:
        """End the view; its iterators end too."""
        self._txn = None
        self._reading.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


@own_methods("put")
class WriteTransaction(PutPath, _View):
    """Changes that become visible together or not at all; made by ``dlbf.storage.Store.write``.

    Notes
    -----
    One at a time in all processes; others wait.  It belongs to the thread that began it: only there it can be
    committed or aborted.  One that nothing refers to any more is aborted.

    Examples
    --------
    >>> import tempfile
    >>> from dlbf.storage import Store
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Store(folder.name) as store:
    ...     with store.write() as txn:
    ...         txn.put(b"a", b"1"), txn.put(b"b", b"2"), txn.delete(b"a")
    ...     dict(store)
    (True, True, True)
    {b'b': b'2'}
    >>> folder.cleanup()
    """

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._environment = commits.environment
        try:
            self._begin(commits.writes)
            self._id = self._txn.id()
            self._data = self._dbs.data
            self._log = OperationLog()
            self._dirty = False
            self._repeating = False
            # Kept to do it all again after the map has grown; not worth it when the map cannot get full.
            self._redo: list[tuple[bytes, bytes | None]] | None = [] if self._environment.map_may_fill() else None
            self._attach_put(self._txn.put, self._log, lmdb.MapFullError, PLAIN_KEY_BYTES)
            steps.reached("write-began")
        except BaseException:
            self._end()
            raise

    def _live(self) -> Txn:
        """LMDB's transaction, if it may go on: data and journal say the same, and nothing is missing."""
        self._check_thread()
        if self._environment.handle is not None and (self._torn or self._repeating):
            raise StoreError(
                "a change in this transaction was interrupted halfway, by an exception from a signal handler, say; it "
                "can only be aborted. Run it again"
            )
        return super()._live()

    def _put_slowly(self, key: Key, value: Value) -> bool:
        """Every put that is not the common one: see ``dlbf.kernels.changes.PutPath``."""
        key, value = as_key(key), as_value(value)
        self._live()
        return self._do(key, value)

    def delete(self, key: Key) -> bool:
        """Delete a key; True if it was there."""
        key = as_key(key)
        self._live()
        return self._do(key, None)

    def _do(self, key: bytes, value: bytes | None) -> bool:
        """Make a change, and keep it for another try."""
        self._torn = True
        if self._redo is not None:
            self._redo.append((key, value))
        try:
            return self._delete(key) if value is None else self._put(key, value)
        except lmdb.MapFullError:
            return self._again()
        except lmdb.Error as error:
            self._environment.blame_disk(error)
            raise

    def _put(self, key: bytes, value: bytes) -> bool:
        txn = self._txn
        self._dirty = True
        self._torn = True
        if 0 < len(key) <= PLAIN_KEY_BYTES:
            new = txn.put(key, value, True, False, False, self._data)
            if not new:
                txn.put(key, value, True, True, False, self._data)
        else:
            new = put_long(txn, self._dbs, key, value)
        if new:
            self._log.added(key)
        self._torn = False
        return bool(new)

    def _delete(self, key: bytes) -> bool:
        txn = self._txn
        self._torn = True
        if is_plain(key):
            found = bool(txn.delete(key, db=self._data))
        else:
            found = delete_long(txn, self._dbs, key)
        if found:
            self._dirty = True
            self._log.removed(key)
        self._torn = False
        return found

    def _again(self) -> bool:
        """Make the map larger and do everything again; the answer is that of the last change."""
        redo = self._redo
        if redo is None:
            raise StoreError("the LMDB map is full and this transaction cannot be repeated; use smaller transactions")
        answer = False
        self._repeating = True
        self._detach_put()
        while True:
            txn, self._txn = self._txn, None
            self._txn = self._commits.writes.begin_again(txn, self._id)
            self._log = OperationLog()
            self._dirty = self._torn = False
            try:
                for key, value in redo:
                    answer = self._delete(key) if value is None else self._put(key, value)
                self._repeating = False
                self._attach_put(self._txn.put, self._log, lmdb.MapFullError, PLAIN_KEY_BYTES)
                return answer
            except lmdb.MapFullError:
                continue

    def __setitem__(self, key: Key, value: Value) -> None:
        self.put(key, value)

    def __delitem__(self, key: Key) -> None:
        if not self.delete(key):
            raise KeyError(key)

    def commit(self) -> None:
        """Make the changes visible to everybody, in every process.

        Raises
        ------
        StoreError
            If a change was interrupted halfway, by an exception from a signal handler, say: nothing is stored then.
        """
        self._check_thread()
        n_operations = len(self._log)
        try:
            self._live()
            while True:
                try:
                    if self._dirty:
                        self._commits.commit(self._txn, self._log)
                    break
                except lmdb.MapFullError:
                    self._again()
            if self._dirty:
                self._txn = None
        except lmdb.Error as error:
            self._environment.blame_disk(error)
            raise
        finally:
            self._end()
        self._commits.grow_if_due(n_operations)

    def abort(self) -> None:
        """Undo everything."""
        if not self._ended:
            self._end()


def put_all(commits: Commits, items: Iterator[tuple[Key, Value]]) -> None:
    """Store many items, in one transaction; again, if another process was faster."""
    while True:
        made: list[Any] | None = None
        try:
            with WriteTransaction(commits) as txn:
                made = txn._redo  # kept where another process can come in between; the transaction lets go of it
                for key, value in items:
                    txn.put(key, value)
            return
        except Overtaken as error:
            if made is None:
                raise
            # Nothing of it depends on what another process has written meanwhile.
            log.debug("%s: %s", commits.environment.path, error)
            items = chain(made, items)
