/* The sum over compiled trees; their layout is in scoring.pxd.
 *
 * Trees are walked four at a time, and one that has come to a leaf stays there until all four have: the end of a walk
 * cannot be foreseen, that of the longest of four costs a quarter as much, and the walks overlap.  In C, because the
 * step must be a conditional move.
 */
#ifndef DLBF_TREES_H
#define DLBF_TREES_H

#include "portable.h"

#define DLBF_NODE_BYTES 6
#define DLBF_LEAF 255
#define DLBF_TREE_LANES 4

/* `payload` has been checked.  `values` are 32: a leaf asks for one beyond those there are. */
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
