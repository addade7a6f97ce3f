"""get, in, []: ask the ledger, then the source; the compiled base of :class:`dlbf.storage.Store` and ``Guard``."""

cimport cython

from dlbf.kernels.ledger cimport ANSWER_ABSENT, ANSWER_MAYBE, ledger_ask, ledger_moment, ledger_remember
from dlbf.kernels.traffic cimport traffic_absent
from dlbf.kernels.types cimport likely, uint64_t


cdef class SourceCore:
    """Where the data are; subclasses bring ``fetch``, see :class:`dlbf.storage.source.Source`."""

    cdef object _fetch(self, object key):
        return self.fetch(key) if self.direct is None else self.direct(key)


cdef class LookupCore:
    """Reads of single keys; subclasses bring ``_look_up_slowly``, for all that is not answered here."""

    def __cinit__(self, *args, **kwargs):
        # One that was never opened answers nothing: compiled code does not ask whether these are there.
        self.ledger = LedgerCore()
        self.traffic = TrafficCore()
        self.source = SourceCore()

    def _wire(self, LedgerCore ledger, TrafficCore traffic, SourceCore source):
        """Whom to ask, who counts, and where the data are."""
        self.ledger = ledger
        self.traffic = traffic
        self.source = source

    cdef inline object _look_up(self, object key, object default):
        cdef TrafficCore traffic = self.traffic
        cdef uint64_t moment
        cdef int answer = ledger_ask(self.ledger, key)
        if likely(answer == ANSWER_ABSENT):
            traffic.n_lookups += 1
            traffic.n_filtered += 1
            traffic_absent(traffic, key)
            return default
        if answer == ANSWER_MAYBE:
            traffic.n_lookups += 1
            moment = ledger_moment(self.ledger)
            value = self.source._fetch(key)
            if value is not None:
                return value
            traffic.n_false_positives += 1
            ledger_remember(self.ledger, key, moment)
            traffic_absent(traffic, key)
            return default
        return self._look_up_slowly(key, default)

    # A plain method; see methods.pyx.
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def get(self, key, default=None):
        """The value of a key, or ``default``.

        Parameters
        ----------
        key : bytes, str or buffer
        default : object, optional

        Returns
        -------
        bytes or ``default``

        Notes
        -----
        A key that the filter knows to be absent costs no read of the data, no lock and no system call.
        """
        return self._look_up(key, default)

    def __contains__(self, key):
        return self._look_up(key, self) is not self

    def __getitem__(self, key):
        value = self._look_up(key, self)
        if value is self:
            raise KeyError(key)
        return value
