"""Counters of lookups, and a uniform sample of the absent keys among them."""

from libc.math cimport log, log1p

cdef uint64_t NEVER = <uint64_t>0xFFFFFFFFFFFFFFFF


cdef class TrafficCore:
    """Base of :class:`dlbf.storage.traffic.Traffic`, which brings ``samples_full``."""

    def __cinit__(self, *args, **kwargs):
        self.samples = []
        self.sample_in = NEVER

    def sample(self, double every, Py_ssize_t max_samples, uint64_t seed=0):
        """Draw each absent key with probability ``1 / every`` (0: none), all by chance and none by its turn.

        ``samples_full`` is called when ``max_samples`` have been drawn and not taken.
        """
        self.sample_every = every
        self.sample_log = 1 / log1p(-1 / every) if every > 1 else 0
        self.max_samples = max_samples
        if seed:
            self.sample_state = seed
        self.sample_in = self._gap() if every else NEVER

    def take_samples(self):
        """The absent keys drawn since the last call."""
        taken = self.samples
        self.samples = []
        return taken

    @property
    def n_samples(self):
        """Absent keys drawn and not taken yet."""
        return len(self.samples)

    cdef uint64_t _gap(self) noexcept:
        """Number of absent keys up to and with the next one drawn: geometric, as if each were drawn for itself."""
        cdef uint64_t z
        cdef double u
        # splitmix64
        self.sample_state += <uint64_t>0x9E3779B97F4A7C15
        z = self.sample_state
        z = (z ^ (z >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * <uint64_t>0x94D049BB133111EB
        z = z ^ (z >> 31)
        if self.sample_every <= 1:
            return 1
        u = (<double>(z >> 11) + 1) / 9007199254740992.0  # above 0, at most 1
        return 1 + <uint64_t>(log(u) * self.sample_log)

    cdef int _draw(self, object key) except -1:
        if not self.sample_every:
            self.sample_in = NEVER
            return 0
        self.sample_in = self._gap()
        self.samples.append(key)
        if len(self.samples) >= self.max_samples:
            self.samples_full()
        return 0

    def absent(self, bytes key):
        """A key was asked for and is not there."""
        traffic_absent(self, key)

    def draw_many(self, uint64_t n_absent):
        """Which of ``n_absent`` absent keys in a row are drawn: their numbers from 0."""
        cdef uint64_t at = 0
        out = []
        while self.sample_in <= n_absent - at:
            at += self.sample_in
            out.append(at - 1)
            self.sample_in = self._gap() if self.sample_every else NEVER
        self.sample_in -= n_absent - at
        return out

    def add_samples(self, keys):
        """Keys that were drawn elsewhere."""
        self.samples.extend(keys)
        if len(self.samples) >= self.max_samples:
            self.samples_full()

    def count(self, uint64_t lookups=0, uint64_t filtered=0, uint64_t false_positives=0, uint64_t unfiltered=0):
        """Add to the counters."""
        self.n_lookups += lookups
        self.n_filtered += filtered
        self.n_false_positives += false_positives
        self.n_unfiltered += unfiltered
