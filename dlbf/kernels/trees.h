/* The sum over compiled trees; their layout is in scoring.pxd.
 *
 * Two ways, one sum.  A *forest* answers by bits: number the leaves of a tree from left to right, and a test that sends a
 * key to the right rules out the leaves to its left; the first leaf that no test rules out is where the walk would end
 * (Lucchese et al., "QuickScorer", SIGIR 2015).  What all tests of one value rule out depends only on how many of its thresholds
 * the value exceeds, so there is a row of masks, one per tree, for each such number; a score is the meet of
 * one row per value, without a branch.  Forests are made when a model is opened, never stored.
 *
 * Trees of more than 64 leaves, and those whose rows would take more than DLBF_FOREST_BYTES, are walked: four at a time, and one
 * that has come to a leaf stays there until all four have: the end of a walk cannot be foreseen, that of the longest
 * of four costs a quarter as much, and the walks overlap.  In C, because the step must be a conditional move.
 */
#ifndef DLBF_TREES_H
#define DLBF_TREES_H

#include <stdlib.h>

#include "lexical_simd.h"

#define DLBF_NODE_BYTES 6
#define DLBF_LEAF 255
#define DLBF_TREE_LANES 4

#define DLBF_FOREST_BYTES (256u << 10)
#define DLBF_FOREST_LEAVES 64
/* A row is a whole number of blocks, and rows are counted in blocks. */
#define DLBF_BLOCK_BYTES 32
#define DLBF_CHUNK_BYTES 128
/* Of a value whose thresholds stay below this the rank is looked up, of others it is searched. */
#define DLBF_DIRECT_THRESHOLDS 512

typedef struct {
    uint32_t n_trees, mask_bytes, row_blocks, n_used, n_searched;
    uint32_t rows_at, ranks_at, thresholds_at, leaves_at, n_bytes; /* in bytes from the struct's begin */
    /* ranks[base[v] + min(x, cap[v])] is the row of value v; if it is searched, ranks[base[v] + thresholds below x]. */
    uint16_t base[DLBF_ROOM_VALUES], cap[DLBF_ROOM_VALUES];
    uint32_t first_threshold[DLBF_ROOM_VALUES], n_thresholds[DLBF_ROOM_VALUES];
    uint8_t used[DLBF_ROOM_VALUES], searched[DLBF_ROOM_VALUES];
} dlbf_forest;

#define DLBF_TEST(value, threshold) ((uint32_t)(value) << 16 | (uint32_t)(threshold))

typedef struct {
    uint32_t *tests; /* of all trees, while the forest is planned */
    size_t n_tests, room;
    const dlbf_forest *forest; /* else NULL: its rows and leaves are filled */
    uint8_t *rows;
    int16_t *leaves;
    const uint16_t *thresholds;
    uint32_t tree;
} dlbf_visit;

/* How many of sorted `thresholds` are below x.  The halving has a fixed number of steps, and none is a branch. */
static inline uint32_t dlbf_rank(const uint16_t *thresholds, uint32_t n, uint32_t x) {
    const uint16_t *first = thresholds;
    while (n > 1) {
        const uint32_t half = n / 2;
        first += half & (0u - (uint32_t)(first[half - 1] < x));
        n -= half;
    }
    return (uint32_t)(first - thresholds) + (n == 1 && *first < x);
}

/* Visit a tree from left to right; the number of leaves up to its end, or more than DLBF_FOREST_LEAVES if it cannot be had.
 * `pending` subtrees to the right have a leaf each at least, which bounds the depth and the time whatever the nodes say. */
static inline uint32_t dlbf_visit_node(dlbf_visit *visit, const uint8_t *first, uint32_t node, uint32_t leaf,
                                       uint32_t pending) {
    const uint8_t *at = first + DLBF_NODE_BYTES * (size_t)node;
    const uint32_t packed = dlbf_load32(at);
    uint32_t middle, end;
    if (leaf + pending >= DLBF_FOREST_LEAVES) return DLBF_FOREST_LEAVES + 1;
    if (at[4] == DLBF_LEAF) {
        if (visit->forest != NULL)
            visit->leaves[(size_t)visit->tree * 8 * visit->forest->mask_bytes + leaf] = (int16_t)(packed & 0xFFFFu);
        return leaf + 1;
    }
    middle = dlbf_visit_node(visit, first, packed >> 16, leaf, pending + 1);
    if (middle > DLBF_FOREST_LEAVES) return middle;
    end = dlbf_visit_node(visit, first, (packed >> 16) + 1, middle, pending);
    if (end > DLBF_FOREST_LEAVES) return end;
    if (visit->forest == NULL) {
        if (visit->n_tests == visit->room) return DLBF_FOREST_LEAVES + 1;
        visit->tests[visit->n_tests++] = DLBF_TEST(at[4], packed & 0xFFFFu);
    } else {
        /* Leaves `leaf` to `middle` - 1 are ruled out from the row on that stands for exceeding this threshold. */
        const dlbf_forest *f = visit->forest;
        const uint16_t *ranks = (const uint16_t *)((const uint8_t *)f + f->ranks_at);
        const uint32_t value = at[4];
        const uint32_t below =
            dlbf_rank(visit->thresholds + f->first_threshold[value], f->n_thresholds[value], packed & 0xFFFFu);
        /* Rows of one value follow each other, and its first rank is that of the least x, which exceeds nothing. */
        uint8_t *row = visit->rows + DLBF_BLOCK_BYTES * (size_t)(ranks[f->base[value]] + f->row_blocks * (below + 1));
        uint8_t *mask = row + (size_t)visit->tree * f->mask_bytes;
        uint64_t bits = 0;
        memcpy(&bits, mask, f->mask_bytes); /* the low bytes; on a big-endian machine there is no forest */
        bits &= ~(((middle < 64 ? 1ull << middle : 0) - 1) & ~((1ull << leaf) - 1));
        memcpy(mask, &bits, f->mask_bytes);
    }
    return end;
}

static int dlbf_compare_tests(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Lay out the forest of a checked payload of `n_nodes` nodes; `scratch` has room for as many tests.  Returns the bytes it
 * needs, or 0 if the trees are to be walked.  What is kept in `scratch` until dlbf_fill_forest are the tests in order. */
static inline size_t dlbf_plan_forest(dlbf_forest *f, const uint8_t *payload, uint32_t n_trees, size_t n_nodes,
                                      uint32_t *scratch) {
    const uint8_t *nodes = payload + 4 * (size_t)n_trees;
    dlbf_visit visit;
    uint32_t most = 0, n_ranks = 0, n_rows = 0, n_thresholds = 0;
    uint64_t total;
    size_t i;
    memset(f, 0, sizeof *f);
    memset(&visit, 0, sizeof visit);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return 0;
#endif
    if (n_trees == 0 || 2 * (uint64_t)n_trees > DLBF_FOREST_BYTES) return 0;
    visit.tests = scratch;
    visit.room = n_nodes;
    for (i = 0; i < n_trees; i++) {
        const uint32_t n = dlbf_visit_node(&visit, nodes + DLBF_NODE_BYTES * (size_t)dlbf_load32(payload + 4 * i), 0, 0, 0);
        if (n > DLBF_FOREST_LEAVES) return 0;
        most = n > most ? n : most;
    }
    qsort(scratch, visit.n_tests, sizeof *scratch, dlbf_compare_tests);
    f->n_trees = n_trees;
    f->mask_bytes = most <= 16 ? 2 : most <= 32 ? 4 : 8;
    f->row_blocks = (n_trees * f->mask_bytes + DLBF_BLOCK_BYTES - 1) / DLBF_BLOCK_BYTES;
    for (i = 0; i < visit.n_tests;) {
        const uint32_t value = scratch[i] >> 16;
        uint32_t top = 0;
        f->first_threshold[value] = n_thresholds;
        for (; i < visit.n_tests && scratch[i] >> 16 == value; i++) {
            if (n_thresholds > f->first_threshold[value] && top == (scratch[i] & 0xFFFFu)) continue;
            top = scratch[i] & 0xFFFFu;
            scratch[n_thresholds++] = scratch[i];
        }
        f->n_thresholds[value] = n_thresholds - f->first_threshold[value];
        n_rows += f->n_thresholds[value] + 1;
        if ((uint64_t)n_rows * f->row_blocks * DLBF_BLOCK_BYTES > DLBF_FOREST_BYTES) return 0;
        f->base[value] = (uint16_t)n_ranks;
        f->used[f->n_used++] = (uint8_t)value;
        if (top < DLBF_DIRECT_THRESHOLDS) {
            f->cap[value] = (uint16_t)(top + 1);
            n_ranks += top + 2;
        } else {
            f->searched[f->n_searched++] = (uint8_t)value;
            n_ranks += f->n_thresholds[value] + 1;
        }
    }
    total = (sizeof *f + 63) / 64 * 64;
    f->rows_at = (uint32_t)total;
    total += (uint64_t)n_rows * f->row_blocks * DLBF_BLOCK_BYTES;
    f->ranks_at = (uint32_t)total;
    total += 2 * (uint64_t)n_ranks;
    f->thresholds_at = (uint32_t)total;
    total += 2 * (uint64_t)n_thresholds;
    f->leaves_at = (uint32_t)total;
    total += (uint64_t)n_trees * 16 * f->mask_bytes;
    f->n_bytes = (uint32_t)total;
    return total > DLBF_FOREST_BYTES ? 0 : (size_t)total;
}

/* Fill what dlbf_plan_forest has laid out: `out` has plan->n_bytes bytes and is aligned to a block. */
static inline void dlbf_fill_forest(uint8_t *out, const dlbf_forest *plan, const uint8_t *payload,
                                    const uint32_t *scratch) {
    const uint8_t *nodes = payload + 4 * (size_t)plan->n_trees;
    const size_t row_bytes = DLBF_BLOCK_BYTES * (size_t)plan->row_blocks;
    uint16_t *ranks = (uint16_t *)(out + plan->ranks_at), *thresholds = (uint16_t *)(out + plan->thresholds_at);
    uint8_t *rows = out + plan->rows_at;
    dlbf_visit visit;
    uint32_t i, k, x, row = 0, n_thresholds = 0;
    memset(out, 0, plan->n_bytes);
    memcpy(out, plan, sizeof *plan);
    memset(rows, 0xFF, plan->ranks_at - plan->rows_at);
    for (i = 0; i < plan->n_used; i++) {
        const uint32_t value = plan->used[i], n = plan->n_thresholds[value];
        for (k = 0; k < n; k++) thresholds[n_thresholds + k] = (uint16_t)(scratch[n_thresholds + k] & 0xFFFFu);
        if (plan->cap[value])
            for (x = k = 0; x <= plan->cap[value]; x++) {
                while (k < n && thresholds[n_thresholds + k] < x) k++;
                ranks[plan->base[value] + x] = (uint16_t)((row + k) * plan->row_blocks);
            }
        else
            for (k = 0; k <= n; k++) ranks[plan->base[value] + k] = (uint16_t)((row + k) * plan->row_blocks);
        row += n + 1;
        n_thresholds += n;
    }
    memset(&visit, 0, sizeof visit);
    visit.forest = (const dlbf_forest *)out;
    visit.rows = rows;
    visit.leaves = (int16_t *)(out + plan->leaves_at);
    visit.thresholds = thresholds;
    for (i = 0; i < plan->n_trees; i++) {
        visit.tree = i;
        dlbf_visit_node(&visit, nodes + DLBF_NODE_BYTES * (size_t)dlbf_load32(payload + 4 * (size_t)i), 0, 0, 0);
    }
    for (i = row = 0; i < plan->n_used; i++) {
        const uint32_t n = plan->n_thresholds[plan->used[i]];
        for (k = 1; k <= n; k++) {
            const uint64_t *before = (const uint64_t *)(rows + (row + k - 1) * row_bytes);
            uint64_t *after = (uint64_t *)(rows + (row + k) * row_bytes);
            for (x = 0; x < row_bytes / 8; x++) after[x] &= before[x];
        }
        row += n + 1;
    }
}

/* The meet of one row per value, in up to four blocks from `rows` on. */
#define DLBF_MEET_ROWS(blocks)                                                                           \
    do {                                                                                                 \
        uint64_t meet[4 * (blocks)];                                                                     \
        memset(meet, 0xFF, sizeof meet);                                                                 \
        for (j = 0; j < f->n_used; j++) {                                                                \
            const uint64_t *row = (const uint64_t *)(rows + DLBF_BLOCK_BYTES * (size_t)ranks[at[f->used[j]]]); \
            for (i = 0; i < 4 * (blocks); i++) meet[i] &= row[i];                                        \
        }                                                                                                \
        memcpy(chunk, meet, sizeof meet);                                                                \
    } while (0)
/* The leaves that are left over in one chunk; a mask is never 0, for the leaf of the walk is in it. */
#define DLBF_TAKE_LEAVES(type, first_one, leaves_of_tree)                                              \
    for (; tree < end; tree++, leaves += (leaves_of_tree)) {                                            \
        type mask;                                                                                      \
        memcpy(&mask, masks, sizeof mask);                                                              \
        masks += sizeof mask;                                                                           \
        total += leaves[first_one(mask)];                                                               \
    }

#if defined(__GNUC__) || defined(__clang__)
#define DLBF_INLINE __attribute__((always_inline)) static inline
#define dlbf_first_one32(x) __builtin_ctz(x)
#define dlbf_first_one64(x) __builtin_ctzll(x)
#else
#define DLBF_INLINE static inline
static inline int dlbf_first_one64(uint64_t x) { return dlbf_popcount64(~x & (x - 1)); }
#define dlbf_first_one32(x) dlbf_first_one64(x)
#endif

/* No target of its own: it is compiled for that of its caller. */
DLBF_INLINE int32_t dlbf_forest_sum_any(const dlbf_forest *f, const uint16_t *values) {
    const uint8_t *base = (const uint8_t *)f, *rows = base + f->rows_at;
    const uint16_t *ranks = (const uint16_t *)(base + f->ranks_at);
    const int16_t *leaves = (const int16_t *)(base + f->leaves_at);
    const uint32_t in_chunk = DLBF_CHUNK_BYTES / f->mask_bytes;
    uint16_t at[DLBF_ROOM_VALUES];
    uint8_t chunk[DLBF_CHUNK_BYTES];
    int32_t total = 0;
    uint32_t i, j, tree = 0, left = f->row_blocks;
    for (i = 0; i < DLBF_ROOM_VALUES; i++) at[i] = (uint16_t)(f->base[i] + (values[i] < f->cap[i] ? values[i] : f->cap[i]));
    for (i = 0; i < f->n_searched; i++) {
        const uint32_t value = f->searched[i];
        at[value] = (uint16_t)(f->base[value] +
                               dlbf_rank((const uint16_t *)(base + f->thresholds_at) + f->first_threshold[value],
                                         f->n_thresholds[value], values[value]));
    }
    for (;;) {
        const uint32_t end = f->n_trees - tree < in_chunk ? f->n_trees : tree + in_chunk;
        const uint8_t *masks = chunk;
        if (left >= 4)
            DLBF_MEET_ROWS(4);
        else if (left == 3)
            DLBF_MEET_ROWS(3);
        else if (left == 2)
            DLBF_MEET_ROWS(2);
        else
            DLBF_MEET_ROWS(1);
        if (f->mask_bytes == 2)
            DLBF_TAKE_LEAVES(uint16_t, dlbf_first_one32, 16)
        else if (f->mask_bytes == 4)
            DLBF_TAKE_LEAVES(uint32_t, dlbf_first_one32, 32)
        else
            DLBF_TAKE_LEAVES(uint64_t, dlbf_first_one64, 64)
        if (left <= 4) return total;
        left -= 4;
        rows += DLBF_CHUNK_BYTES;
    }
}
#undef DLBF_MEET_ROWS
#undef DLBF_TAKE_LEAVES

#if DLBF_HAVE_AVX2
DLBF_AVX2 static int32_t dlbf_forest_sum_avx2(const dlbf_forest *f, const uint16_t *values) {
    return dlbf_forest_sum_any(f, values);
}
#endif
static inline int32_t dlbf_forest_sum(const dlbf_forest *f, int way, const uint16_t *values) {
#if DLBF_HAVE_AVX2
    if (way) return dlbf_forest_sum_avx2(f, values);
#endif
    (void)way;
    return dlbf_forest_sum_any(f, values);
}

/* `payload` has been checked.  `values` are DLBF_ROOM_VALUES: a leaf asks for one beyond those there are. */
static inline int32_t dlbf_trees_sum(const uint8_t *payload, uint32_t n_trees, const uint16_t *values) {
    const uint8_t *nodes = payload + 4 * (size_t)n_trees;
    int32_t total = 0;
    uint32_t tree = 0;
    int i;
    for (; tree + DLBF_TREE_LANES <= n_trees; tree += DLBF_TREE_LANES) {
        size_t first[DLBF_TREE_LANES], at[DLBF_TREE_LANES];
        uint32_t live;
        for (i = 0; i < DLBF_TREE_LANES; i++)
            at[i] = first[i] = DLBF_NODE_BYTES * (size_t)dlbf_load32(payload + 4 * (size_t)(tree + (uint32_t)i));
        do {
            live = 0;
            for (i = 0; i < DLBF_TREE_LANES; i++) {
                const uint8_t *node = nodes + at[i];
                const uint32_t packed = dlbf_load32(node), value = node[4], inner = value != DLBF_LEAF;
                const size_t child = (packed >> 16) + (values[value & 31u] > (packed & 0xFFFFu));
                live |= inner;
                at[i] = inner ? first[i] + DLBF_NODE_BYTES * child : at[i];
            }
        } while (live);
        for (i = 0; i < DLBF_TREE_LANES; i++) total += (int16_t)(dlbf_load32(nodes + at[i]) & 0xFFFFu);
    }
    for (; tree < n_trees; tree++) {
        const uint8_t *first = nodes + DLBF_NODE_BYTES * (size_t)dlbf_load32(payload + 4 * (size_t)tree), *node = first;
        while (node[4] != DLBF_LEAF) {
            const uint32_t packed = dlbf_load32(node);
            node = first + DLBF_NODE_BYTES * (size_t)((packed >> 16) + (values[node[4]] > (packed & 0xFFFFu)));
        }
        total += (int16_t)(dlbf_load32(node) & 0xFFFFu);
    }
    return total;
}
#endif
