"""One host publishes its filter, any number of hosts read it: versions, deltas, and how fresh they are.

``dlbf.storage.publish`` writes a feed, ``dlbf.storage.subscribe`` follows it.  What a feed is: ``feed``; what a delta
is: ``deltas``; where one can be: ``places``.  The promise is bounded consistency: a key that was stored more than
``max_age`` seconds ago is never denied by a subscriber, unless it was deleted since.
"""

from dlbf.storage.distribution.following import Follower, Refreshed
from dlbf.storage.distribution.places import Folder, ServerKeys, WebFolder
from dlbf.storage.distribution.publishing import Published, Publisher, publish
from dlbf.storage.distribution.subscribing import Freshness, Subscription, subscribe

__all__ = [
    "Folder",
    "Follower",
    "Freshness",
    "Published",
    "Publisher",
    "Refreshed",
    "ServerKeys",
    "Subscription",
    "WebFolder",
    "publish",
    "subscribe",
]
