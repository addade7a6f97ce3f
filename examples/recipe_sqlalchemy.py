"""A table of SQLAlchemy behind a guard: "is this address taken?" without a query, if it is not.

``python examples/recipe_sqlalchemy.py [URL]`` tries it; needs ``pip install sqlalchemy``.
"""

import sys
import tempfile
from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from dlbf.storage import Guard
from dlbf.storage.engines import Adapter


class TableEngine(Adapter):
    """A column of unique text, or of bytes, and one of values; every change is a transaction of its own."""

    def __init__(self, engine: Engine, key: sa.Column, value: sa.Column) -> None:
        self.engine, self.key, self.value, self.table = engine, key, value, key.table
        self.text = isinstance(key.type, sa.String)
        self.in_flight = engine.dialect.name != "sqlite"  # a server may still do what a dead client has sent
        self.errors = (sa.exc.SQLAlchemyError,)

    def _asked(self, key: bytes) -> str | bytes:
        return key.decode() if self.text else key

    def get(self, key: bytes) -> bytes | None:
        """The value of a key."""
        with self.engine.connect() as connection:
            return connection.scalar(sa.select(self.value).where(self.key == self._asked(key)))

    def put(self, key: bytes, value: bytes) -> None:
        """Update a row, or insert it."""
        with self.engine.begin() as connection:
            changed = connection.execute(
                sa.update(self.table).where(self.key == self._asked(key)).values({self.value: value})
            )
            if not changed.rowcount:
                connection.execute(sa.insert(self.table).values({self.key: self._asked(key), self.value: value}))

    def delete(self, key: bytes) -> None:
        """Delete a row."""
        with self.engine.begin() as connection:
            connection.execute(sa.delete(self.table).where(self.key == self._asked(key)))

    def scan(self, start: bytes) -> Iterator[bytes]:
        """All keys, in the database's own order: it need not be that of bytes, so ``ordered`` stays False."""
        with self.engine.connect().execution_options(yield_per=1000) as connection:
            for key in connection.scalars(sa.select(self.key)):
                yield key.encode() if self.text else key


def main() -> None:
    """Count the queries for addresses that nobody has."""
    metadata = sa.MetaData()
    users = sa.Table(
        "users",
        metadata,
        sa.Column("mail", sa.String(200), primary_key=True),
        sa.Column("record", sa.LargeBinary),
    )
    with tempfile.TemporaryDirectory() as folder:
        engine = sa.create_engine(sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/users.db")
        metadata.create_all(engine)
        queries: list[str] = []
        sa.event.listen(engine, "before_cursor_execute", lambda *arguments: queries.append(arguments[2]))
        with Guard(TableEngine(engine, users.c.mail, users.c.record), f"{folder}/guard") as taken:
            taken["ada@example.org"] = b"1815"
            assert "ada@example.org" in taken
            with engine.connect() as connection:  # the data stay an ordinary table
                assert connection.scalar(sa.select(sa.func.count()).select_from(users)) == 1
            queries.clear()
            assert not any(f"guest{i}@example.org" in taken for i in range(1000))
            print(f"1000 free addresses: {len(queries)} queries")
            del taken["ada@example.org"]
            assert taken.verify().ok
        metadata.drop_all(engine)
        engine.dispose()


if __name__ == "__main__":
    main()
