"""The page of a growing filter: its fields, and how a key is looked for in it; the layout is in ``growing.pxd``."""

from dlbf.kernels.types cimport ctz64, load64, popcount64, store64, uint8_t, uint32_t, uint64_t, unlikely

cdef enum:
    BUCKET_BITS = 8
    BUCKETS = 256
    HEAD_WORDS = 2
    MOST_DEPTH = 32
    # A page of entries that no split can tell apart (one key, again and again) goes on as it is, up to so many.
    MOST_ENTRIES_ALIKE = 511
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


cdef inline bint entry_matches(uint64_t value, uint64_t wanted) noexcept nogil:
    # Equal above the entry's lowest one, which ends its fingerprint.
    return (value ^ wanted) < ((value & (~value + 1)) << 1)


cdef inline uint32_t bucket_of(const uint64_t* page, uint64_t h) noexcept nogil:
    return h << page_depth(page) >> (64 - BUCKET_BITS)


cdef inline bint entry_fits(const uint64_t* page, uint64_t end, uint64_t mask, uint64_t rest) noexcept nogil:
    """Whether the entry that ends before that bit of the page matches; ``rest`` are the hash's bits from its first.

    One load of the 8 bytes that end with its last, so it has at most 57 bits; the head lies before the first.
    """
    cdef uint64_t value = load64((<const uint8_t*>page) + ((end + 7) >> 3) - 8) << ((0 - end) & 7)
    value &= mask
    # Equal above the entry's lowest one, which ends its fingerprint and may be the topmost bit.
    return (value ^ rest) >> 1 < value & (~value + 1)


cdef inline bint run_contains(const uint64_t* page, uint64_t h, uint64_t at, uint32_t run) noexcept nogil:
    """Whether one of ``run`` entries matches; the first begins with that bit of the page."""
    cdef uint64_t head = word_get(page, 0)
    cdef uint64_t width = (head >> 40) & 0xFF
    cdef uint64_t rest = h << ((head >> 32) & 0xFF) << BUCKET_BITS, mask = ~(~<uint64_t>0 >> width)
    cdef uint64_t end = at + run * width
    cdef bint found
    cdef uint64_t second = min(at + 2 * width, end), third = min(at + 3 * width, end)
    # Without a branch that depends on the run; behind its end the last entry is looked at again.
    found = entry_fits(page, min(at + width, end), mask, rest)
    found |= entry_fits(page, second, mask, rest)
    found |= entry_fits(page, third, mask, rest)
    found &= run != 0
    if unlikely(run > 3):
        at += 3 * width
        while at < end:
            at += width
            found |= entry_fits(page, at, mask, rest)
    return found


cdef inline uint64_t run_place(const uint64_t* page, uint32_t bucket, uint64_t at) noexcept nogil:
    """Where in the page the bucket's entries begin; ``at`` is its first bit behind the head."""
    return (entries_at(page_entries(page)) << 6) + (at - bucket) * page_width(page)


cdef inline void bits_open(uint64_t* words, uint64_t at, uint64_t end, uint32_t width, uint64_t value) noexcept nogil:
    """Put ``width`` bits in at ``at``; those up to ``end`` move up, and there is room for them."""
    cdef uint64_t first = at >> 6, i
    cdef uint64_t low = (<uint64_t>1 << (at & 63)) - 1
    cdef uint64_t high = word_get(words, first) & ~low
    if end > at:
        i = (end + width - 1) >> 6
        while i > first + 1:
            word_put(words, i, (word_get(words, i) << width) | (word_get(words, i - 1) >> (64 - width)))
            i -= 1
        if i == first + 1:
            word_put(words, i, (word_get(words, i) << width) | (high >> (64 - width)))
        word_put(words, first, (word_get(words, first) & low) | (high << width))
    bits_put(words, at, width, value)


cdef inline void bits_close(uint64_t* words, uint64_t at, uint64_t end, uint32_t width) noexcept nogil:
    """Take ``width`` bits out at ``at``; those up to ``end`` move down, zeros follow them."""
    cdef uint64_t last = (end - 1) >> 6, i = at >> 6
    cdef uint64_t low = (<uint64_t>1 << (at & 63)) - 1
    cdef uint64_t word = word_get(words, i), kept = word & low
    cdef uint64_t next_word = word_get(words, i + 1) if i < last else 0
    # What is above the gap, shifted down; bits between ``at`` and the gap's end must not come along.
    word = (word >> width) | (next_word << (64 - width))
    word_put(words, i, kept | (word & ~low))
    while i < last:
        i += 1
        word = next_word
        next_word = word_get(words, i + 1) if i < last else 0
        word_put(words, i, (word >> width) | (next_word << (64 - width)))


cdef inline bint page_is_sound(
    const uint64_t* page, uint64_t words, const uint8_t* lengths, uint32_t first_depth,
) noexcept nogil:
    """Whether it can be trusted; ``words`` are left in the payload."""
    cdef uint32_t n, voids, depth, width, i, bucket = 0, before = 0, item, run
    cdef uint64_t at, counts = 0, end, value, last
    if words < HEAD_WORDS:
        return False
    n, voids, depth, width = page_entries(page), page_voids(page), page_depth(page), page_width(page)
    if word_get(page, 0) >> 48 or depth < first_depth or depth > MOST_DEPTH or n > MOST_ENTRIES_ALIKE:
        return False
    if width != lengths[depth] + <uint32_t>1 or page_words(page) > words:
        return False
    # 256 zeros and n ones, the last of them a zero, and nothing behind it.
    end = BUCKETS + n
    at = 0
    for i in range(<uint32_t>(entries_at(n) - HEAD_WORDS)):
        at += popcount64(word_get(page + HEAD_WORDS, i))
    if at != n or bits_get(page + HEAD_WORDS, end - 1, 1):
        return False
    if end & 63 and word_get(page + HEAD_WORDS, end >> 6) >> (end & 63):
        return False
    if (n * <uint64_t>width) & 63 and word_get(page, voids_at(n, width) - 1) >> ((n * <uint64_t>width) & 63):
        return False
    at = 0
    i = 0
    for bucket in range(<uint32_t>BUCKETS):
        if bucket and not bucket & ((1 << GROUP_BITS) - 1):
            counts |= <uint64_t>i << (COUNT_BITS * ((bucket >> GROUP_BITS) - 1))
        run = run_length(page, at)
        last = 0
        at += run + 1
        while run:
            value = bits_get(page + entries_at(n), i * <uint64_t>width, width)
            if value == 0 or value < last:
                return False
            last = value
            i += 1
            run -= 1
    if counts != word_get(page, 1):
        return False
    for i in range(voids):
        item = void_item(page, voids_at(n, width), i)
        if item < before or not 1 <= item >> 8 <= depth or item >> 8 > depth - first_depth:
            return False
        before = item
        if (item >> 8 >= BUCKET_BITS and item & 0xFF) or (item & 0xFF) & ((1 << min(item >> 8, 8)) - 1):
            return False
    if voids & 3 and word_get(page, page_words(page) - 1) >> (16 * (voids & 3)):
        return False
    return True
