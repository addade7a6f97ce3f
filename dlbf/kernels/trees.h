/* The sum over compiled trees; their layout is in scoring.pxd.
 *
 * Number the leaves of a tree from left to right: a test that sends a key to the right rules out the leaves to its left,
 * and the first leaf that no test rules out is where a walk would end (Lucchese et al., "QuickScorer", SIGIR 2015).  So all
 * tests can be asked in any order, without a branch.  A *forest* is trees laid out for that when a model is
 * opened, in one of two ways; it is never stored.
 *
 *   Steps, with AVX-512, for trees of up to 16 leaves whose thresholds fit a byte: test number j of 64 half trees at once;
 *   and, if they are not too many, one test for 64 keys at once.
 *   Rows, else: what all tests of one value rule out depends only on how many of its thresholds the value exceeds, so there is a
 *   row of masks, one per tree, for each such number, and a score is the meet of one row per value.
 *
 * Trees of more than 64 leaves, and those that would take more than DLBF_FOREST_BYTES, are walked: four at a time, and one
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

/* Steps: 64 trees are a group, and a tree is two units of up to eight leaves, a lane each.  The first steps are those of
 * all first units and, in the lanes that are left, of some second units; the second steps are those of the other second
 * units, in 32 lanes if that is enough.  A test that rules out leaves of both units is asked in both: few do, since either
 * side of a test can be the left one.  For that there are 64 values: number 32 + v is 255 - v, and exceeds 254 - t if v does
 * not exceed t. */
#define DLBF_GROUP_TREES 64
#define DLBF_GROUP_LEAVES 16
#define DLBF_UNIT_LEAVES 8
#define DLBF_NO_THRESHOLD 255 /* no byte exceeds it */
/* By lane: the value, the threshold, and the leaves that are ruled out. */
#define DLBF_STEP_BYTES(lanes) (3 * (lanes))
/* The leaves of eight trees: their lower bytes, and then their upper ones plus 128. */
#define DLBF_PLANE_BYTES (8 * DLBF_GROUP_LEAVES)
/* Besides, for 64 keys at once, what steps ask, turned over: every distinct test gives a mask of keys, and the leaves
 * that a test of a tree rules out are ruled out for the keys of its mask. */
#define DLBF_COLUMN_KEYS 64
#define DLBF_COLUMN_TESTS 1024 /* at most, as that many words are on the stack */
#define DLBF_COLUMN_TREES 256  /* at most, as bytes are summed in 16 bits */
typedef struct {
    uint16_t test_at;      /* in bytes, among the masks of the distinct tests */
    uint16_t rules_out_at; /* in bytes, in dlbf_columns.ranges; 0, where nothing is, if there is no test any more */
} dlbf_asked;
typedef struct {
    uint8_t ranges[DLBF_UNIT_LEAVES * DLBF_UNIT_LEAVES + 1][DLBF_COLUMN_KEYS]; /* 1 + 8 i + j: bits i to j, by key */
    uint16_t n_thresholds[2 * DLBF_ROOM_VALUES];                                /* by value */
    uint8_t thresholds[DLBF_COLUMN_TESTS];                                      /* of all values, one after the other */
    dlbf_asked asked[]; /* by tree: those of first_steps, then those of second_steps */
} dlbf_columns;

/* Values of 64 keys, a byte each: word i of eight[j] is values 8 j to 8 j + 7 of key i. */
typedef struct DLBF_ALIGNED {
    uint64_t eight[DLBF_ROOM_VALUES / 8][DLBF_COLUMN_KEYS];
} dlbf_key_words;

static inline uint32_t dlbf_second_lanes(uint32_t n_trees) { return n_trees <= 32 ? 0 : n_trees <= 48 ? 32 : 64; }

/* Rows: whole blocks, which they are counted in; a chunk of them is met in registers. */
#define DLBF_BLOCK_BYTES 32
#define DLBF_CHUNK_BLOCKS 4
/* Of a value whose thresholds stay below this the row is looked up, of others it is searched. */
#define DLBF_DIRECT_THRESHOLDS 512

typedef struct {
    uint32_t n_trees, n_bytes;
    uint32_t leaves_at; /* this and all others are in bytes from the struct's begin */
    uint32_t first_steps, second_steps; /* per group; a forest of rows has none, and mask_bytes */
    uint32_t early_steps;               /* those of the first steps that ask for no longest run */
    uint32_t columns_at;                /* 0: none */
    uint32_t steps_at;
    uint32_t mask_bytes, row_blocks;
    uint32_t used, searched; /* bit v: value v is */
    uint32_t rows_at, ranks_at, thresholds_at;
    /* By value: ranks[base + min(x, cap)] is the row of x; or, if it is searched, ranks[base + thresholds below x]. */
    uint16_t base[DLBF_ROOM_VALUES], cap[DLBF_ROOM_VALUES];
    uint32_t first_threshold[DLBF_ROOM_VALUES], n_thresholds[DLBF_ROOM_VALUES];
} dlbf_forest;

/* One tree: its tests, each with the leaves [first, middle) that it rules out when the value exceeds the threshold. */
typedef struct {
    uint32_t n_leaves, n_tests;
    struct {
        uint16_t threshold;
        uint8_t value, first, middle;
    } tests[DLBF_FOREST_LEAVES - 1];
    int16_t leaves[DLBF_FOREST_LEAVES];
} dlbf_flat_tree;

/* The leaves of a subtree of a tree that could be flattened. */
static inline uint32_t dlbf_count_leaves(const uint8_t *tree, uint32_t node) {
    const uint8_t *at = tree + DLBF_NODE_BYTES * (size_t)node;
    const uint32_t left = dlbf_load32(at) >> 16;
    return at[4] == DLBF_LEAF ? 1 : dlbf_count_leaves(tree, left) + dlbf_count_leaves(tree, left + 1);
}
/* How many tests of a subtree of n leaves, which are numbered from `first`, must rule out leaves of both units; and whether
 * the right side of its own test is to be the left one for that, and so on down to where the units meet, a bit each. */
static inline uint32_t dlbf_in_both(const uint8_t *tree, uint32_t node, uint32_t n, uint32_t first, uint32_t *turns) {
    const uint32_t left = dlbf_load32(tree + DLBF_NODE_BYTES * (size_t)node) >> 16;
    uint32_t i, below, n_left, least = DLBF_GROUP_LEAVES;
    *turns = 0;
    if (first >= DLBF_UNIT_LEAVES || first + n <= DLBF_UNIT_LEAVES) return 0;
    n_left = dlbf_count_leaves(tree, left);
    for (i = 0; i < 2 && least; i++) {
        const uint32_t here = i ? n - n_left : n_left, middle = first + here;
        const uint32_t cost = middle > DLBF_UNIT_LEAVES ? 1 + dlbf_in_both(tree, left + i, here, first, &below)
                                                        : dlbf_in_both(tree, left + 1 - i, n - here, middle, &below);
        if (cost >= least) continue;
        least = cost;
        *turns = i | below << 1;
    }
    return least;
}

/* Flatten a subtree; 0 if there are too many leaves.  `pending` subtrees to the right have a leaf each at least, which
 * bounds the depth and the time whatever the nodes say.  `turns` as above if the units meet in this subtree, else NULL. */
static inline int dlbf_flatten_node(dlbf_flat_tree *flat, const uint8_t *tree, uint32_t node, uint32_t pending,
                                    uint32_t *turns) {
    const uint8_t *at = tree + DLBF_NODE_BYTES * (size_t)node;
    const uint32_t packed = dlbf_load32(at), first = flat->n_leaves;
    uint32_t i, turned = 0, *further = turns;
    if (first + pending >= DLBF_FOREST_LEAVES) return 0;
    if (at[4] == DLBF_LEAF) {
        flat->leaves[flat->n_leaves++] = (int16_t)(packed & 0xFFFFu);
        return 1;
    }
    if (turns != NULL) {
        turned = *turns & 1u;
        *turns >>= 1;
        if (first + dlbf_count_leaves(tree, (packed >> 16) + turned) <= DLBF_UNIT_LEAVES) turns = NULL;
    }
    if (!dlbf_flatten_node(flat, tree, (packed >> 16) + turned, pending + 1, turns)) return 0;
    i = flat->n_tests++;
    flat->tests[i].threshold = (uint16_t)(turned ? 254 - (packed & 0xFFFFu) : packed & 0xFFFFu);
    flat->tests[i].value = (uint8_t)(at[4] + DLBF_ROOM_VALUES * turned);
    flat->tests[i].first = (uint8_t)first;
    flat->tests[i].middle = (uint8_t)flat->n_leaves;
    if (flat->n_leaves >= DLBF_UNIT_LEAVES) further = NULL;
    return dlbf_flatten_node(flat, tree, (packed >> 16) + 1 - turned, pending, further);
}
/* `for_steps` only if there are no more leaves than steps take, and no larger threshold. */
static inline int dlbf_flatten(dlbf_flat_tree *flat, const uint8_t *payload, uint32_t n_trees, uint32_t tree,
                               int for_steps) {
    const uint8_t *nodes =
        payload + 4 * (size_t)n_trees + DLBF_NODE_BYTES * (size_t)dlbf_load32(payload + 4 * (size_t)tree);
    uint32_t turns = 0, n = for_steps ? dlbf_count_leaves(nodes, 0) : 0;
    flat->n_leaves = flat->n_tests = 0;
    if (for_steps) dlbf_in_both(nodes, 0, n, 0, &turns);
    return dlbf_flatten_node(flat, nodes, 0, 0, n > DLBF_UNIT_LEAVES ? &turns : NULL);
}
/* All leaves but those that test i rules out. */
static inline uint64_t dlbf_left_over(const dlbf_flat_tree *flat, uint32_t i) {
    return ~(((1ull << flat->tests[i].middle) - 1) & ~((1ull << flat->tests[i].first) - 1));
}

static int dlbf_compare_tests(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Where each part of rows is, from the tests of all trees (value << 16 | threshold), which are put in order; 0: too large. */
static inline uint64_t dlbf_plan_rows(dlbf_forest *f, uint32_t most_leaves, uint32_t *tests, size_t n_tests) {
    uint32_t n_ranks = 0, n_rows = 0, n_thresholds = 0;
    uint64_t total = f->n_bytes;
    size_t i;
    qsort(tests, n_tests, sizeof *tests, dlbf_compare_tests);
    f->mask_bytes = most_leaves <= 16 ? 2 : most_leaves <= 32 ? 4 : 8;
    f->row_blocks = (f->n_trees * f->mask_bytes + DLBF_BLOCK_BYTES - 1) / DLBF_BLOCK_BYTES;
    for (i = 0; i < n_tests;) {
        const uint32_t value = tests[i] >> 16, first = n_thresholds;
        uint32_t top = 0;
        for (; i < n_tests && tests[i] >> 16 == value; i++) {
            if (n_thresholds > first && top == (tests[i] & 0xFFFFu)) continue;
            top = tests[i] & 0xFFFFu;
            tests[n_thresholds++] = tests[i];
        }
        f->used |= 1u << value;
        f->first_threshold[value] = first;
        f->n_thresholds[value] = n_thresholds - first;
        n_rows += n_thresholds - first + 1;
        if ((uint64_t)n_rows * f->row_blocks * DLBF_BLOCK_BYTES > DLBF_FOREST_BYTES) return 0;
        f->base[value] = (uint16_t)n_ranks;
        if (top < DLBF_DIRECT_THRESHOLDS) {
            f->cap[value] = (uint16_t)(top + 1);
            n_ranks += top + 2;
        } else {
            f->searched |= 1u << value;
            n_ranks += n_thresholds - first + 1;
        }
    }
    f->rows_at = (uint32_t)total;
    total += (uint64_t)n_rows * f->row_blocks * DLBF_BLOCK_BYTES;
    f->ranks_at = (uint32_t)total;
    total += 2 * (uint64_t)n_ranks;
    f->thresholds_at = (uint32_t)total;
    total += 2 * (uint64_t)n_thresholds;
    f->leaves_at = (uint32_t)total;
    return total + (uint64_t)f->n_trees * 16 * f->mask_bytes;
}

/* Whether test k rules out leaves of the first unit, or of the second one; and whether it asks for a longest run. */
static inline int dlbf_concerns(const dlbf_flat_tree *flat, uint32_t k, int second) {
    return second ? flat->tests[k].middle > DLBF_UNIT_LEAVES : flat->tests[k].first < DLBF_UNIT_LEAVES;
}
static inline int dlbf_is_late(const dlbf_flat_tree *flat, uint32_t k) {
    return (DLBF_LONGEST_RUNS >> (flat->tests[k].value % DLBF_ROOM_VALUES)) & 1u;
}

/* Where each part of steps is. */
static inline uint64_t dlbf_plan_steps(dlbf_forest *f, const uint8_t *payload, size_t n_tests) {
    const uint32_t n_whole = f->n_trees / DLBF_GROUP_TREES, rest = f->n_trees % DLBF_GROUP_TREES;
    dlbf_flat_tree flat;
    uint64_t total = f->n_bytes;
    uint32_t i, k, most_late = 0;
    int second;
    for (i = 0; i < f->n_trees; i++) {
        dlbf_flatten(&flat, payload, f->n_trees, i, 1);
        for (second = 0; second < 2; second++) {
            uint32_t n = 0, late = 0;
            for (k = 0; k < flat.n_tests; k++)
                if (dlbf_concerns(&flat, k, second)) {
                    n++;
                    late += (uint32_t)dlbf_is_late(&flat, k);
                }
            f->first_steps = n > f->first_steps ? n : f->first_steps;
            if (second) f->second_steps = n > f->second_steps ? n : f->second_steps;
            most_late = late > most_late ? late : most_late;
        }
    }
    f->early_steps = f->first_steps - most_late;
    f->steps_at = (uint32_t)total;
    total += (uint64_t)(n_whole + (rest != 0)) * f->first_steps * DLBF_STEP_BYTES(64);
    total += (uint64_t)n_whole * f->second_steps * DLBF_STEP_BYTES(64);
    total += (uint64_t)f->second_steps * DLBF_STEP_BYTES(dlbf_second_lanes(rest));
    f->leaves_at = (uint32_t)((total + 63) / 64 * 64);
    total = f->leaves_at + (uint64_t)(f->n_trees + 7) / 8 * 2 * DLBF_PLANE_BYTES;
    if (n_tests > DLBF_COLUMN_TESTS || f->n_trees > DLBF_COLUMN_TREES) return total;
    f->columns_at = (uint32_t)total;
    return total + sizeof(dlbf_columns) + (uint64_t)f->n_trees * (f->first_steps + f->second_steps) * sizeof(dlbf_asked);
}

/* Lay out the forest of a checked payload of `n_nodes` nodes; `scratch` has room for as many tests, and is kept until
 * dlbf_fill_forest.  Returns the bytes it needs, or 0 if the trees are to be walked. */
static inline size_t dlbf_plan_forest(dlbf_forest *f, int way, const uint8_t *payload, uint32_t n_trees, size_t n_nodes,
                                      uint32_t *scratch) {
    dlbf_flat_tree flat;
    uint32_t i, k, most_leaves = 0, top = 0;
    uint64_t total;
    size_t n_tests = 0;
    memset(f, 0, sizeof *f);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return 0; /* masks are written as bytes and read as words */
#endif
    if (n_trees == 0 || 2 * (uint64_t)n_trees > DLBF_FOREST_BYTES) return 0;
    for (i = 0; i < n_trees; i++) {
        /* Nodes with two parents would be tests of two places, and might be more than there is room for. */
        if (!dlbf_flatten(&flat, payload, n_trees, i, 0) || flat.n_tests > n_nodes - n_tests) return 0;
        most_leaves = flat.n_leaves > most_leaves ? flat.n_leaves : most_leaves;
        for (k = 0; k < flat.n_tests; k++) {
            scratch[n_tests++] = (uint32_t)flat.tests[k].value << 16 | flat.tests[k].threshold;
            top = flat.tests[k].threshold > top ? flat.tests[k].threshold : top;
        }
    }
    f->n_trees = n_trees;
    f->n_bytes = (sizeof *f + 63) / 64 * 64;
    if (way == DLBF_LEXICAL_AVX512 && most_leaves <= DLBF_GROUP_LEAVES && top < DLBF_NO_THRESHOLD) {
        total = dlbf_plan_steps(f, payload, n_tests);
    } else {
        total = dlbf_plan_rows(f, most_leaves, scratch, n_tests);
    }
    if (total > DLBF_FOREST_BYTES) return 0;
    f->n_bytes = (uint32_t)total;
    return (size_t)total;
}

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

/* Write a unit's tests into its lane of so many steps, those that ask for longest runs from the end. */
static inline void dlbf_fill_unit(uint8_t *steps, uint32_t n_steps, uint32_t lanes, uint32_t lane,
                                  const dlbf_flat_tree *flat, int second) {
    uint32_t k, next = 0, end = n_steps;
    for (k = 0; k < flat->n_tests; k++) {
        uint8_t *step;
        if (!dlbf_concerns(flat, k, second)) continue;
        step = steps + (size_t)DLBF_STEP_BYTES(lanes) * (dlbf_is_late(flat, k) ? --end : next++);
        step[lane] = flat->tests[k].value;
        step[lanes + lane] = (uint8_t)flat->tests[k].threshold;
        step[2 * lanes + lane] = (uint8_t)(~dlbf_left_over(flat, k) >> (second ? DLBF_UNIT_LEAVES : 0));
    }
}
static inline void dlbf_fill_steps(dlbf_forest *f, const uint8_t *payload) {
    uint8_t *step = (uint8_t *)f + f->steps_at, *leaves = (uint8_t *)f + f->leaves_at;
    dlbf_flat_tree flat;
    uint32_t done, i, k;
    for (done = 0; done < f->n_trees; done += DLBF_GROUP_TREES) {
        const uint32_t n = f->n_trees - done < DLBF_GROUP_TREES ? f->n_trees - done : DLBF_GROUP_TREES;
        const uint32_t lanes = dlbf_second_lanes(n);
        uint8_t *second = step + (size_t)f->first_steps * DLBF_STEP_BYTES(64);
        for (k = 0; k < f->first_steps; k++) memset(step + DLBF_STEP_BYTES(64) * k + 64, DLBF_NO_THRESHOLD, 64);
        for (k = 0; k < f->second_steps; k++)
            memset(second + DLBF_STEP_BYTES(lanes) * k + lanes, DLBF_NO_THRESHOLD, lanes);
        for (i = 0; i < n; i++) {
            dlbf_flatten(&flat, payload, f->n_trees, done + i, 1);
            dlbf_fill_unit(step, f->first_steps, 64, i, &flat, 0);
            if (n + i < 64)
                dlbf_fill_unit(step, f->first_steps, 64, n + i, &flat, 1);
            else
                dlbf_fill_unit(second, f->second_steps, lanes, n + i - 64, &flat, 1);
            for (k = 0; k < flat.n_leaves; k++) {
                uint8_t *plane = leaves + (size_t)((done + i) / 8) * 2 * DLBF_PLANE_BYTES;
                const uint32_t place = (i % 8) * DLBF_GROUP_LEAVES + k;
                plane[place] = (uint8_t)(uint16_t)flat.leaves[k];
                plane[DLBF_PLANE_BYTES + place] = (uint8_t)(((uint16_t)flat.leaves[k] >> 8) + 128);
            }
        }
        step = second + (size_t)f->second_steps * DLBF_STEP_BYTES(lanes);
    }
}

static inline void dlbf_fill_columns(dlbf_forest *f, const uint8_t *payload) {
    dlbf_columns *columns = (dlbf_columns *)((uint8_t *)f + f->columns_at);
    uint16_t test_at[2 * DLBF_ROOM_VALUES][256]; /* 1 at first, if there is such a test */
    dlbf_flat_tree flat;
    uint32_t i, k, n = 0;
    memset(test_at, 0, sizeof test_at);
    for (i = 0; i < f->n_trees; i++) {
        dlbf_flatten(&flat, payload, f->n_trees, i, 1);
        for (k = 0; k < flat.n_tests; k++) test_at[flat.tests[k].value][flat.tests[k].threshold] = 1;
    }
    for (i = 0; i < 2 * DLBF_ROOM_VALUES; i++)
        for (k = 0; k < 256; k++) {
            if (!test_at[i][k]) continue;
            test_at[i][k] = (uint16_t)(n * sizeof(uint64_t));
            columns->thresholds[n++] = (uint8_t)k;
            columns->n_thresholds[i]++;
        }
    for (i = 0; i < DLBF_UNIT_LEAVES; i++)
        for (k = i; k < DLBF_UNIT_LEAVES; k++)
            memset(columns->ranges[1 + DLBF_UNIT_LEAVES * i + k], (int)((2u << k) - (1u << i)), DLBF_COLUMN_KEYS);
    for (i = 0; i < f->n_trees; i++) {
        dlbf_asked *asked[2];
        asked[0] = columns->asked + (size_t)i * (f->first_steps + f->second_steps);
        asked[1] = asked[0] + f->first_steps;
        dlbf_flatten(&flat, payload, f->n_trees, i, 1);
        for (k = 0; k < 2 * flat.n_tests; k++) {
            const uint32_t begin = k % 2 ? DLBF_UNIT_LEAVES : 0, end = begin + DLBF_UNIT_LEAVES;
            const uint32_t first = flat.tests[k / 2].first > begin ? flat.tests[k / 2].first : begin;
            const uint32_t middle = flat.tests[k / 2].middle < end ? flat.tests[k / 2].middle : end;
            if (!dlbf_concerns(&flat, k / 2, k % 2)) continue;
            asked[k % 2]->test_at = test_at[flat.tests[k / 2].value][flat.tests[k / 2].threshold];
            asked[k % 2]->rules_out_at =
                (uint16_t)((DLBF_UNIT_LEAVES * (first - begin) + middle - begin) * DLBF_COLUMN_KEYS);
            asked[k % 2]++;
        }
    }
}

static inline void dlbf_fill_rows(dlbf_forest *f, const uint8_t *payload, const uint32_t *tests) {
    uint8_t *base = (uint8_t *)f, *rows = base + f->rows_at;
    const size_t row_bytes = DLBF_BLOCK_BYTES * (size_t)f->row_blocks;
    uint16_t *ranks = (uint16_t *)(base + f->ranks_at), *thresholds = (uint16_t *)(base + f->thresholds_at);
    int16_t *leaves = (int16_t *)(base + f->leaves_at);
    uint32_t first_row[DLBF_ROOM_VALUES], v, i, k, x, n_rows = 0;
    dlbf_flat_tree flat;
    memset(rows, 0xFF, f->ranks_at - f->rows_at);
    for (v = 0; v < DLBF_ROOM_VALUES; v++) {
        const uint32_t n = f->n_thresholds[v];
        uint16_t *mine = thresholds + f->first_threshold[v];
        first_row[v] = n_rows;
        if (n == 0) continue; /* not used */
        for (k = 0; k < n; k++) mine[k] = (uint16_t)(tests[f->first_threshold[v] + k] & 0xFFFFu);
        if ((f->searched >> v) & 1u)
            for (k = 0; k <= n; k++) ranks[f->base[v] + k] = (uint16_t)((n_rows + k) * f->row_blocks);
        else
            for (x = 0; x <= f->cap[v]; x++)
                ranks[f->base[v] + x] = (uint16_t)((n_rows + dlbf_rank(mine, n, x)) * f->row_blocks);
        n_rows += n + 1;
    }
    for (i = 0; i < f->n_trees; i++) {
        dlbf_flatten(&flat, payload, f->n_trees, i, 0);
        for (k = 0; k < flat.n_tests; k++) {
            const uint32_t value = flat.tests[k].value;
            const uint32_t below =
                dlbf_rank(thresholds + f->first_threshold[value], f->n_thresholds[value], flat.tests[k].threshold);
            uint8_t *mask = rows + (first_row[value] + below + 1) * row_bytes + (size_t)i * f->mask_bytes;
            uint64_t bits = 0;
            memcpy(&bits, mask, f->mask_bytes);
            bits &= dlbf_left_over(&flat, k);
            memcpy(mask, &bits, f->mask_bytes);
        }
        memcpy(leaves + 8 * (size_t)f->mask_bytes * i, flat.leaves, flat.n_leaves * sizeof *leaves);
    }
    /* Who exceeds a threshold exceeds all smaller ones. */
    for (v = 0; v < DLBF_ROOM_VALUES; v++)
        for (k = 1; k <= f->n_thresholds[v]; k++) {
            const uint64_t *before = (const uint64_t *)(rows + (first_row[v] + k - 1) * row_bytes);
            uint64_t *after = (uint64_t *)(rows + (first_row[v] + k) * row_bytes);
            for (x = 0; x < row_bytes / 8; x++) after[x] &= before[x];
        }
}

/* Fill what dlbf_plan_forest has laid out: `out` has plan->n_bytes bytes, and is aligned to 64. */
static inline void dlbf_fill_forest(uint8_t *out, const dlbf_forest *plan, const uint8_t *payload,
                                    const uint32_t *scratch) {
    memset(out, 0, plan->n_bytes);
    memcpy(out, plan, sizeof *plan);
    if (plan->mask_bytes)
        dlbf_fill_rows((dlbf_forest *)out, payload, scratch);
    else {
        dlbf_forest *f = (dlbf_forest *)out;
        dlbf_fill_steps(f, payload);
        if (f->columns_at) dlbf_fill_columns(f, payload);
    }
}

#if defined(__GNUC__) || defined(__clang__)
typedef uint64_t dlbf_block __attribute__((vector_size(DLBF_BLOCK_BYTES), may_alias));
#define DLBF_MEET(x, y) ((x) & (y))
#define dlbf_first_one(x) __builtin_ctzll(x)
#else
typedef struct {
    uint64_t words[DLBF_BLOCK_BYTES / 8];
} dlbf_block;
static inline dlbf_block dlbf_meet(dlbf_block x, dlbf_block y) {
    int i;
    for (i = 0; i < DLBF_BLOCK_BYTES / 8; i++) x.words[i] &= y.words[i];
    return x;
}
#define DLBF_MEET(x, y) dlbf_meet(x, y)
static inline int dlbf_first_one(uint64_t x) { return dlbf_popcount64(~x & (x - 1)); }
#endif

/* The meet of one row per value, in up to four blocks.  `blocks` is a constant, so the meet stays in registers. */
DLBF_INLINE void dlbf_meet_rows(const uint8_t *rows, const uint16_t *ranks, const uint16_t *at, uint32_t used,
                                uint32_t blocks, dlbf_block *out) {
    dlbf_block a, b, c, d;
    memset(&a, 0xFF, sizeof a);
    b = c = d = a;
    for (; used; used &= used - 1) {
        const dlbf_block *row = (const dlbf_block *)(rows + DLBF_BLOCK_BYTES * (size_t)ranks[at[dlbf_first_one(used)]]);
        a = DLBF_MEET(a, row[0]);
        if (blocks > 1) b = DLBF_MEET(b, row[1]);
        if (blocks > 2) c = DLBF_MEET(c, row[2]);
        if (blocks > 3) d = DLBF_MEET(d, row[3]);
    }
    out[0] = a;
    if (blocks > 1) out[1] = b;
    if (blocks > 2) out[2] = c;
    if (blocks > 3) out[3] = d;
}

/* The leaves that are left over.  A mask is never 0, for the leaf of the walk is in it. */
#define DLBF_TAKE_LEAVES(type)                                                                         \
    do {                                                                                               \
        const type *mask = (const type *)chunk;                                                        \
        for (i = 0; i < n; i++, leaves += 8 * sizeof(type)) total += leaves[dlbf_first_one(mask[i])]; \
    } while (0)

/* The sum over a forest of rows.  No target of its own: it is compiled for that of its caller. */
DLBF_INLINE int32_t dlbf_rows_sum(const dlbf_forest *f, const uint16_t *values) {
    const uint8_t *base = (const uint8_t *)f, *rows = base + f->rows_at;
    const uint16_t *ranks = (const uint16_t *)(base + f->ranks_at);
    const uint16_t *thresholds = (const uint16_t *)(base + f->thresholds_at);
    const int16_t *leaves = (const int16_t *)(base + f->leaves_at);
    const uint32_t chunk_trees = DLBF_CHUNK_BLOCKS * DLBF_BLOCK_BYTES / f->mask_bytes;
    uint16_t at[DLBF_ROOM_VALUES];
    dlbf_block chunk[DLBF_CHUNK_BLOCKS];
    int32_t total = 0;
    uint32_t i, rest, done = 0, left = f->row_blocks;
    for (i = 0; i < DLBF_ROOM_VALUES; i++) at[i] = (uint16_t)(f->base[i] + (values[i] < f->cap[i] ? values[i] : f->cap[i]));
    for (rest = f->searched; rest; rest &= rest - 1) {
        const int v = dlbf_first_one(rest);
        at[v] = (uint16_t)(f->base[v] + dlbf_rank(thresholds + f->first_threshold[v], f->n_thresholds[v], values[v]));
    }
    for (;;) {
        const uint32_t n = f->n_trees - done < chunk_trees ? f->n_trees - done : chunk_trees;
        if (left == 3)
            dlbf_meet_rows(rows, ranks, at, f->used, 3, chunk);
        else if (left == 2)
            dlbf_meet_rows(rows, ranks, at, f->used, 2, chunk);
        else if (left == 1)
            dlbf_meet_rows(rows, ranks, at, f->used, 1, chunk);
        else
            dlbf_meet_rows(rows, ranks, at, f->used, DLBF_CHUNK_BLOCKS, chunk);
        if (f->mask_bytes == 2)
            DLBF_TAKE_LEAVES(uint16_t);
        else if (f->mask_bytes == 4)
            DLBF_TAKE_LEAVES(uint32_t);
        else
            DLBF_TAKE_LEAVES(uint64_t);
        if (left <= DLBF_CHUNK_BLOCKS) return total;
        left -= DLBF_CHUNK_BLOCKS;
        done += n;
        rows += DLBF_CHUNK_BLOCKS * DLBF_BLOCK_BYTES;
    }
}
#undef DLBF_MEET
#undef DLBF_TAKE_LEAVES

#if DLBF_HAVE_AVX2
DLBF_AVX2 static int32_t dlbf_rows_sum_avx2(const dlbf_forest *f, const uint16_t *values) {
    return dlbf_rows_sum(f, values);
}

/* The leaves that so many steps rule out.  Unrolled: each branch then always goes the same way. */
DLBF_AVX512 static inline __m512i dlbf_ask(const uint8_t *step, uint32_t n, __m512i values) {
    __m512i ruled_out = _mm512_setzero_si512();
    uint32_t k;
#pragma GCC unroll 15
    for (k = 0; k < DLBF_GROUP_LEAVES - 1; k++, step += DLBF_STEP_BYTES(64)) {
        __mmask64 exceeds;
        if (k == n) break;
        exceeds = _mm512_cmpgt_epu8_mask(_mm512_permutexvar_epi8(_mm512_load_si512(step), values),
                                         _mm512_load_si512(step + 64));
        ruled_out = _mm512_or_si512(ruled_out, _mm512_maskz_loadu_epi8(exceeds, step + 128));
    }
    return ruled_out;
}
DLBF_AVX512 static inline __m256i dlbf_ask_32(const uint8_t *step, uint32_t n, __m512i values) {
    __m256i ruled_out = _mm256_setzero_si256();
    uint32_t k;
#pragma GCC unroll 7
    for (k = 0; k < DLBF_UNIT_LEAVES - 1; k++, step += DLBF_STEP_BYTES(32)) {
        __m512i asked;
        if (k == n) break;
        asked = _mm512_permutexvar_epi8(_mm512_castsi256_si512(_mm256_load_si256((const __m256i *)step)), values);
        ruled_out = _mm256_or_si256(
            ruled_out, _mm256_maskz_loadu_epi8(_mm256_cmpgt_epu8_mask(_mm512_castsi512_si256(asked),
                                                                      _mm256_load_si256((const __m256i *)(step + 32))),
                                               step + 64));
    }
    return ruled_out;
}

/* How many ones each byte begins with, from the lowest bit on. */
DLBF_AVX512 static inline __m512i dlbf_first_zero(__m512i x) {
    return _mm512_popcnt_epi8(_mm512_andnot_si512(_mm512_add_epi8(x, _mm512_set1_epi8(1)), x));
}

/* Where walks end that rule out leaves of first and second units. */
DLBF_AVX512 static inline __m512i dlbf_exit_leaf(__m512i first, __m512i second) {
    const __m512i leaf = dlbf_first_zero(first);
    return _mm512_mask_add_epi8(leaf, _mm512_cmpeq_epi8_mask(first, _mm512_set1_epi8(-1)), leaf, dlbf_first_zero(second));
}

/* The sum of n leaves, one per tree, plus 2**15 each, in eight words. */
DLBF_AVX512 static inline __m512i dlbf_take_leaves(__m512i leaf, const uint8_t *leaves, uint32_t n) {
    const __m512i which = _mm512_or_si512(leaf, _mm512_set1_epi64(0x7060504030201000ll)), zero = _mm512_setzero_si512();
    __m512i lower = zero, upper = zero;
    /* Not merged into one register by a mask: each look-up would wait for the one before. */
#define DLBF_LOOK_UP(i, plane)                                                                                      \
    _mm512_maskz_permutex2var_epi8(0xFFull << 8 * (i), _mm512_load_si512(leaves + DLBF_PLANE_BYTES * (2 * (i) + (plane))), \
                                   which, _mm512_load_si512(leaves + DLBF_PLANE_BYTES * (2 * (i) + (plane)) + 64))
#define DLBF_EIGHT(i)                                                \
    if (n > 8 * (i)) {                                               \
        lower = _mm512_or_si512(lower, DLBF_LOOK_UP(i, 0));          \
        upper = _mm512_or_si512(upper, DLBF_LOOK_UP(i, 1));          \
    }
    DLBF_EIGHT(0)
    DLBF_EIGHT(1)
    DLBF_EIGHT(2)
    DLBF_EIGHT(3)
    DLBF_EIGHT(4)
    DLBF_EIGHT(5)
    DLBF_EIGHT(6)
    DLBF_EIGHT(7)
#undef DLBF_EIGHT
#undef DLBF_LOOK_UP
    return _mm512_add_epi64(_mm512_sad_epu8(lower, zero), _mm512_slli_epi64(_mm512_sad_epu8(upper, zero), 8));
}

/* The sum over a forest of steps; the values are in either half of `bytes`. */
DLBF_AVX512 static inline int32_t dlbf_steps_sum(const dlbf_forest *f, __m512i bytes, __m512i without_runs) {
    const uint8_t *step = (const uint8_t *)f + f->steps_at, *leaves = (const uint8_t *)f + f->leaves_at;
    const __m512i turn = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi8(-1), 1);
    const __m512i values = _mm512_xor_si512(bytes, turn), early = _mm512_xor_si512(without_runs, turn);
    const __m512i numbers = _mm512_set_epi8(
        63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43, 42, 41, 40, 39, 38, 37, 36, 35, 34, 33,
        32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i total = _mm512_setzero_si512();
    uint32_t n;
    for (n = f->n_trees;; n -= DLBF_GROUP_TREES, leaves += DLBF_GROUP_TREES / 8 * 2 * DLBF_PLANE_BYTES) {
        const uint32_t here = n < DLBF_GROUP_TREES ? n : DLBF_GROUP_TREES, lanes = dlbf_second_lanes(here);
        __m512i first = dlbf_ask(step, f->early_steps, early), second = _mm512_setzero_si512();
        step += (size_t)f->early_steps * DLBF_STEP_BYTES(64);
        first = _mm512_or_si512(first, dlbf_ask(step, f->first_steps - f->early_steps, values));
        step += (size_t)(f->first_steps - f->early_steps) * DLBF_STEP_BYTES(64);
        if (lanes == 32)
            second = _mm512_zextsi256_si512(dlbf_ask_32(step, f->second_steps, values));
        else if (lanes)
            second = dlbf_ask(step, f->second_steps, values);
        step += (size_t)f->second_steps * DLBF_STEP_BYTES(lanes);
        /* Tree i has its second unit in lane here + i of both registers. */
        second = _mm512_permutex2var_epi8(first, _mm512_add_epi8(numbers, _mm512_set1_epi8((char)here)), second);
        total = _mm512_add_epi64(total, dlbf_take_leaves(dlbf_exit_leaf(first, second), leaves, here));
        if (n <= DLBF_GROUP_TREES) return (int32_t)(_mm512_reduce_add_epi64(total) - ((int64_t)f->n_trees << 15));
    }
}
DLBF_AVX512 static int32_t dlbf_steps_sum_of(const dlbf_forest *f, const uint16_t *values) {
    /* A value beyond a byte exceeds every threshold there is, and so does 255. */
    const __m512i bytes = _mm512_broadcast_i64x4(_mm512_cvtusepi16_epi8(_mm512_loadu_si512(values)));
    return dlbf_steps_sum(f, bytes, bytes);
}
DLBF_AVX512 static int32_t dlbf_steps_sum_of_key(const dlbf_forest *f, const uint8_t *key, int32_t n, uint32_t split_byte,
                                                 uint32_t needed, const dlbf_lexical_tables *tables) {
    __m512i without_runs;
    const __m512i bytes = dlbf_lexical_bytes(key, n, split_byte, needed, tables, &without_runs);
    return dlbf_steps_sum(f, bytes, without_runs);
}

/* Eight registers of eight words, turned over. */
DLBF_AVX512 static inline void dlbf_turn_words(__m512i *a) {
    __m512i pairs[8], quads[8];
    int i;
#pragma GCC unroll 4
    for (i = 0; i < 4; i++) {
        pairs[i] = _mm512_unpacklo_epi64(a[2 * i], a[2 * i + 1]);
        pairs[4 + i] = _mm512_unpackhi_epi64(a[2 * i], a[2 * i + 1]);
    }
    /* Of words 0, 2, 4, 6 and then of words 1, 3, 5, 7: the four pairs, which are to be turned over in their turn. */
#pragma GCC unroll 2
    for (i = 0; i < 8; i += 4) {
        quads[i] = _mm512_shuffle_i64x2(pairs[i], pairs[i + 1], 0x44);
        quads[i + 1] = _mm512_shuffle_i64x2(pairs[i + 2], pairs[i + 3], 0x44);
        quads[i + 2] = _mm512_shuffle_i64x2(pairs[i], pairs[i + 1], 0xEE);
        quads[i + 3] = _mm512_shuffle_i64x2(pairs[i + 2], pairs[i + 3], 0xEE);
    }
#pragma GCC unroll 2
    for (i = 0; i < 2; i++) {
        a[i] = _mm512_shuffle_i64x2(quads[4 * i], quads[4 * i + 1], 0x88);
        a[2 + i] = _mm512_shuffle_i64x2(quads[4 * i], quads[4 * i + 1], 0xDD);
        a[4 + i] = _mm512_shuffle_i64x2(quads[4 * i + 2], quads[4 * i + 3], 0x88);
        a[6 + i] = _mm512_shuffle_i64x2(quads[4 * i + 2], quads[4 * i + 3], 0xDD);
    }
}

/* The leaves of a unit that n tests rule out, for 64 keys. */
DLBF_AVX512 static inline __m512i dlbf_ask_column(const dlbf_columns *columns, const dlbf_asked *asked, uint32_t n,
                                                  const uint64_t *exceeds) {
    __m512i ruled_out = _mm512_setzero_si512();
    uint32_t k;
#pragma GCC unroll 15
    for (k = 0; k < DLBF_GROUP_LEAVES - 1; k++) {
        if (k == n) break;
        ruled_out = _mm512_or_si512(ruled_out,
                                    _mm512_maskz_loadu_epi8(*(const uint64_t *)((const uint8_t *)exceeds + asked[k].test_at),
                                                            (const uint8_t *)columns + asked[k].rules_out_at));
    }
    return ruled_out;
}

/* Sums plus `bias` for 64 keys. */
DLBF_AVX512 static inline void dlbf_columns_sum(const dlbf_forest *f, const dlbf_key_words *words, int32_t bias,
                                                int32_t *out) {
    const dlbf_columns *columns = (const dlbf_columns *)((const uint8_t *)f + f->columns_at);
    const dlbf_asked *asked = columns->asked;
    const uint8_t *leaves = (const uint8_t *)f + f->leaves_at, *threshold = columns->thresholds;
    const __m512i low_bytes = _mm512_set1_epi16(255), all = _mm512_set1_epi8(-1);
    __m512i values[DLBF_ROOM_VALUES], lower[2], upper[2];
    uint64_t exceeds[DLBF_COLUMN_TESTS], *next = exceeds;
    uint32_t i, j, k;
    for (j = 0; j < 4; j++) {
        __m512i eight[8];
#pragma GCC unroll 8
        for (i = 0; i < 8; i++)
            eight[i] = dlbf_turn_bytes(_mm512_load_si512(words->eight[j] + 8 * i));
        dlbf_turn_words(eight);
#pragma GCC unroll 8
        for (i = 0; i < 8; i++) values[8 * j + i] = eight[i];
    }
    for (i = 0; i < 2 * DLBF_ROOM_VALUES; i++) {
        const __m512i value = i < DLBF_ROOM_VALUES ? values[i] : _mm512_xor_si512(values[i - DLBF_ROOM_VALUES], all);
        for (k = columns->n_thresholds[i]; k; k--)
            *next++ = _mm512_cmpgt_epu8_mask(value, _mm512_set1_epi8((char)*threshold++));
    }
    lower[0] = lower[1] = upper[0] = upper[1] = _mm512_setzero_si512();
    for (i = 0; i < f->n_trees; i++) {
        const uint8_t *plane = leaves + (size_t)(i / 8) * 2 * DLBF_PLANE_BYTES + (i % 8) * DLBF_GROUP_LEAVES;
        const __m512i low_plane = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)plane));
        const __m512i high_plane = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)(plane + DLBF_PLANE_BYTES)));
        const __m512i first = dlbf_ask_column(columns, asked, f->first_steps, exceeds);
        const __m512i second = dlbf_ask_column(columns, asked + f->first_steps, f->second_steps, exceeds);
        const __m512i leaf = dlbf_exit_leaf(first, second);
        const __m512i low = _mm512_shuffle_epi8(low_plane, leaf), high = _mm512_shuffle_epi8(high_plane, leaf);
        asked += f->first_steps + f->second_steps;
        lower[0] = _mm512_add_epi16(lower[0], _mm512_and_si512(low, low_bytes));
        lower[1] = _mm512_add_epi16(lower[1], _mm512_srli_epi16(low, 8));
        upper[0] = _mm512_add_epi16(upper[0], _mm512_and_si512(high, low_bytes));
        upper[1] = _mm512_add_epi16(upper[1], _mm512_srli_epi16(high, 8));
    }
    /* The sums of even keys and those of odd ones are apart; first the lower 32 keys, then the upper ones. */
    for (i = 0; i < 2; i++) {
        const __m512i start = _mm512_set1_epi32(bias - (int32_t)(f->n_trees << 15));
        const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        const __m512i next = _mm512_add_epi32(first, _mm512_set1_epi32(8));
        __m512i sums[2];
        for (k = 0; k < 2; k++) {
            const __m256i l = i ? _mm512_extracti64x4_epi64(lower[k], 1) : _mm512_castsi512_si256(lower[k]);
            const __m256i u = i ? _mm512_extracti64x4_epi64(upper[k], 1) : _mm512_castsi512_si256(upper[k]);
            sums[k] = _mm512_add_epi32(_mm512_add_epi32(start, _mm512_cvtepu16_epi32(l)),
                                       _mm512_slli_epi32(_mm512_cvtepu16_epi32(u), 8));
        }
        _mm512_storeu_si512(out + 32 * i, _mm512_permutex2var_epi32(sums[0], first, sums[1]));
        _mm512_storeu_si512(out + 32 * i + 16, _mm512_permutex2var_epi32(sums[0], next, sums[1]));
    }
}

DLBF_AVX512 static inline void dlbf_put_words(dlbf_key_words *words, uint32_t i, __m256i bytes) {
    words->eight[0][i] = (uint64_t)_mm256_extract_epi64(bytes, 0);
    words->eight[1][i] = (uint64_t)_mm256_extract_epi64(bytes, 1);
    words->eight[2][i] = (uint64_t)_mm256_extract_epi64(bytes, 2);
    words->eight[3][i] = (uint64_t)_mm256_extract_epi64(bytes, 3);
}
DLBF_AVX512 static inline void dlbf_columns_put_values(dlbf_key_words *words, uint32_t i, const uint16_t *values) {
    dlbf_put_words(words, i, _mm512_cvtusepi16_epi8(_mm512_loadu_si512(values)));
}
DLBF_AVX512 static inline void dlbf_put_key(dlbf_key_words *words, uint32_t i, const uint8_t *key, int32_t n,
                                            uint32_t split_byte, uint32_t needed, const dlbf_lexical_tables *tables) {
    __m512i without_runs;
    dlbf_put_words(words, i, _mm512_castsi512_si256(dlbf_lexical_bytes(key, n, split_byte, needed, tables, &without_runs)));
}
#endif
/* `way` is that of dlbf_plan_forest; `values` are DLBF_ROOM_VALUES. */
static inline int32_t dlbf_forest_sum(const dlbf_forest *f, int way, const uint16_t *values) {
#if DLBF_HAVE_AVX2
    if (!f->mask_bytes) return dlbf_steps_sum_of(f, values);
    if (way) return dlbf_rows_sum_avx2(f, values);
#endif
    (void)way;
    return dlbf_rows_sum(f, values);
}

/* Whether sums are to be had for DLBF_COLUMN_KEYS keys at once: put each of them, and then sum. */
static inline int dlbf_has_columns(const dlbf_forest *f) { return f->columns_at != 0; }
#if DLBF_HAVE_AVX2
/* The lexical values of a key; 0 if it is too long, and its values must be put. */
static inline int dlbf_columns_put_key(dlbf_key_words *words, uint32_t i, const uint8_t *key, size_t n_bytes,
                                       uint32_t split_byte, uint32_t needed, const dlbf_lexical_tables *tables) {
    if (n_bytes - 1 >= 64) return 0;
    dlbf_put_key(words, i, key, (int32_t)n_bytes, split_byte, needed, tables);
    return 1;
}
#else
static inline int dlbf_columns_put_key(dlbf_key_words *words, uint32_t i, const uint8_t *key, size_t n_bytes,
                                       uint32_t split_byte, uint32_t needed, const dlbf_lexical_tables *tables) {
    (void)words, (void)i, (void)key, (void)n_bytes, (void)split_byte, (void)needed, (void)tables;
    return 0; /* never called, nor are the others: there are no columns without AVX-512 */
}
static inline void dlbf_columns_put_values(dlbf_key_words *words, uint32_t i, const uint16_t *values) {
    (void)words, (void)i, (void)values;
}
static inline void dlbf_columns_sum(const dlbf_forest *f, const dlbf_key_words *words, int32_t bias, int32_t *out) {
    (void)f, (void)words, (void)bias, (void)out;
}
#endif

/* The sum for the lexical values of a key, which then need not go through memory; 0 if this forest cannot do that. */
static inline int dlbf_forest_sum_of_key(const dlbf_forest *f, const uint8_t *key, size_t n_bytes, uint32_t split_byte,
                                         uint32_t needed, const dlbf_lexical_tables *tables, int32_t *sum) {
#if DLBF_HAVE_AVX2
    if (!f->mask_bytes && n_bytes - 1 < 64) {
        *sum = dlbf_steps_sum_of_key(f, key, (int32_t)n_bytes, split_byte, needed, tables);
        return 1;
    }
#endif
    (void)f, (void)key, (void)n_bytes, (void)split_byte, (void)needed, (void)tables, (void)sum;
    return 0;
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
