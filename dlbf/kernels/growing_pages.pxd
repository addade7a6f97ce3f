"""The page of a growing filter: its fields, and how a key is looked for in it; the layout is in ``growing.pxd``."""

from dlbf.kernels.types cimport (
    ctz64, load64, popcount64, select64, store64, uint8_t, uint32_t, uint64_t, unlikely,
)

cdef enum:
    BUCKET_BITS = 8
    BUCKETS = 256
    HEAD_WORDS = 2
    # Buckets in a group, as a logarithm, and bits of a count of entries.
    GROUP_BITS = 5
    COUNT_BITS = 9


# --- words and bits ------------------------------------------------------------


cdef inline uint64_t word_get(const uint64_t* words, uint64_t i) noexcept nogil:
    return load64(<const uint8_t*>(words + i))


cdef inline void word_put(uint64_t* words, uint64_t i, uint64_t value) noexcept nogil:
    store64(<uint8_t*>(words + i), value)


cdef inline uint64_t bits_get(const uint64_t* words, uint64_t at, uint32_t width) noexcept nogil:
    """``width`` bits, 1 to 63."""
    cdef uint32_t r = at & 63
    cdef uint64_t value = word_get(words, at >> 6) >> r
    if r + width > 64:
        value |= word_get(words, (at >> 6) + 1) << (64 - r)
    return value & ((<uint64_t>1 << width) - 1)


cdef inline uint64_t entry_get(const uint64_t* entries, uint64_t at, uint32_t width) noexcept nogil:
    """The same for 1 to 57 bits behind a page's head, in one load: of the 8 bytes that end with the entry's last."""
    cdef uint64_t end = at + width
    cdef uint32_t above = <uint32_t>(0 - end) & 7
    cdef uint64_t value = load64((<const uint8_t*>entries) + ((end + 7) >> 3) - 8)
    return (value >> (64 - above - width)) & ((<uint64_t>1 << width) - 1)


cdef inline void bits_put(uint64_t* words, uint64_t at, uint32_t width, uint64_t value) noexcept nogil:
    cdef uint32_t r = at & 63
    cdef uint64_t i = at >> 6
    cdef uint64_t mask = (<uint64_t>1 << width) - 1
    word_put(words, i, (word_get(words, i) & ~(mask << r)) | (value << r))
    if r + width > 64:
        word_put(words, i + 1, (word_get(words, i + 1) & ~(mask >> (64 - r))) | (value >> (64 - r)))


# --- one page --------------------------------------------------------------------


cdef inline uint32_t page_entries(const uint64_t* page) noexcept nogil:
    return word_get(page, 0) & 0xFFFF


cdef inline uint32_t page_voids(const uint64_t* page) noexcept nogil:
    return (word_get(page, 0) >> 16) & 0xFFFF


cdef inline uint32_t page_depth(const uint64_t* page) noexcept nogil:
    return (word_get(page, 0) >> 32) & 0xFF


cdef inline uint32_t page_width(const uint64_t* page) noexcept nogil:
    return (word_get(page, 0) >> 40) & 0xFF


cdef inline void page_set_head(
    uint64_t* page, uint32_t n, uint32_t voids, uint32_t depth, uint32_t width,
) noexcept nogil:
    word_put(page, 0, n | <uint64_t>voids << 16 | <uint64_t>depth << 32 | <uint64_t>width << 40)


cdef inline uint64_t entries_at(uint64_t n) noexcept nogil:
    """The word with the first entry of a page that has ``n``."""
    return HEAD_WORDS + ((BUCKETS + n + 63) >> 6)


cdef inline uint64_t voids_at(uint64_t n, uint32_t width) noexcept nogil:
    return entries_at(n) + ((n * width + 63) >> 6)


cdef inline uint64_t words_of(uint64_t n, uint64_t voids, uint32_t width) noexcept nogil:
    return voids_at(n, width) + ((voids + 3) >> 2)


cdef inline uint64_t page_words(const uint64_t* page) noexcept nogil:
    return words_of(page_entries(page), page_voids(page), page_width(page))


cdef inline uint32_t void_item(const uint64_t* page, uint64_t at, uint32_t i) noexcept nogil:
    return <uint32_t>bits_get(page + at, 16 * i, 16)


cdef inline bint void_covers(uint32_t item, uint32_t bucket) noexcept nogil:
    cdef uint32_t age = item >> 8
    return age >= BUCKET_BITS or ((item & 0xFF) ^ bucket) >> age == 0


cdef inline uint32_t run_length(const uint64_t* page, uint64_t at) noexcept nogil:
    """Number of ones from that bit behind the head on."""
    cdef const uint64_t* bits = page + HEAD_WORDS
    cdef uint64_t i = at >> 6
    cdef uint32_t r = at & 63, n
    cdef uint64_t word = ~word_get(bits, i) >> r
    if word:
        return ctz64(word)
    n = 64 - r
    while True:
        i += 1
        word = ~word_get(bits, i)
        if word:
            return n + ctz64(word)
        n += 64


cdef inline uint64_t group_start(const uint64_t* page, uint32_t bucket) noexcept nogil:
    """The number of the first bit, behind the head, of the first bucket in the bucket's group."""
    cdef uint32_t group = bucket >> GROUP_BITS
    cdef uint64_t at = group << GROUP_BITS
    if group:
        at += (word_get(page, 1) >> (COUNT_BITS * (group - 1))) & ((1 << COUNT_BITS) - 1)
    return at


cdef inline uint64_t bucket_search(const uint64_t* page, uint64_t at, uint32_t skip, uint32_t* run) noexcept nogil:
    """Behind so many zeros from a bit on; the run of ones there may be of any length."""
    cdef const uint64_t* bits = page + HEAD_WORDS
    cdef uint64_t i = at >> 6, word
    cdef uint32_t zeros
    word = ~word_get(bits, i) >> (at & 63) << (at & 63)
    while skip:
        zeros = popcount64(word)
        if zeros >= skip:
            at = (i << 6) + select64(word, skip - 1) + 1
            break
        skip -= zeros
        i += 1
        word = ~word_get(bits, i)
    run[0] = run_length(page, at)
    return at


cdef inline uint64_t bucket_find(const uint64_t* page, uint32_t bucket, uint32_t* run) noexcept nogil:
    """The number of the bucket's first bit behind the head, and how many entries it has.

    Less the bucket's number it is the number of its first entry.
    """
    cdef const uint64_t* bits = page + HEAD_WORDS
    cdef uint64_t at = group_start(page, bucket), i = at >> 6, zeros
    cdef uint32_t skip = bucket & ((1 << GROUP_BITS) - 1), r = at & 63, p
    # Nearly always it is among the next 64 bits.
    zeros = word_get(bits, i) >> r
    if i + 1 < (BUCKETS + page_entries(page) + 63) >> 6:
        zeros |= word_get(bits, i + 1) << 1 << (63 - r)
    zeros = ~zeros
    if skip:
        p = select64(zeros, skip - 1)
        if unlikely(p >= 63):
            return bucket_search(page, at, skip, run)
        zeros >>= p + 1
        if unlikely(zeros == 0):
            return bucket_search(page, at, skip, run)
        at += p + 1
    elif unlikely(zeros == 0):
        return bucket_search(page, at, 0, run)
    run[0] = ctz64(zeros)
    return at


cdef inline bint entry_matches(uint64_t value, uint64_t wanted) noexcept nogil:
    # Equal above the entry's lowest one, which ends its fingerprint.
    return (value ^ wanted) < ((value & (~value + 1)) << 1)


cdef inline bint bucket_contains(
    const uint64_t* page, uint64_t h, uint32_t bucket, uint64_t at, uint32_t run,
) noexcept nogil:
    """Whether one of the ``run`` entries behind the bucket's first bit matches, or a void item."""
    cdef uint64_t head = word_get(page, 0)
    cdef uint32_t n = head & 0xFFFF, width = (head >> 40) & 0xFF, voids = (head >> 16) & 0xFFFF, i
    cdef uint64_t wanted = h << ((head >> 32) & 0xFF) << BUCKET_BITS >> (64 - width)
    cdef const uint64_t* entries
    if run:
        entries = page + entries_at(n)
        at = (at - bucket) * width
        while True:
            if entry_matches(entry_get(entries, at, width), wanted):
                return True
            run -= 1
            if run == 0:
                break
            at += width
    if unlikely(voids != 0):
        at = voids_at(n, width)
        for i in range(voids):
            if void_covers(void_item(page, at, i), bucket):
                return True
    return False


cdef inline uint32_t bucket_of(const uint64_t* page, uint64_t h) noexcept nogil:
    return h << page_depth(page) >> (64 - BUCKET_BITS)


cdef inline bint page_contains(const uint64_t* page, uint64_t h) noexcept nogil:
    cdef uint32_t run = 0, bucket = bucket_of(page, h)
    cdef uint64_t at = bucket_find(page, bucket, &run)
    return bucket_contains(page, h, bucket, at, run)
