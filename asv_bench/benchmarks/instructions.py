"""Instructions per key of the hot paths: figures that a busy machine cannot spoil; see ``hot_paths``."""

from .common import TINY
from .hot_paths import NAMES, Unavailable, count


class HotPaths:
    """One run of all paths under callgrind; a path that a commit does not have is skipped."""

    params = [NAMES[:1] if TINY else NAMES]
    param_names = ["path"]
    timeout = 900

    def setup_cache(self):
        try:
            return count(names=self.params[0])
        except Unavailable as error:
            return str(error)

    def setup(self, counts, path):
        if isinstance(counts, str) or counts[path] is None:
            raise NotImplementedError

    def track_instructions(self, counts, path):
        return counts[path]

    track_instructions.unit = "instructions per key"
