/* Compiler and platform differences, hidden behind one name each.
 *
 * Everything that ends up in a file or decides where a key goes is computed with
 * fixed-width unsigned integers and little-endian loads, so that it is the same
 * on every machine.
 */
#ifndef DLBF_PORTABLE_H
#define DLBF_PORTABLE_H

#include <Python.h>
#include <stdint.h>
#include <string.h>
#if !defined(_WIN32)
#include <sched.h>
#include <time.h>
#endif

#if defined(__GNUC__) || defined(__clang__)
#define dlbf_prefetch(p) __builtin_prefetch((const void *)(p))
#define dlbf_likely(x) __builtin_expect(!!(x), 1)
#define dlbf_unlikely(x) __builtin_expect(!!(x), 0)
#define dlbf_bswap64(x) __builtin_bswap64(x)
#define dlbf_bswap32(x) __builtin_bswap32(x)
#else
#define dlbf_prefetch(p) ((void)(p))
#define dlbf_likely(x) (x)
#define dlbf_unlikely(x) (x)
static inline uint32_t dlbf_bswap32(uint32_t x) {
    return (x >> 24) | ((x >> 8) & 0xFF00u) | ((x << 8) & 0xFF0000u) | (x << 24);
}
static inline uint64_t dlbf_bswap64(uint64_t x) {
    return ((uint64_t)dlbf_bswap32((uint32_t)x) << 32) | dlbf_bswap32((uint32_t)(x >> 32));
}
#endif

/* Byte i: the number of ones in bytes 0 .. i of x. */
static inline uint64_t dlbf_running_ones(uint64_t x) {
    x -= (x >> 1) & 0x5555555555555555ULL;
    x = (x & 0x3333333333333333ULL) + ((x >> 2) & 0x3333333333333333ULL);
    return ((x + (x >> 4)) & 0x0F0F0F0F0F0F0F0FULL) * 0x0101010101010101ULL;
}
/* Without the x86 instruction, which portable builds may not use, compilers call a function. */
#if defined(__POPCNT__) || (defined(__GNUC__) && !defined(__x86_64__) && !defined(__i386__))
#define dlbf_popcount64(x) ((int)__builtin_popcountll(x))
#else
static inline int dlbf_popcount64(uint64_t x) { return (int)(dlbf_running_ones(x) >> 56); }
#endif

/* Whether the number of ones is odd.  Processors without a special instruction know it of a byte. */
#if defined(__GNUC__) || defined(__clang__)
#define dlbf_parity64(x) ((uint64_t)__builtin_parityll(x))
#else
static inline uint64_t dlbf_parity64(uint64_t x) {
    x ^= x >> 32;
    x ^= x >> 16;
    x ^= x >> 8;
    x ^= x >> 4;
    return (0x6996u >> (x & 15)) & 1;
}
#endif
/* The same where the processor can count ones: only the lowest bit of the result counts.  Portable builds for x86 may not
 * take that for granted, and ask; the question is one comparison with a word in memory. */
#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
#define dlbf_counts_ones() __builtin_cpu_supports("popcnt")
static inline uint64_t dlbf_counted_ones(uint64_t x) {
    uint64_t n;
    __asm__("popcntq %1, %0" : "=r"(n) : "r"(x) : "cc");
    return n;
}
#else
#define dlbf_counts_ones() 0
#define dlbf_counted_ones(x) dlbf_parity64(x)
#endif
/* Zeros below the lowest one of x, which is not 0. */
#if defined(__GNUC__) || defined(__clang__)
#define dlbf_ctz64(x) ((int)__builtin_ctzll(x))
#else
static inline int dlbf_ctz64(uint64_t x) { return dlbf_popcount64((x & (0 - x)) - 1); }
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define DLBF_LE64(x) dlbf_bswap64(x)
#define DLBF_LE32(x) dlbf_bswap32(x)
#else
#define DLBF_LE64(x) (x)
#define DLBF_LE32(x) (x)
#endif

static inline uint64_t dlbf_load64(const uint8_t *p) {
    uint64_t x;
    memcpy(&x, p, 8);
    return DLBF_LE64(x);
}
static inline uint32_t dlbf_load32(const uint8_t *p) {
    uint32_t x;
    memcpy(&x, p, 4);
    return DLBF_LE32(x);
}
static inline void dlbf_store64(uint8_t *p, uint64_t x) {
    x = DLBF_LE64(x);
    memcpy(p, &x, 8);
}
static inline void dlbf_store32(uint8_t *p, uint32_t x) {
    x = DLBF_LE32(x);
    memcpy(p, &x, 4);
}

/* Position of one number r (from 0) of x; 64 if there are not as many.  No branch, table or
 * special instruction (Vigna, "Broadword implementation of rank/select queries", 2008): bytes
 * hold running counts, and a count per byte of "at most r" is the place, first of the byte,
 * then of the bit in it. */
static inline int dlbf_select64(uint64_t x, int r) {
    const uint64_t ones = 0x0101010101010101ULL, tops = 0x8080808080808080ULL;
    uint64_t counts = dlbf_running_ones(x), byte, bits;
    int shift;
    shift = (int)(((((((uint64_t)r * ones) | tops) - counts) & tops) >> 7) * ones >> 56) * 8;
    if (dlbf_unlikely(shift == 64)) return 64;
    byte = (x >> shift) & 0xFF;
    r -= (int)(((counts << 8) >> shift) & 0xFF);
    bits = (byte * ones) & 0x8040201008040201ULL;
    bits = (((bits | ((bits | tops) - ones)) & tops) >> 7) * ones;
    return shift + (int)(((((((uint64_t)r * ones) | tops) - bits) & tops) >> 7) * ones >> 56);
}

/* The same by instructions of BMI2, where the processor has them and they are fast: in the first two generations of AMD's
 * Zen they are not.  dlbf_selects() asks; it is for a program's beginning. */
#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__)
static inline int dlbf_selects(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("popcnt") &&
           !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2");
}
static inline int dlbf_selected64(uint64_t x, int r) {
    uint64_t one, at;
    __asm__("pdepq %1, %2, %0" : "=r"(one) : "r"(x), "r"((uint64_t)1 << r));
    __asm__("tzcntq %1, %0" : "=r"(at) : "r"(one) : "cc");
    return (int)at;
}
#else
#define dlbf_selects() 0
#define dlbf_selected64(x, r) dlbf_select64(x, r)
#endif

/* High 64 bits of the 128-bit product; as a map from a uniform x to [0, n) it is
 * Lemire's "fastrange": no division, no power of two needed. */
static inline uint64_t dlbf_mulhi64(uint64_t a, uint64_t b) {
#if defined(__SIZEOF_INT128__)
    return (uint64_t)(((unsigned __int128)a * b) >> 64);
#else
    uint64_t a0 = (uint32_t)a, a1 = a >> 32, b0 = (uint32_t)b, b1 = b >> 32;
    uint64_t m = a1 * b0 + ((a0 * b0) >> 32);
    uint64_t n = a0 * b1 + (uint32_t)m;
    return a1 * b1 + (m >> 32) + (n >> 32);
#endif
}
static inline uint64_t dlbf_mulfold64(uint64_t a, uint64_t b) {
    return dlbf_mulhi64(a, b) ^ (a * b);
}
static inline uint64_t dlbf_rotl64(uint64_t x, int r) { return (x << r) | (x >> (64 - r)); }

/* Stores before it reach a mapped file before those after it, if the process is killed in between. */
#if defined(__GNUC__) || defined(__clang__)
#define dlbf_memory_barrier() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#else
#define dlbf_memory_barrier() ((void)0)
#endif

/* The gate: batches work on a filter's bytes without the GIL, so they need a lock of
 * their own.  state > 0: that many reading batches; -1: one writing batch; 0: free.
 * `waiting` counts writers, so that a stream of readers cannot starve them.  A thread that writes one batch after another
 * starves nobody either: it takes and leaves the gate with the GIL and gives that up only in between, so others would
 * never find the gate open.  Hence a writer that comes after another one lets those go first who want to come in.
 *
 * Operations on one key hold the GIL throughout; with a GIL they only have to see that no
 * batch is in the way, without one they take the gate like everyone else.
 *
 * A child of fork() has the filters as they were at that moment, but no thread that could end a
 * batch.  So who forks (see core.pyx) waits until nobody is inside of any gate, and keeps others out.
 */
typedef struct {
    int32_t inside;       /* batches in all gates of the process, or waiting to write */
    unsigned long forker; /* thread that is about to fork; 0: none */
} dlbf_crowd;

typedef struct {
    int32_t state;
    int32_t waiting;
    int32_t held; /* readers that stay for long (dlbf.capi.FilterReader), counted in state as well */
    int32_t wanted; /* somebody has found the gate closed since a writer last looked here */
    int32_t wrote; /* nobody has come in since the last writing batch */
    dlbf_crowd *crowd;
} dlbf_gate;

static inline void dlbf_gate_pause(void) {
    Py_BEGIN_ALLOW_THREADS
#if defined(_WIN32)
    ;
#else
    struct timespec t = {0, 20000};
    nanosleep(&t, NULL);
#endif
    Py_END_ALLOW_THREADS
}
#if defined(__GNUC__) || defined(__clang__)
static inline int32_t dlbf_gate_load(int32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void dlbf_gate_set(int32_t *p, int32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline void dlbf_gate_add(int32_t *p, int32_t d) { __atomic_fetch_add(p, d, __ATOMIC_ACQ_REL); }
static inline int dlbf_gate_cas(int32_t *p, int32_t from, int32_t to) {
    return __atomic_compare_exchange_n(p, &from, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}
#else /* no atomics known: correct with the GIL, which is then required */
static inline int32_t dlbf_gate_load(int32_t *p) { return *p; }
static inline void dlbf_gate_set(int32_t *p, int32_t v) { *p = v; }
static inline void dlbf_gate_add(int32_t *p, int32_t d) { *p += d; }
static inline int dlbf_gate_cas(int32_t *p, int32_t from, int32_t to) {
    if (*p != from) return 0;
    *p = to;
    return 1;
}
#endif
static inline int dlbf_gate_shut(const dlbf_gate *g) {
    unsigned long forker = *(volatile unsigned long *)&g->crowd->forker;
    return dlbf_unlikely(forker != 0) && forker != PyThread_get_thread_ident();
}
static inline int dlbf_gate_enter(dlbf_gate *g, int32_t from, int32_t to) {
    dlbf_gate_add(&g->crowd->inside, 1);
    if (!dlbf_gate_shut(g) && dlbf_gate_cas(&g->state, from, to)) return 1;
    dlbf_gate_add(&g->crowd->inside, -1);
    return 0;
}
/* To wait is to be counted, too, until somebody wants to fork: nobody could take a count back in the child. */
static inline void dlbf_gate_queue(dlbf_gate *g, int32_t change) {
    dlbf_gate_add(&g->crowd->inside, change);
    dlbf_gate_add(&g->waiting, change);
}
static inline void dlbf_gate_leave(dlbf_gate *g, int32_t change) {
    dlbf_gate_add(&g->state, change);
    dlbf_gate_add(&g->crowd->inside, -1);
}
/* Before a closed gate. */
static inline void dlbf_gate_stand(dlbf_gate *g) {
    dlbf_gate_set(&g->wanted, 1);
    dlbf_gate_pause();
}
static inline void dlbf_gate_read(dlbf_gate *g) {
    for (;;) {
        int32_t s = dlbf_gate_load(&g->state);
        /* No writer can come in before the long readers have gone, so nobody need stand back for one; and
         * who holds such a reader must not wait for a writer that waits for it. */
        if (s >= 0 && (dlbf_gate_load(&g->waiting) == 0 || dlbf_gate_load(&g->held) > 0) &&
            dlbf_gate_enter(g, s, s + 1)) break;
        dlbf_gate_stand(g);
    }
    dlbf_gate_set(&g->wrote, 0);
}
/* Let others go first, if there are any that still ask: in a child of fork() there may be none any more. */
static inline void dlbf_gate_yield(dlbf_gate *g) {
    for (int i = 0; i < 64 && dlbf_gate_load(&g->wrote); i++) {
        if (i % 8 == 0) {
            if (!dlbf_gate_load(&g->wanted)) return;
            dlbf_gate_set(&g->wanted, 0);
        }
        dlbf_gate_pause();
    }
}
static inline void dlbf_gate_read_done(dlbf_gate *g) { dlbf_gate_leave(g, -1); }
/* Who stays for long changes nothing, and is not waited for. */
static inline void dlbf_gate_hold(dlbf_gate *g) {
    dlbf_gate_read(g);
    dlbf_gate_add(&g->held, 1);
    dlbf_gate_add(&g->crowd->inside, -1);
}
static inline void dlbf_gate_hold_done(dlbf_gate *g) {
    dlbf_gate_add(&g->crowd->inside, 1);
    dlbf_gate_add(&g->held, -1);
    dlbf_gate_read_done(g);
}
static inline void dlbf_gate_write(dlbf_gate *g) {
    dlbf_gate_yield(g);
    for (int entered = 0; !entered;) {
        while (dlbf_gate_shut(g)) dlbf_gate_pause();
        dlbf_gate_queue(g, 1);
        while (!(entered = dlbf_gate_enter(g, 0, -1)) && !dlbf_gate_shut(g)) dlbf_gate_stand(g);
        dlbf_gate_queue(g, -1);
    }
    dlbf_gate_set(&g->wrote, 0);
}
static inline void dlbf_gate_write_done(dlbf_gate *g) {
    dlbf_gate_set(&g->wrote, 1);
    dlbf_gate_leave(g, 1);
}

#ifdef Py_GIL_DISABLED
#define dlbf_gate_read_one(g) dlbf_gate_read(g)
#define dlbf_gate_read_one_done(g) dlbf_gate_read_done(g)
static inline int dlbf_gate_try_read(dlbf_gate *g) {
    int32_t s = dlbf_gate_load(&g->state);
    return s >= 0 && dlbf_gate_enter(g, s, s + 1);
}
#define dlbf_gate_write_one(g) dlbf_gate_write(g)
#define dlbf_gate_write_one_done(g) dlbf_gate_write_done(g)
#define dlbf_gate_try_write_one(g) dlbf_gate_enter(g, 0, -1)
#else
static inline void dlbf_gate_read_one(dlbf_gate *g) {
    while (dlbf_unlikely(g->state < 0)) {
        dlbf_gate_stand(g);
        if (g->state >= 0) dlbf_gate_set(&g->wrote, 0);
    }
}
#define dlbf_gate_read_one_done(g) ((void)(g))
#define dlbf_gate_try_read(g) ((g)->state >= 0)
static inline void dlbf_gate_write_one(dlbf_gate *g) {
    while (dlbf_unlikely(g->state != 0)) {
        while (dlbf_gate_shut(g)) dlbf_gate_pause();
        dlbf_gate_queue(g, 1);
        while (g->state != 0 && !dlbf_gate_shut(g)) dlbf_gate_stand(g);
        dlbf_gate_queue(g, -1);
        if (g->state == 0) dlbf_gate_set(&g->wrote, 0);
    }
}
#define dlbf_gate_write_one_done(g) ((void)(g))
#define dlbf_gate_try_write_one(g) ((g)->state == 0)
#endif

/* Arrow C data interface (a published, stable ABI): what the PyCapsules point to. */
struct ArrowSchema {
    const char *format;
    const char *name;
    const char *metadata;
    int64_t flags;
    int64_t n_children;
    struct ArrowSchema **children;
    struct ArrowSchema *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
};
struct ArrowArray {
    int64_t length;
    int64_t null_count;
    int64_t offset;
    int64_t n_buffers;
    int64_t n_children;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
};
struct ArrowArrayStream {
    int (*get_schema)(struct ArrowArrayStream *, struct ArrowSchema *out);
    int (*get_next)(struct ArrowArrayStream *, struct ArrowArray *out);
    const char *(*get_last_error)(struct ArrowArrayStream *);
    void (*release)(struct ArrowArrayStream *);
    void *private_data;
};

#endif
