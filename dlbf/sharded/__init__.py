"""Filters that are split into shards, each of which can be built, shipped and replaced by itself."""

from dlbf.sharded.filter import ShardedFilter

__all__ = ["ShardedFilter"]
