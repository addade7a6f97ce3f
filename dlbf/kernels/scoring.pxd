"""A compiled model and its score: integers only, no allocation, no Python objects.

``Model`` is a plain struct of numbers and pointers into one flat buffer that it does not own and that needs no
alignment (bytes, a memory map, an LMDB page).  ``model_open`` checks every size and index once; after that
``model_score`` trusts the buffer, so the buffer must not change while the struct is in use.  What is worked out from
the buffer for speed (masks for trees, spread terms, weights as bytes) is in an object that ``model_open`` returns, and
whoever keeps the struct keeps it; it is never stored.

    payload of MODEL_TABLE8   int8   weight[2**log2_weights]
    payload of MODEL_TABLE4   uint4  weight + 8, two to a byte, the even index in the low half
    payload of MODEL_QUADRATIC, per value used, 12 bytes:
        0  u16  value number      2  u16  zero      4  i32  a      8  i32  b
    payload of MODEL_TREES
        u32 first_node[n_items], then nodes of 6 bytes:
        0  u16  threshold, or the leaf's i16     2  u16  left child, counted from the tree's first node
        4  u8   value number, 255 = leaf         5  u8   zero         the right child follows the left one

Scores, all sums in integers that cannot overflow:
    table      bias + sum of weights
    quadratic  bias + floor(sum of (a * x + b) * x / 2**shift), kept within +-2**30
    trees      bias + sum of leaves;  x <= threshold goes left
"""

from dlbf.kernels.features cimport (
    INDEXED_MAX, INDEXED_MIN, ROOM_VALUES, TAKE_INT4, TAKE_INT8, VIEW_LEXICAL, Indices, LexicalTables,
    lexical_simd, lexical_values, ngram_indices, ngram_sum_avx2, ngram_walk, numeric_values, weights_sum,
)
from dlbf.kernels.types cimport Export, int8_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef enum:
    MODEL_NONE = 0
    MODEL_TABLE8 = 1
    MODEL_TABLE4 = 2
    MODEL_QUADRATIC = 3
    MODEL_TREES = 4

cdef extern from "trees.h" nogil:
    enum:
        NODE_BYTES "DLBF_NODE_BYTES"
        LEAF "DLBF_LEAF"
        COLUMN_KEYS "DLBF_COLUMN_KEYS"

    ctypedef struct Forest "dlbf_forest":
        uint32_t n_bytes

    size_t plan_forest "dlbf_plan_forest"(Forest* plan, int way, const uint8_t* payload, uint32_t n_trees,
                                          size_t n_nodes, uint32_t* scratch) noexcept
    void fill_forest "dlbf_fill_forest"(uint8_t* out, const Forest* plan, const uint8_t* payload,
                                        const uint32_t* scratch) noexcept
    int32_t forest_sum "dlbf_forest_sum"(const Forest* forest, int way, const uint16_t* values) noexcept
    bint forest_sum_of_key "dlbf_forest_sum_of_key"(const Forest* forest, const uint8_t* key, size_t n_bytes,
                                                    uint32_t split_byte, uint32_t needed, const LexicalTables* tables,
                                                    int32_t* sum) noexcept
    ctypedef struct KeyWords "dlbf_key_words":
        pass

    # Sums of COLUMN_KEYS keys at once: all are put first.
    bint has_columns "dlbf_has_columns"(const Forest* forest) noexcept
    bint columns_put_key "dlbf_columns_put_key"(KeyWords* words, uint32_t i, const uint8_t* key, size_t n_bytes,
                                                uint32_t split_byte, uint32_t needed,
                                                const LexicalTables* tables) noexcept
    void columns_put_values "dlbf_columns_put_values"(KeyWords* words, uint32_t i, const uint16_t* values) noexcept
    void columns_sum "dlbf_columns_sum"(const Forest* forest, const KeyWords* words, int32_t bias,
                                        int32_t* out) noexcept
    int32_t trees_sum "dlbf_trees_sum"(const uint8_t* payload, uint32_t n_trees, const uint16_t* values) noexcept

cdef extern from "quadratic.h" nogil:
    enum:
        TERM_BYTES "DLBF_TERM_BYTES"
    bint spread_terms "dlbf_spread_terms"(const uint8_t* payload, uint32_t n_terms, uint64_t* spread) noexcept
    int64_t quadratic "dlbf_quadratic"(const uint8_t* payload, uint32_t n_terms, const uint64_t* spread, int way,
                                       const uint16_t* values) noexcept

cdef enum:
    SCORE_LIMIT = 1073741824             # 2**30

ctypedef struct Model:
    uint32_t kind                        # MODEL_*
    uint32_t view                        # VIEW_*
    uint32_t order                       # bytes per run, 2 .. 4
    uint32_t split_byte                  # 0 .. 255, or NO_SPLIT
    uint32_t index_shift                 # 32 - log2_weights
    uint32_t sum_shift                   # fraction bits of a quadratic sum
    uint32_t n_items                     # trees, or terms
    uint32_t needed                      # bit v: value v is used
    int32_t bias
    uint32_t simd                        # 0: none, 1: AVX2, 2: AVX-512; the score is the same
    bint indexed                         # a table of bytes, read by indices that are worked out with AVX-512
    const uint8_t* data                  # the payload, or its weights as bytes
    const uint8_t* nodes                 # trees: after the first_node array
    const Forest* forest                 # trees as masks of leaves; NULL: walk them
    const uint64_t* spread               # terms for vectors, or NULL
    const uint64_t* low                  # tables of the features module
    const uint64_t* high
    const LexicalTables* lexical

cdef void model_scores(
    const Model* model, const uint8_t** keys, const size_t* n_bytes, Py_ssize_t n, int32_t* out,
) noexcept nogil


cdef object model_open(Model* model, const uint8_t* payload, size_t n_payload_bytes, const uint64_t* params)


cdef inline void model_values(const Model* model, const uint8_t* key, size_t n_bytes, uint16_t* values) noexcept nogil:
    """The values that a quadratic form or trees are asked about; there is room for ROOM_VALUES."""
    if model.view != VIEW_LEXICAL:
        numeric_values(key, n_bytes, values)
    elif not lexical_simd(<int>model.simd, key, n_bytes, model.split_byte, model.needed, model.lexical, values):
        lexical_values(key, n_bytes, model.split_byte, model.needed, 0, model.low, model.high, values)


cdef inline int32_t model_sum(const Model* model, const uint16_t* values) noexcept nogil:
    """The score that a quadratic form or trees give to values."""
    cdef int64_t wide
    if model.kind == MODEL_TREES:
        if model.forest != NULL:
            return model.bias + forest_sum(model.forest, <int>model.simd, values)
        return model.bias + trees_sum(model.data, model.n_items, values)
    wide = quadratic(model.data, model.n_items, model.spread, <int>model.simd, values)
    # Floor division by a power of two without shifting a negative number.
    wide = <int64_t>((<uint64_t>(wide + (<int64_t>1 << 62))) >> model.sum_shift) - (
        (<int64_t>1 << 62) >> model.sum_shift)
    if wide > SCORE_LIMIT:
        wide = SCORE_LIMIT
    if wide < -SCORE_LIMIT:
        wide = -SCORE_LIMIT
    return <int32_t>(model.bias + wide)


cdef inline bint model_indexes(const Model* model, size_t n_bytes) noexcept nogil:
    """Whether a key of that length is scored by ``model_indices`` and ``model_weights``."""
    return model.indexed and INDEXED_MIN <= n_bytes <= INDEXED_MAX


cdef inline int32_t model_indices(const Model* model, const uint8_t* key, size_t n_bytes,
                                  Indices* indices) noexcept nogil:
    """The indices of the key's weights; how many is returned."""
    return ngram_indices(key, <int32_t>n_bytes, model.order, model.split_byte, model.index_shift, indices)


cdef inline int32_t model_weights(const Model* model, const Indices* indices, int32_t n) noexcept nogil:
    """The score that a table gives to indices."""
    return model.bias + weights_sum(indices, n, <const int8_t*>model.data)


cdef inline int32_t model_score(const Model* model, const uint8_t* key, size_t n_bytes) noexcept nogil:
    """The score of one key; higher means more like a stored key."""
    cdef uint16_t[ROOM_VALUES] values
    cdef Indices indices
    cdef Py_ssize_t m = 0
    cdef int32_t total
    if model_indexes(model, n_bytes):
        return model_weights(model, &indices, model_indices(model, key, n_bytes, &indices))
    if model.kind == MODEL_TABLE8:
        if model.simd and n_bytes >= 16:
            return model.bias + ngram_sum_avx2(key, n_bytes, model.order, model.split_byte, model.index_shift,
                                               TAKE_INT8, model.data, &m)
        return model.bias + ngram_walk(key, n_bytes, model.order, model.split_byte, model.index_shift, model.low,
                                       TAKE_INT8, model.data, NULL, &m)
    if model.kind == MODEL_TABLE4:
        if model.simd and n_bytes >= 16:
            total = ngram_sum_avx2(key, n_bytes, model.order, model.split_byte, model.index_shift, TAKE_INT4,
                                   model.data, &m)
        else:
            total = ngram_walk(key, n_bytes, model.order, model.split_byte, model.index_shift, model.low, TAKE_INT4,
                               model.data, NULL, &m)
        return model.bias + total - 8 * <int32_t>m
    if model.kind == MODEL_NONE:
        return 0
    if model.forest != NULL and model.view == VIEW_LEXICAL and forest_sum_of_key(
            model.forest, key, n_bytes, model.split_byte, model.needed, model.lexical, &total):
        return model.bias + total
    model_values(model, key, n_bytes, values)
    return model_sum(model, values)


cdef class Scorer:
    cdef Model model
    cdef bytearray derived               # what model points to besides the buffer, or None
    cdef uint64_t[10] numbers
    cdef Export taken
    cdef bint has_buffer
