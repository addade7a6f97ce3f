"""Building filters from more keys than one machine can sort: a blueprint, a plain function per shard, a container.

::

    plan = dlbf.build.blueprint(sample, negatives, n_keys=n, fpr=0.01, shards=64)    # bytes; broadcast them
    for batch in everything:                                                         # anywhere, in any order
        numbers = dlbf.build.route(plan, batch)                                      # which shard has which key
    part = dlbf.build.build_shard(plan, 17, keys_of_shard_17)                        # bytes, the same everywhere
    dlbf.build.combine("keys.dlbf", parts)
    dlbf.open_filter("keys.dlbf")                                                    # a ShardedFilter

Who runs these functions where is somebody else's business.  ``build_file`` has files of keys read and shards built by
processes of this machine or by Dask; ``scatter`` and ``gather`` are its two halves, for other engines.
"""

from dlbf.build.combining import combine, part_name
from dlbf.build.planning import auto_shards, blueprint
from dlbf.build.running import BuildReport, build_file
from dlbf.build.runs import gather, scatter
from dlbf.build.shards import build_from_hashes, build_shard, digest, route, shard_memory

__all__ = [
    "BuildReport",
    "auto_shards",
    "blueprint",
    "build_file",
    "build_from_hashes",
    "build_shard",
    "combine",
    "digest",
    "gather",
    "part_name",
    "route",
    "scatter",
    "shard_memory",
]
