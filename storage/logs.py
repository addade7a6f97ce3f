"""Logs that guards of many hosts share: ``Guard(engine, path, log=ValkeyLog(client, name))``."""

from dlbf.storage.fleet.figures import FleetFigures, FleetStats
from dlbf.storage.fleet.guard import FleetGuard
from dlbf.storage.fleet.messages import FleetError
from dlbf.storage.fleet.servers import HostRow
from dlbf.storage.fleet.valkeylog import ValkeyLog

__all__ = ["FleetError", "FleetFigures", "FleetGuard", "FleetStats", "HostRow", "ValkeyLog"]
