"""Scrapy: requests seen before, exactly, on disk, and a few bits of memory for each.

In settings.py: ``DUPEFILTER_CLASS = "recipe_scrapy.StoreDupeFilter"``, and a ``JOBDIR``, so that a crawl can go on
where it stopped.  ``python examples/recipe_scrapy.py`` tries it; needs ``pip install scrapy``.
"""

import tempfile
from pathlib import Path
from typing import Any, Self

from scrapy import Request, Spider
from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.test import get_crawler

from dlbf.storage import Store


class StoreDupeFilter(BaseDupeFilter):
    """Fingerprints in a store: a new one is known from memory, only one that seems known is looked up."""

    def __init__(self, folder: str | None, fingerprinter: RequestFingerprinter) -> None:
        self._temporary = None if folder else tempfile.TemporaryDirectory()
        self._path = Path(folder or self._temporary.name) / "requests.seen"
        self._fingerprinter = fingerprinter

    @classmethod
    def from_crawler(cls, crawler: Any) -> Self:
        """As Scrapy makes it."""
        return cls(crawler.settings.get("JOBDIR"), crawler.request_fingerprinter)

    def open(self) -> None:
        """When the spider starts."""
        self.seen = Store(self._path, sync="none")  # a power cut may cost some: pages that are read twice

    def request_seen(self, request: Request) -> bool:
        """Whether there was such a request; from now on there was."""
        key = self._fingerprinter.fingerprint(request)
        if key in self.seen:
            return True
        self.seen[key] = b""
        return False

    def close(self, reason: str) -> None:
        """When it ends."""
        self.seen.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def log(self, request: Request, spider: Spider) -> None:
        """Duplicates are not worth a line each."""


def main() -> None:
    """Two crawls of one job."""
    with tempfile.TemporaryDirectory() as folder:
        crawler = get_crawler(Spider, {"JOBDIR": folder, "DUPEFILTER_CLASS": StoreDupeFilter})
        counts = []
        for _ in range(2):
            requests = StoreDupeFilter(folder, RequestFingerprinter(crawler))
            requests.open()
            urls = [f"https://example.org/{i % 700}?b=2&a=1" for i in range(1000)]
            counts.append(sum(not requests.request_seen(Request(url)) for url in urls))
            assert requests.request_seen(Request("https://example.org/7?a=1&b=2"))  # the same page
            requests.close("finished")
        print(f"new pages of 1000 requests: {counts[0]}, and {counts[1]} when the job goes on")


if __name__ == "__main__":
    main()
