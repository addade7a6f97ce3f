"""Names for what py-lmdb gives out: databases, and transactions that read values as bytes or as they lie in the map."""

from typing import TYPE_CHECKING, TypeAlias

import lmdb

__all__ = ["AnyTxn", "Database", "Txn"]

if TYPE_CHECKING:
    Database: TypeAlias = lmdb._Database
    Txn: TypeAlias = lmdb.Transaction[bytes]
    # Its values are copies, or views of LMDB's map that end with it.
    AnyTxn: TypeAlias = lmdb.Transaction[bytes | memoryview]
else:
    # py-lmdb's classes take no type parameters when a program runs.
    Database, Txn, AnyTxn = object, lmdb.Transaction, lmdb.Transaction
