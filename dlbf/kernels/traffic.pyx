"""Counters of lookups, and a sample of the absent keys among them that gives each the same chance.

A draw is to cost a few instructions, so that many can be drawn: a random number, a multiplication, an append.
"""

from cpython.bytes cimport PyBytes_GET_SIZE

cdef uint64_t NEVER = <uint64_t>0xFFFFFFFFFFFFFFFF
# Longer keys are not kept: a model reads the first hundreds of bytes.
cdef Py_ssize_t MAX_KEY_BYTES = 4096


cdef class TrafficCore:
    """Base of :class:`dlbf.storage.traffic.Traffic`, which brings ``samples_grown``."""

    def __cinit__(self, *args, **kwargs):
        self.samples = []
        self.sample_in = NEVER

    def sample(self, double every, Py_ssize_t check_at, uint64_t seed=0):
        """Draw each absent key with probability ``1 / every`` (0: none), all by chance and none by its turn.

        ``samples_grown`` is called when ``check_at`` have been drawn and not taken; it says when next (``check``).
        """
        self.sample_every = every
        # The gap from one to the next is 1, 2, ..., 2 * every - 1, each as likely: on average ``every``.
        self.gap_width = (2 * every - 1) / 9007199254740992.0
        self.check_at = check_at
        if seed:
            self.sample_state = seed
        self.sample_in = self._gap() if every else NEVER

    def check(self, Py_ssize_t at):
        """Call ``samples_grown`` when there are so many samples."""
        self.check_at = at

    def take_samples(self):
        """The absent keys drawn since the last call."""
        taken = self.samples
        self.samples = []
        self.sample_bytes = 0
        return taken

    @property
    def n_samples(self):
        """Absent keys drawn and not taken yet."""
        return len(self.samples)

    cdef uint64_t _random(self) noexcept:
        """64 random bits (splitmix64)."""
        cdef uint64_t z
        self.sample_state += <uint64_t>0x9E3779B97F4A7C15
        z = self.sample_state
        z = (z ^ (z >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
        z = (z ^ (z >> 27)) * <uint64_t>0x94D049BB133111EB
        return z ^ (z >> 31)

    cdef uint64_t _gap(self) noexcept:
        """Number of absent keys up to and with the next one drawn."""
        return 1 + <uint64_t>(<double>(self._random() >> 11) * self.gap_width)

    cdef int _keep(self, object key) except -1:
        cdef Py_ssize_t n_bytes = PyBytes_GET_SIZE(key)
        if n_bytes > MAX_KEY_BYTES:
            return 0
        self.sample_bytes += n_bytes
        self.samples.append(key)
        if len(self.samples) >= self.check_at:
            self.samples_grown()
        return 0

    cdef int _draw(self, object key) except -1:
        if not self.sample_every:
            self.sample_in = NEVER
            return 0
        self.sample_in = self._gap()
        return self._keep(key)

    def absent(self, bytes key):
        """A key was asked for and is not there."""
        traffic_absent(self, key)

    def draw_many(self, list keys, present):
        """Many keys (bytes) were asked for; those whose places are not in ``present`` are not there."""
        cdef uint64_t at = 0
        cdef uint64_t n_keys = <uint64_t>len(keys)
        # Places are drawn among all keys, which gives each absent one the same chance as if there were no others.
        while self.sample_every and self.sample_in <= n_keys - at:
            at += self.sample_in
            self.sample_in = self._gap()
            if at - 1 not in present:
                self._keep(keys[at - 1])
        self.sample_in -= n_keys - at

    def thin_samples(self, double share):
        """Keep each of the samples with this probability."""
        cdef uint64_t below = <uint64_t>(share * 9007199254740992.0)
        cdef list kept = []
        cdef Py_ssize_t n_bytes = 0
        cdef bytes key
        for key in self.samples:
            if self._random() >> 11 < below:
                kept.append(key)
                n_bytes += PyBytes_GET_SIZE(key)
        self.samples = kept
        self.sample_bytes = n_bytes

    def count(self, uint64_t lookups=0, uint64_t filtered=0, uint64_t false_positives=0, uint64_t unfiltered=0):
        """Add to the counters."""
        self.n_lookups += lookups
        self.n_filtered += filtered
        self.n_false_positives += false_positives
        self.n_unfiltered += unfiltered
