"""The compiled leaves: reading keys, hashing, checksums, features."""

import numpy as np

from dlbf.kernels.features import ngram_rows, pack_keys, value_rows
from dlbf.kernels.hashing import checksum64, hash64, hash64_many
from dlbf.kernels.keys import read_keys

from .common import SECRET, make_keys, size

N_KEYS = size(100_000)
N_BYTES = size(1 << 24, 1 << 16)


class Hashing:
    """XXH3 without a secret, SipHash with one; one key costs mostly the call."""

    params = [["plain", "keyed"]]
    param_names = ["hash"]

    def setup(self, kind):
        self.keys = make_keys(N_KEYS)
        self.secret = SECRET if kind == "keyed" else None

    def time_hash_one(self, kind):
        secret = self.secret
        for key in self.keys:
            hash64(key, secret)

    def time_hash_many(self, kind):
        hash64_many(self.keys, self.secret)


class Checksums:
    """What opening a file costs per byte."""

    def setup(self):
        self.data = np.arange(N_BYTES, dtype=np.uint8)

    def time_checksum(self):
        checksum64(self.data)


class ReadKeys:
    """Getting at the bytes of keys, by the kind of the batch."""

    params = [["list", "text", "numpy S", "arrow"]]
    param_names = ["input"]

    def setup(self, kind):
        keys = make_keys(N_KEYS)
        if kind == "arrow":
            try:
                import pyarrow
            except ImportError:
                raise NotImplementedError from None
            self.input = pyarrow.array(keys)
        else:
            self.input = {"list": keys, "text": [key.decode() for key in keys], "numpy S": np.array(keys)}[kind]

    def time_read_keys(self, kind):
        read_keys(self.input)


class FeatureRows:
    """The values a model is trained on, for every key."""

    params = [["ngram", "lexical", "numeric"]]
    param_names = ["view"]

    def setup(self, view):
        self.data, self.offsets = pack_keys(make_keys(N_KEYS))
        self.rows = np.arange(N_KEYS)

    def time_rows(self, view):
        if view == "ngram":
            ngram_rows(self.data, self.offsets, self.rows, 3, ord("/"), 13)
        else:
            value_rows(self.data, self.offsets, self.rows, view)
