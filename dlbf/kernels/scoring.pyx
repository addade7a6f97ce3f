"""Scores of one key and of many, by a compiled model in a buffer of any owner."""

cimport cython
import numpy as np

from cpython.buffer cimport PyBUF_CONTIG_RO, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from libc.string cimport memcpy, memset

from dlbf.kernels.features cimport (
    N_LEXICAL, N_NUMERIC, NO_SPLIT, VIEW_NGRAM, VIEW_NONE, VIEW_NUMERIC, check_packed, count_high, count_low,
    indexing_is_faster, lexical_best, lexical_tables,
)
from dlbf.kernels.keys cimport KeyReader, KeyRef, key_close, key_open, open_keys
from dlbf.kernels.types cimport load32

from dlbf.errors import FormatError

N_PARAMS = 10

# Which parameter of the format's header means what.
cdef enum:
    PARAM_KIND = 0
    PARAM_VIEW = 1
    PARAM_VIEW_VERSION = 2
    PARAM_ORDER = 3
    PARAM_SPLIT = 4
    PARAM_LOG2_WEIGHTS = 5
    PARAM_BIAS = 6                       # two's complement in 64 bits
    PARAM_ITEMS = 7
    PARAM_SUM_SHIFT = 8
    PARAM_SCALE = 9                      # score units per nat of log-odds, times 65536; informs, never routes


cdef enum:
    ALIGNMENT = 64                       # of a forest, in bytes: no load from it lies across two lines of the cache
    BLOCK_KEYS = 32                      # keys whose values are found before any is summed
    INDEXED_KEYS = 16                    # keys whose indices are found before any weight is looked up
    MIN_COLUMN_KEYS = 24                 # fewer are scored one by one
    MAX_SPREAD_LOG2 = 14                 # weights of four bits become bytes if they then stay in the first-level cache

cdef int simd_wanted = 2
cdef bint index_anyway = False


def use_simd(wanted):
    """Let models opened from now on use AVX2 and AVX-512 where the processor has them (the default), or never.

    Parameters
    ----------
    wanted : bool or int
        0 or False: neither.  1: AVX2.  2: both.  True: both, but AVX2 alone where that is faster (tables, unless the
        processor is AMD's).

    Returns
    -------
    int
        What will be used.  Scores do not depend on it.
    """
    global simd_wanted, index_anyway
    simd_wanted = 2 if wanted is True else wanted
    index_anyway = wanted is not True
    return min(simd_wanted, lexical_best())


cdef int fail(str message) except -1:
    raise FormatError(f"model: {message}; the bytes were not written by dlbf, or by a newer one")


cdef int check_trees(Model* model, size_t n_bytes) except -1:
    cdef size_t n_nodes, tree, i, first, end
    cdef uint32_t n_values = N_LEXICAL if model.view == VIEW_LEXICAL else N_NUMERIC
    cdef const uint8_t* node
    if n_bytes < 4 * <size_t>model.n_items or (n_bytes - 4 * <size_t>model.n_items) % NODE_BYTES:
        fail(f"{model.n_items} trees do not fit {n_bytes} bytes")
    n_nodes = (n_bytes - 4 * <size_t>model.n_items) // NODE_BYTES
    model.nodes = model.data + 4 * <size_t>model.n_items
    for tree in range(model.n_items):
        first = load32(model.data + 4 * tree)
        end = load32(model.data + 4 * tree + 4) if tree + 1 < model.n_items else n_nodes
        if first >= end or end > n_nodes or (tree == 0 and first != 0):
            fail(f"tree {tree} is not within the {n_nodes} nodes")
        for i in range(first, end):
            node = model.nodes + NODE_BYTES * i
            if node[5] != 0:
                fail(f"node {i} has a reserved byte set")
            if node[4] == LEAF:
                continue
            if node[4] >= n_values:
                fail(f"node {i} asks for value {node[4]} of {n_values}")
            model.needed |= <uint32_t>1 << node[4]
            # Children come after their parent, so every walk ends.
            if (load32(node) >> 16) <= i - first or first + (load32(node) >> 16) + 1 >= end:
                fail(f"node {i} has a child outside its tree")
    return 0


cdef int check_terms(Model* model, size_t n_bytes) except -1:
    cdef uint32_t n_values = N_LEXICAL if model.view == VIEW_LEXICAL else N_NUMERIC
    cdef size_t i
    cdef const uint8_t* term
    if n_bytes != TERM_BYTES * <size_t>model.n_items or model.n_items > n_values or model.sum_shift > 62:
        fail(f"{model.n_items} terms with {model.sum_shift} fraction bits do not fit {n_bytes} bytes")
    for i in range(model.n_items):
        term = model.data + TERM_BYTES * i
        if load32(term) >= n_values:
            fail(f"term {i} asks for value {load32(term)} of {n_values}")
        # (a * x + b) * x < 2**57 for x < 2**16: a sum over all values stays within 2**62.
        if not -(1 << 24) <= <int32_t>load32(term + 4) <= (1 << 24):
            fail(f"term {i} has a factor beyond 2**24")
        model.needed |= <uint32_t>1 << load32(term)
    return 0


cdef bytearray derive_forest(Model* model, size_t n_bytes):
    """Turn trees into masks of leaves, if they are small enough for it."""
    cdef size_t n_nodes = (n_bytes - 4 * <size_t>model.n_items) // NODE_BYTES
    cdef bytearray scratch = bytearray(n_nodes * sizeof(uint32_t))
    cdef uint32_t* tests = <uint32_t*>PyByteArray_AS_STRING(scratch)
    cdef bytearray derived
    cdef uint8_t* place
    cdef Forest plan
    if not plan_forest(&plan, <int>model.simd, model.data, model.n_items, n_nodes, tests):
        return None
    derived = bytearray(plan.n_bytes + ALIGNMENT)
    place = <uint8_t*>PyByteArray_AS_STRING(derived)
    place += -<size_t>place % ALIGNMENT
    fill_forest(place, &plan, model.data, tests)
    model.forest = <const Forest*>place
    return derived


cdef bytearray derive_spread(Model* model):
    """Spread terms for vectors, if there are vectors."""
    cdef bytearray derived
    cdef uint64_t* place
    if not model.simd:
        return None
    derived = bytearray(ROOM_VALUES * sizeof(uint64_t))
    place = <uint64_t*>PyByteArray_AS_STRING(derived)
    if not spread_terms(model.data, model.n_items, place):
        return None
    model.spread = place
    return derived


cdef bytearray derive_weights(Model* model, size_t n_bytes):
    """Turn a table of four bits into one of bytes."""
    cdef bytearray derived = bytearray(2 * n_bytes)
    cdef uint8_t* weights = <uint8_t*>PyByteArray_AS_STRING(derived)
    cdef size_t i
    for i in range(n_bytes):
        weights[2 * i] = (model.data[i] & 15) - 8
        weights[2 * i + 1] = (model.data[i] >> 4) - 8
    model.kind = MODEL_TABLE8
    model.data = weights
    return derived


cdef object model_open(Model* model, const uint8_t* payload, size_t n_payload_bytes, const uint64_t* params):
    """Fill ``model`` from the ten parameters and the payload of a stored model, checking everything it will trust.

    Returns what ``model`` points to besides the payload, a bytearray that must stay as long as it is used, or None.
    """
    cdef uint64_t log2_weights = params[PARAM_LOG2_WEIGHTS]
    cdef int64_t bias = <int64_t>params[PARAM_BIAS]
    cdef bytearray derived = None
    if params[PARAM_KIND] > MODEL_TREES:
        fail(f"unknown kind {params[PARAM_KIND]}")
    if params[PARAM_VIEW] > VIEW_NUMERIC or params[PARAM_VIEW_VERSION] != 1:
        fail(f"unknown view {params[PARAM_VIEW]} version {params[PARAM_VIEW_VERSION]}")
    if params[PARAM_SPLIT] > NO_SPLIT:
        fail(f"split byte {params[PARAM_SPLIT]}")
    if not -(1 << 29) <= bias <= (1 << 29):
        fail(f"bias {bias} beyond 2**29")
    if params[PARAM_ITEMS] > 32768:
        fail(f"{params[PARAM_ITEMS]} items, at most 32768")
    model.kind = <uint32_t>params[PARAM_KIND]
    model.view = <uint32_t>params[PARAM_VIEW]
    model.order = <uint32_t>params[PARAM_ORDER]
    model.split_byte = <uint32_t>params[PARAM_SPLIT]
    model.sum_shift = <uint32_t>params[PARAM_SUM_SHIFT]
    model.n_items = <uint32_t>params[PARAM_ITEMS]
    model.bias = <int32_t>bias
    model.needed = 0
    model.data = payload
    model.nodes = payload
    model.forest = NULL
    model.spread = NULL
    model.low = count_low
    model.high = count_high
    model.lexical = lexical_tables()
    model.index_shift = 0
    model.simd = <uint32_t>min(simd_wanted, lexical_best())
    model.indexed = False
    if params[PARAM_SUM_SHIFT] > 62:
        fail(f"{params[PARAM_SUM_SHIFT]} fraction bits")
    if model.kind == MODEL_NONE:
        if n_payload_bytes or model.view != VIEW_NONE:
            fail("a model without a kind has neither payload nor view")
    elif model.kind == MODEL_TABLE8 or model.kind == MODEL_TABLE4:
        if model.view != VIEW_NGRAM or not 2 <= params[PARAM_ORDER] <= 4 or not 4 <= log2_weights <= 24:
            fail(f"view {model.view}, order {params[PARAM_ORDER]} and 2**{log2_weights} weights are no table")
        model.index_shift = <uint32_t>(32 - log2_weights)
        if n_payload_bytes != <size_t>1 << (log2_weights - (model.kind == MODEL_TABLE4)):
            fail(f"2**{log2_weights} weights do not fit {n_payload_bytes} bytes")
        if model.simd == 2 and (index_anyway or indexing_is_faster()):
            if model.kind == MODEL_TABLE4 and log2_weights <= MAX_SPREAD_LOG2:
                derived = derive_weights(model, n_payload_bytes)
            model.indexed = model.kind == MODEL_TABLE8
    elif model.view != VIEW_LEXICAL and model.view != VIEW_NUMERIC:
        fail(f"kind {model.kind} does not read view {model.view}")
    elif model.kind == MODEL_TREES:
        check_trees(model, n_payload_bytes)
        derived = derive_forest(model, n_payload_bytes)
    else:
        check_terms(model, n_payload_bytes)
        derived = derive_spread(model)
    return derived


cdef void indexed_scores(const Model* model, const uint8_t** keys, const size_t* n_bytes, Py_ssize_t n,
                         int32_t* out) noexcept nogil:
    """Scores by indices.  Those of some keys first: the processor is slow to read what it has just written."""
    cdef Indices[INDEXED_KEYS] indices
    cdef int32_t[INDEXED_KEYS] n_indices
    cdef Py_ssize_t first = 0, i, m
    while first < n:
        m = min(n - first, <Py_ssize_t>INDEXED_KEYS)
        for i in range(m):
            n_indices[i] = 0
            if model_indexes(model, n_bytes[first + i]):
                n_indices[i] = model_indices(model, keys[first + i], n_bytes[first + i], &indices[i])
        for i in range(m):
            if n_indices[i]:
                out[first + i] = model_weights(model, &indices[i], n_indices[i])
            else:
                out[first + i] = model_score(model, keys[first + i], n_bytes[first + i])
        first += m


cdef void column_scores(const Model* model, const uint8_t** keys, const size_t* n_bytes, Py_ssize_t n,
                        int32_t* out) noexcept nogil:
    """Scores by trees, 64 keys at a time; a few keys that are left over are not worth it."""
    cdef KeyWords words
    cdef uint16_t[ROOM_VALUES] values
    cdef int32_t[COLUMN_KEYS] scores
    cdef Py_ssize_t first = 0, i, m
    memset(&words, 0, sizeof(words))
    while n - first >= MIN_COLUMN_KEYS:
        m = min(n - first, <Py_ssize_t>COLUMN_KEYS)
        for i in range(m):
            if model.view != VIEW_LEXICAL or not columns_put_key(
                    &words, <uint32_t>i, keys[first + i], n_bytes[first + i], model.split_byte, model.needed,
                    model.lexical):
                model_values(model, keys[first + i], n_bytes[first + i], values)
                columns_put_values(&words, <uint32_t>i, values)
        columns_sum(model.forest, &words, model.bias, scores)
        memcpy(out + first, scores, m * sizeof(int32_t))
        first += m
    for i in range(first, n):
        out[i] = model_score(model, keys[i], n_bytes[i])


cdef void model_scores(const Model* model, const uint8_t** keys, const size_t* n_bytes, Py_ssize_t n,
                       int32_t* out) noexcept nogil:
    """The scores of many keys.  Values of some keys first, then their sums: either alone keeps the processor busier."""
    cdef uint16_t[BLOCK_KEYS][ROOM_VALUES] values
    cdef Py_ssize_t first = 0, i, m
    if model.indexed:
        indexed_scores(model, keys, n_bytes, n, out)
        return
    if model.forest != NULL and has_columns(model.forest):
        column_scores(model, keys, n_bytes, n, out)
        return
    if model.kind != MODEL_TREES and model.kind != MODEL_QUADRATIC:
        for i in range(n):
            out[i] = model_score(model, keys[i], n_bytes[i])
        return
    while first < n:
        m = min(n - first, <Py_ssize_t>BLOCK_KEYS)
        for i in range(m):
            model_values(model, keys[first + i], n_bytes[first + i], values[i])
        for i in range(m):
            out[first + i] = model_sum(model, values[i])
        first += m


cdef class Scorer:
    """A compiled model over a buffer that it keeps alive.

    Parameters
    ----------
    params : sequence of int
        The ten parameters of a stored model, each in 0 .. 2**64 - 1.
    payload : buffer
        The weights, terms or trees.  It is not copied, and must not change.

    Raises
    ------
    FormatError
        If the payload is not what the parameters say.
    """

    def __cinit__(self, params, payload, *args, **kwargs):
        cdef int i
        if len(params) < N_PARAMS:
            raise ValueError(f"expected {N_PARAMS} parameters, found {len(params)}")
        for i in range(10):
            self.numbers[i] = params[i]
        PyObject_GetBuffer(payload, &self.taken.view, PyBUF_CONTIG_RO)
        self.has_buffer = True
        self.derived = model_open(&self.model, <const uint8_t*>self.taken.view.buf, self.taken.view.len, self.numbers)

    def __init__(self, *args, **kwargs):
        """Nothing is left to do: all was read in __cinit__, which no subclass can bypass."""

    def __dealloc__(self):
        if self.has_buffer:
            PyBuffer_Release(&self.taken.view)

    @property
    def nbytes(self):
        """Bytes of the payload: what the model adds to a filter."""
        return self.taken.view.len

    @property
    def working_nbytes(self):
        """Bytes that an open model takes besides its payload, for speed; they are never stored."""
        return 0 if self.derived is None else len(self.derived)

    @property
    def params(self):
        """The ten parameters, as stored in the format's header."""
        return tuple([self.numbers[i] for i in range(10)])

    @property
    def payload(self):
        """The payload, read-only."""
        return memoryview(self.taken.view.obj).cast("B").toreadonly()

    # A plain method; see methods.pyx.
    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def score(self, key, /):
        """The integer score of one key; higher means more like the keys of the training.

        The same on every machine, for ever.  Thread-safe.
        """
        cdef KeyRef ref
        cdef int32_t score
        key_open(key, &ref)
        score = model_score(&self.model, ref.data, ref.n_bytes)
        key_close(&ref)
        return score

    def score_many(self, keys, /):
        """The scores of a batch as a numpy array of int32; the GIL is released while scoring."""
        cdef KeyReader reader = open_keys(keys)
        cdef bytearray out = bytearray()
        cdef int32_t* scores
        cdef Py_ssize_t n, done = 0
        while True:
            n = reader.next_batch()
            PyByteArray_Resize(out, (done + n) * sizeof(int32_t))
            if n == 0:
                break
            scores = <int32_t*>PyByteArray_AS_STRING(out)
            with nogil:
                while reader.next_chunk():
                    model_scores(&self.model, reader.chunk.data, reader.chunk.n_bytes, reader.chunk.n, scores + done)
                    done += reader.chunk.n
        return np.frombuffer(out, dtype=np.int32)

    def score_packed(self, const uint8_t[::1] data, const int64_t[::1] offsets, const int64_t[::1] rows):
        """The scores of some keys packed by `dlbf.kernels.features.pack_keys`."""
        cdef Py_ssize_t i, n = rows.shape[0]
        check_packed(data, offsets, rows)
        out = np.empty(n, dtype=np.int32)
        cdef int32_t[::1] view = out
        cdef uint8_t nothing = 0
        cdef const uint8_t* base = &data[0] if data.shape[0] else NULL
        if base == NULL:
            base = &nothing
        with nogil:
            for i in range(n):
                view[i] = model_score(&self.model, base + offsets[rows[i]],
                                      <size_t>(offsets[rows[i] + 1] - offsets[rows[i]]))
        return out
