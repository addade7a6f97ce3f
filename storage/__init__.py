"""Persistence for dlbf filters (imported as ``dlbf.storage``)."""
