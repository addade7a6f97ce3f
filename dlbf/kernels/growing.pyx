"""The growing filter; what it is, and the layout of a page, are in ``growing.pxd``."""

from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcpy, memmove, memset

from dlbf.kernels.core cimport KEY_ABSENT, KEY_MAYBE, KEY_REMOVED
from dlbf.kernels.growing_pages cimport (
    BUCKETS, BUCKET_BITS, COUNT_BITS, GROUP_BITS, HEAD_WORDS, MOST_DEPTH, MOST_ENTRIES_ALIKE, bits_close, bits_get,
    bits_open, bits_put, bucket_of, entries_at, entry_matches, group_start, page_depth, page_entries,
    page_is_sound, page_set_head, page_voids, page_width, page_words, run_contains, run_length, run_place, void_covers,
    void_item, voids_at, word_get, word_put, words_of,
)
from dlbf.kernels.keys cimport KeyChunk
from dlbf.kernels.types cimport (
    counted_ones, ctz64, gate_read, gate_read_done, gate_write, gate_write_done, load64, popcount64, prefetch, select64,
    selected64, selects, unlikely,
)

from dlbf.errors import FormatError

cdef enum:
    # Keys between the prefetch of a page and the look at its entries; a power of two.
    AHEAD = 16

# One in each count of the groups from the second on.
cdef uint64_t ONE_EACH = 0x0040201008040201

# Whether the processor selects by itself.
cdef bint has_select = selects()

# For Python.
PAGE_ENTRIES = MOST_ENTRIES
PAGE_BUCKETS = BUCKETS
DEEPEST = MOST_DEPTH


def select_by_processor(bint wanted):
    """For tests: use the processor's instructions for selecting, if it has them; says whether they are used now."""
    global has_select
    has_select = wanted and selects()
    return has_select


# --- looking for a key ---------------------------------------------------------------


cdef uint64_t bucket_search(const uint64_t* page, uint64_t at, uint32_t skip, uint32_t* run) noexcept nogil:
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
    cdef uint32_t n = page_entries(page), boundary = (bucket + (1 << (GROUP_BITS - 1))) >> GROUP_BITS
    cdef uint32_t behind = (bucket >> (GROUP_BITS - 1)) & 1
    cdef uint64_t at, before, word, byte
    cdef int number, p
    if unlikely(n == 0):
        run[0] = 0
        return bucket
    # Count from the nearer end of its group: ``at`` is the last zero before it, or in it.  The head ends with a zero.
    before = (word_get(page, 1) >> ((COUNT_BITS * boundary - COUNT_BITS) & 63)) & ((1 << COUNT_BITS) - 1)
    before = before if boundary else 0
    before = n if boundary == BUCKETS >> GROUP_BITS else before
    at = 64 * HEAD_WORDS - 1 + (boundary << GROUP_BITS) + before
    # Nearly always the bucket is among the 57 bits from there on, or up to there.
    byte = (at >> 3) - 7 * behind
    word = ~load64((<const uint8_t*>page) + byte)
    word &= (~<uint64_t>0 >> (7 - (at & 7))) if behind else (~<uint64_t>0 << (at & 7))
    number = <int>bucket - <int>(boundary << GROUP_BITS)
    if has_select:
        number += (<int>counted_ones(word) - 1) if behind else 0
        p = selected64(word, number & 63)
    else:
        number += (popcount64(word) - 1) if behind else 0
        p = select64(word, number & 63)
    if unlikely(number < 0 or p >= 63):
        return bucket_search(page, group_start(page, bucket), bucket & ((1 << GROUP_BITS) - 1), run)
    word >>= p + 1
    if unlikely(word == 0):
        return bucket_search(page, group_start(page, bucket), bucket & ((1 << GROUP_BITS) - 1), run)
    run[0] = ctz64(word)
    return 8 * byte + p + 1 - 64 * HEAD_WORDS


cdef bint voids_contain(const uint64_t* page, uint64_t h) noexcept nogil:
    cdef uint32_t bucket = bucket_of(page, h), i
    cdef uint64_t at = voids_at(page_entries(page), page_width(page))
    for i in range(page_voids(page)):
        if void_covers(void_item(page, at, i), bucket):
            return True
    return False


cdef inline bint page_contains(const uint64_t* page, uint64_t h) noexcept nogil:
    cdef uint32_t run = 0, bucket = bucket_of(page, h)
    cdef uint64_t at = bucket_find(page, bucket, &run)
    cdef bint found = run_contains(page, h, run_place(page, bucket, at), run)
    if unlikely(page_voids(page) != 0):
        return found or voids_contain(page, h)
    return found


# --- changing a page ---------------------------------------------------------------


cdef uint64_t* page_resize(uint64_t* page, uint32_t n, uint32_t voids) noexcept nogil:
    """The page with another number of entries and void items in its head, and everything at its place.

    What is new is zero.  NULL, and the old page as it was, if there is no memory.
    """
    cdef uint32_t width = page_width(page), n_before = page_entries(page), voids_before = page_voids(page)
    cdef uint64_t words_before = page_words(page), words = words_of(n, voids, width)
    cdef uint64_t entry_words = (min(n, n_before) * <uint64_t>width + 63) >> 6
    cdef uint64_t void_words = min((voids + 3) >> 2, (voids_before + 3) >> 2)
    cdef uint64_t* made
    if words > words_before:
        made = <uint64_t*>realloc(page, 8 * words)
        if made == NULL:
            return NULL
        page = made
    if n >= n_before:
        memmove(page + voids_at(n, width), page + voids_at(n_before, width), 8 * void_words)
        memmove(page + entries_at(n), page + entries_at(n_before), 8 * entry_words)
        memset(page + entries_at(n_before), 0, 8 * (entries_at(n) - entries_at(n_before)))
        memset(page + entries_at(n) + entry_words, 0, 8 * (voids_at(n, width) - entries_at(n) - entry_words))
    else:
        memmove(page + entries_at(n), page + entries_at(n_before), 8 * entry_words)
        memmove(page + voids_at(n, width), page + voids_at(n_before, width), 8 * void_words)
    memset(page + voids_at(n, width) + void_words, 0, 8 * (words - voids_at(n, width) - void_words))
    page_set_head(page, n, voids, page_depth(page), width)
    if words < words_before:
        made = <uint64_t*>realloc(page, 8 * words)
        if made != NULL:
            page = made
    return page


cdef inline void groups_changed(uint64_t* page, uint32_t bucket, uint64_t change) noexcept nogil:
    """One entry more (1) or less (-1) in that bucket, for the counts of the groups behind it."""
    cdef uint64_t later = (ONE_EACH << (COUNT_BITS * (bucket >> GROUP_BITS))) & ~(<uint64_t>1 << 63)
    word_put(page, 1, word_get(page, 1) + change * later)


cdef uint64_t* page_insert(uint64_t* page, uint32_t bucket, uint64_t value) noexcept nogil:
    """The page with one entry more; NULL, and the old page as it was, if there is no memory."""
    cdef uint32_t n = page_entries(page), width = page_width(page), i, run = 0
    # Found first: a bucket is looked for by the number of entries in the head, too.
    cdef uint64_t at = bucket_find(page, bucket, &run), first = at - bucket
    page = page_resize(page, n + 1, page_voids(page))
    if page == NULL:
        return NULL
    i = 0
    while i < run and bits_get(page + entries_at(n + 1), (first + i) * width, width) < value:
        i += 1
    bits_open(page + HEAD_WORDS, at, BUCKETS + n, 1, 1)
    bits_open(page + entries_at(n + 1), (first + i) * width, <uint64_t>n * width, width, value)
    groups_changed(page, bucket, 1)
    return page


cdef uint64_t* page_take_out(uint64_t* page, uint32_t bucket, uint64_t at, uint64_t number) noexcept nogil:
    """The page without entry ``number``, which is of that bucket; ``at`` is the bucket's first bit."""
    cdef uint32_t n = page_entries(page), width = page_width(page)
    bits_close(page + HEAD_WORDS, at, BUCKETS + n, 1)
    bits_close(page + entries_at(n), number * width, <uint64_t>n * width, width)
    groups_changed(page, bucket, <uint64_t>0 - 1)
    return page_resize(page, n - 1, page_voids(page))


cdef uint64_t* page_drop_void(uint64_t* page, uint32_t item) noexcept nogil:
    """The page without one void item of that value, if it has one."""
    cdef uint32_t n = page_entries(page), voids = page_voids(page), i
    cdef uint64_t at = voids_at(n, page_width(page))
    for i in range(voids):
        if void_item(page, at, i) == item:
            bits_close(page + at, 16 * <uint64_t>i, 16 * <uint64_t>voids, 16)
            return page_resize(page, n, voids - 1)
    return page


ctypedef struct Half:
    # One of the two pages that a page becomes, before it is laid out.
    uint32_t n, voids
    uint32_t counts[BUCKETS]
    uint64_t* values
    uint16_t* items


cdef inline void half_add_void(Half* half, uint32_t age, uint32_t bucket) noexcept nogil:
    cdef uint32_t i = half.voids
    cdef uint16_t item = <uint16_t>(age << 8 | bucket)
    while i > 0 and half.items[i - 1] > item:
        half.items[i] = half.items[i - 1]
        i -= 1
    half.items[i] = item
    half.voids += 1


cdef uint64_t* half_laid_out(const Half* half, uint32_t depth, uint32_t width) noexcept nogil:
    """The page; NULL if there is no memory."""
    cdef uint64_t* page = <uint64_t*>calloc(words_of(half.n, half.voids, width), 8)
    cdef uint64_t at = 0, counts = 0, so_far = 0, i
    cdef uint32_t bucket, _j
    if page == NULL:
        return NULL
    page_set_head(page, half.n, half.voids, depth, width)
    for bucket in range(<uint32_t>BUCKETS):
        if bucket and not bucket & ((1 << GROUP_BITS) - 1):
            counts |= so_far << (COUNT_BITS * ((bucket >> GROUP_BITS) - 1))
        for _j in range(half.counts[bucket]):
            bits_put(page + HEAD_WORDS, at, 1, 1)
            at += 1
        so_far += half.counts[bucket]
        at += 1
    word_put(page, 1, counts)
    for i in range(half.n):
        bits_put(page + entries_at(half.n), i * width, width, half.values[i])
    for i in range(half.voids):
        bits_put(page + voids_at(half.n, width), 16 * i, 16, half.items[i])
    return page


cdef int page_split(const uint64_t* page, uint32_t width, uint64_t** halves) noexcept nogil:
    """The two pages that it becomes, with entries of that width, at most a bit less; 0 if there is no memory."""
    cdef uint32_t n = page_entries(page), voids = page_voids(page), before = page_width(page), depth = page_depth(page)
    cdef const uint64_t* entries = page + entries_at(n)
    cdef uint64_t void_from = voids_at(n, before), value, number = 0, at = 0
    cdef Half half[2]
    cdef Half* to
    cdef uint32_t bucket, i, _entry, run, age, item
    cdef uint64_t* values = <uint64_t*>malloc(16 * <size_t>(n + 1))
    cdef uint16_t* items = <uint16_t*>malloc(4 * <size_t>(n + voids + 1))
    halves[0] = halves[1] = NULL
    memset(half, 0, sizeof(half))
    if values != NULL and items != NULL:
        half[0].values, half[1].values = values, values + n
        half[0].items, half[1].items = items, items + n + voids
        for bucket in range(<uint32_t>BUCKETS):
            run = run_length(page, at)
            to = &half[bucket >> (BUCKET_BITS - 1)]
            for _entry in range(run):
                value = bits_get(entries, number * before, before)
                number += 1
                item = (bucket << 1) & (BUCKETS - 1)
                if value == <uint64_t>1 << (before - 1):
                    half_add_void(to, 1, item)
                    continue
                item |= <uint32_t>(value >> (before - 1))
                # Without its first bit, and perhaps with room for more.
                to.values[to.n] = (value & (((<uint64_t>1 << before) - 1) >> 1)) << (1 + width - before)
                to.n += 1
                to.counts[item] += 1
            at += run + 1
        for i in range(voids):
            item = void_item(page, void_from, i)
            age = item >> 8
            bucket = item & 0xFF
            if age < BUCKET_BITS:
                half_add_void(&half[bucket >> (BUCKET_BITS - 1)], age + 1, (bucket << 1) & (BUCKETS - 1))
            else:
                half_add_void(&half[0], age + 1, 0)
                half_add_void(&half[1], age + 1, 0)
        halves[0] = half_laid_out(&half[0], depth + 1, width)
        halves[1] = half_laid_out(&half[1], depth + 1, width)
    free(values)
    free(items)
    if halves[0] == NULL or halves[1] == NULL:
        free(halves[0])
        free(halves[1])
        return 0
    return 1


# --- all pages -------------------------------------------------------------------


cdef class GrowingCore(FilterCore):
    """Kernel of :class:`dlbf.GrowingFilter`."""

    def __dealloc__(self):
        self._free_pages()

    def _set_geometry(self, uint32_t first_depth, bytes lengths):
        """Fix the depth of an empty filter's pages, and how long new fingerprints are at each depth."""
        cdef uint32_t i
        self.first_depth = first_depth
        for i in range(MOST_DEPTH + 1):
            self.lengths[i] = lengths[i]

    cdef void _free_pages(self) noexcept nogil:
        cdef uint64_t i = 0, step
        if self.pages != NULL and self.has_own_pages:
            while i < <uint64_t>1 << self.depth:
                step = <uint64_t>1 << (self.depth - page_depth(self.pages[i]))
                free(self.pages[i])
                i += step
        free(self.pages)
        self.pages = NULL
        self.n_pages = self.n_words = 0

    cdef bint _make_empty(self) noexcept nogil:
        """Begin again; False, with no pages at all, if there is no memory."""
        cdef uint64_t i, n = <uint64_t>1 << self.first_depth
        cdef Half none
        self._free_pages()
        memset(&none, 0, sizeof(none))
        self.pages = <uint64_t**>calloc(n, sizeof(void*))
        if self.pages == NULL:
            return False
        self.has_own_pages = True
        self.depth = self.first_depth
        for i in range(n):
            self.pages[i] = half_laid_out(&none, self.first_depth, self.lengths[self.first_depth] + 1)
            if self.pages[i] == NULL:
                while i:
                    i -= 1
                    free(self.pages[i])
                free(self.pages)
                self.pages = NULL
                return False
        self.n_pages = n
        self.n_words = n * words_of(0, 0, 1)
        return True

    def _begin_empty(self):
        """Pages of our own, without a key."""
        if not self._make_empty():
            raise MemoryError()

    cdef int _need_pages(self) except -1:
        self._need_open()
        if self.pages == NULL:
            raise MemoryError("no memory was left when this filter was emptied or copied; make a new one")
        return 0

    cdef int _index_payload(self) except -1:
        """Find the pages in the payload, and look at every one before it is trusted."""
        cdef const uint64_t* words = <const uint64_t*>self.data
        cdef uint64_t n_words = self.n_payload_bytes // 8, n_pages, at = 2, i, _page, _copy, place = 0, size
        cdef uint32_t deepest = self.first_depth, depth
        self._check_all()
        self._free_pages()
        n_pages = word_get(words, 0)
        if self.n_payload_bytes % 8 or n_words < 2 or word_get(words, 1) or not 0 < n_pages <= n_words:
            raise FormatError("a growing filter whose number of pages makes no sense; build it again")
        # Depths first: they say how large the directory is.  Places are counted in shares of 2^-32 of all hashes.
        for i in range(n_pages):
            if not page_is_sound(words + at, n_words - at, self.lengths, self.first_depth):
                raise FormatError(f"page {i} of a growing filter makes no sense; build it again")
            depth = page_depth(words + at)
            size = <uint64_t>1 << (MOST_DEPTH - depth)
            if place & (size - 1) or place + size > <uint64_t>1 << MOST_DEPTH:
                raise FormatError(f"page {i} of a growing filter is not where its depth puts it; build it again")
            place += size
            deepest = max(deepest, depth)
            at += page_words(words + at)
        if at != n_words or place != <uint64_t>1 << MOST_DEPTH:
            raise FormatError(f"the {n_pages} pages of a growing filter do not hold all hashes; build it again")
        if deepest > int(n_pages).bit_length() + DEPTH_TO_SPARE:
            raise FormatError(f"a growing filter of {n_pages} pages with one of depth {deepest}; build it again")
        self.pages = <uint64_t**>calloc(<uint64_t>1 << deepest, sizeof(void*))
        if self.pages == NULL:
            raise MemoryError()
        self.has_own_pages = False
        self.writable = False      # the pages cannot grow where they are
        self.depth = deepest
        self.n_pages = n_pages
        self.n_words = n_words - 2
        at = 2
        place = 0
        for _page in range(n_pages):
            for _copy in range(<uint64_t>1 << (deepest - page_depth(words + at))):
                self.pages[place] = <uint64_t*>(words + at)
                place += 1
            at += page_words(words + at)
        return 0

    def _index(self):
        """Use the pages in the payload where they are."""
        self._index_payload()

    def _own_pages(self):
        """Go on with copies of the pages that can grow, and without the payload."""
        cdef uint64_t i = 0, j, step
        cdef uint64_t* page
        if self.has_own_pages:
            return
        while i < <uint64_t>1 << self.depth:
            step = <uint64_t>1 << (self.depth - page_depth(self.pages[i]))
            page = <uint64_t*>malloc(8 * page_words(self.pages[i]))
            if page == NULL:
                for j in range(i):
                    if j == 0 or self.pages[j] != self.pages[j - 1]:
                        free(self.pages[j])
                free(self.pages)
                self.pages = NULL
                raise MemoryError()
            memcpy(page, self.pages[i], 8 * page_words(self.pages[i]))
            for j in range(step):
                self.pages[i + j] = page
            i += step
        self.has_own_pages = True

    def _image_bytes(self):
        """Size of the payload that would hold the pages as they are."""
        return 8 * (self.n_words + 2)

    def _snapshot(self, allocate):
        """The contents at one moment: parameters, payload in ``allocate(n_bytes)``, number of items."""
        cdef uint8_t[::1] copy
        cdef uint64_t* words
        cdef uint64_t i = 0, at = 2, size
        gate_read(&self.gate)
        try:
            self._need_pages()
            out = allocate(8 * (self.n_words + 2))
            copy = out
            words = <uint64_t*>&copy[0]
            with nogil:
                word_put(words, 0, self.n_pages)
                word_put(words, 1, 0)
                while i < <uint64_t>1 << self.depth:
                    size = page_words(self.pages[i])
                    memcpy(words + at, self.pages[i], 8 * size)
                    at += size
                    i += <uint64_t>1 << (self.depth - page_depth(self.pages[i]))
            return self._params_with(8 * (self.n_words + 2)), out, self.n_items
        finally:
            gate_read_done(&self.gate)

    cdef void _zero(self) noexcept nogil:
        self._make_empty()

    # --- leaves

    cdef uint64_t _place(self, uint64_t h) noexcept nogil:
        return h >> 1 >> (63 - self.depth)

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef const uint64_t* page
        if unlikely(self.pages == NULL):
            return True
        page = self.pages[h >> 1 >> (63 - self.depth)]
        prefetch(page + 8)
        return page_contains(page, h)

    cdef void _contains_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        cdef const uint64_t* found[AHEAD]
        cdef uint64_t places[AHEAD]
        cdef uint32_t runs[AHEAD]
        cdef uint64_t** pages = self.pages
        cdef uint32_t shift = 63 - self.depth, bucket
        cdef Py_ssize_t i, done, at
        cdef const uint64_t* page
        if pages == NULL:
            memset(out, 1, chunk.n)
            return
        # Three steps for each key, AHEAD / 2 keys apart: fetch the page; find the bucket, fetch its entries; compare.
        for i in range(chunk.n + AHEAD):
            at = i & (AHEAD - 1)
            done = i - AHEAD
            if done >= 0:
                page = found[at]
                out[done] = run_contains(page, hashes[done], places[at], runs[at])
                if unlikely(page_voids(page) != 0):
                    out[done] |= voids_contain(page, hashes[done])
            if i < chunk.n:
                page = pages[hashes[i] >> 1 >> shift]
                found[at] = page
                prefetch(page)
                prefetch(page + 8)
            done = i - AHEAD // 2
            if 0 <= done < chunk.n:
                at = done & (AHEAD - 1)
                page = found[at]
                bucket = bucket_of(page, hashes[done])
                places[at] = run_place(page, bucket, bucket_find(page, bucket, &runs[at]))
                prefetch(page + (places[at] >> 6))

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        if self.pages != NULL:
            prefetch(self.pages[h >> 1 >> (63 - self.depth)])

    cdef void _set_page(self, uint64_t place, uint64_t* old, uint64_t* new) noexcept nogil:
        """Let the directory point to the page that has taken the place of ``old``, which may be freed."""
        cdef uint64_t i, step = <uint64_t>1 << (self.depth - page_depth(new))
        if new == old:
            return
        place &= ~(step - 1)
        for i in range(step):
            self.pages[place + i] = new

    cdef int _split(self, uint64_t place) noexcept nogil:
        """Make two of the page there; 0, and no change, if there is no memory."""
        cdef uint64_t* page = self.pages[place]
        cdef uint64_t* halves[2]
        cdef uint32_t depth = page_depth(page)
        cdef uint64_t** larger
        cdef uint64_t i, step
        if not page_split(page, self.lengths[depth + 1] + <uint32_t>1, halves):
            return 0
        if depth == self.depth:
            larger = <uint64_t**>malloc(sizeof(void*) << (self.depth + 1))
            if larger == NULL:
                free(halves[0])
                free(halves[1])
                return 0
            for i in range(<uint64_t>1 << self.depth):
                larger[2 * i] = larger[2 * i + 1] = self.pages[i]
            free(self.pages)
            self.pages = larger
            self.depth += 1
            place <<= 1
        step = <uint64_t>1 << (self.depth - depth - 1)
        place &= ~(2 * step - 1)
        for i in range(step):
            self.pages[place + i] = halves[0]
            self.pages[place + step + i] = halves[1]
        self.n_words += page_words(halves[0]) + page_words(halves[1]) - page_words(page)
        self.n_pages += 1
        free(page)
        return 1

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint64_t place, rest, words, pages = self.n_pages
        cdef uint64_t* page
        cdef uint64_t* made
        cdef uint32_t depth, width, most = DEPTH_TO_SPARE - 1
        if self.pages == NULL:
            return 0
        while pages:
            most += 1
            pages >>= 1
        while True:
            place = self._place(h)
            page = self.pages[place]
            depth = page_depth(page)
            if page_entries(page) < MOST_ENTRIES:
                break
            if depth >= MOST_DEPTH or depth >= most:
                if page_entries(page) >= MOST_ENTRIES_ALIKE:
                    return 0
                break
            if not self._split(place):
                return 0
        width = page_width(page)
        rest = h << depth
        words = page_words(page)
        # The fingerprint, and the one that ends it.
        made = page_insert(page, rest >> (64 - BUCKET_BITS), (rest << BUCKET_BITS >> (65 - width) << 1) | 1)
        if made == NULL:
            return 0
        self._set_page(place, page, made)
        self.n_words += page_words(made) - words
        self.n_items += 1
        return 1

    cdef void _strike_void(self, uint64_t h, uint64_t place, uint32_t item) noexcept nogil:
        """Take a void item out of the page there, and of every other page that got it by a split."""
        cdef uint64_t* page = self.pages[place]
        cdef uint64_t* made
        cdef uint32_t depth = page_depth(page), age = item >> 8
        cdef uint32_t known = depth        # bits of the hash that its pages have in common
        cdef uint64_t end, words
        if age > BUCKET_BITS:
            known = depth + BUCKET_BITS - age
        place = h >> 1 >> (63 - known) << (self.depth - known)
        end = place + (<uint64_t>1 << (self.depth - known))
        while place < end:
            page = self.pages[place]
            words = page_words(page)
            made = page_drop_void(page, ((age + page_depth(page) - depth) << 8) | (item & 0xFF))
            self._set_page(place, page, made)
            self.n_words += page_words(made) - words
            place += <uint64_t>1 << (self.depth - page_depth(made))

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        cdef uint64_t place, rest, at, value, wanted, words, best = 0, best_mark = 0, mark, first
        cdef uint64_t* page
        cdef uint32_t width, bucket, i, run = 0, item
        if self.pages == NULL:
            return KEY_ABSENT
        place = self._place(h)
        page = self.pages[place]
        width = page_width(page)
        rest = h << page_depth(page)
        bucket = rest >> (64 - BUCKET_BITS)
        wanted = rest << BUCKET_BITS >> (64 - width)
        at = bucket_find(page, bucket, &run)
        first = at - bucket
        for i in range(run):
            value = bits_get(page + entries_at(page_entries(page)), (first + i) * width, width)
            mark = value & (~value + 1)
            if entry_matches(value, wanted) and (best_mark == 0 or mark < best_mark):
                best, best_mark = first + i, mark
        if best_mark:
            words = page_words(page)
            self._set_page(place, page, page_take_out(page, bucket, at, best))
            self.n_words += page_words(self.pages[place]) - words
        else:
            # Items ascend, so the first that covers the bucket is the youngest.
            at = voids_at(page_entries(page), width)
            for i in range(page_voids(page)):
                item = void_item(page, at, i)
                if void_covers(item, bucket):
                    self._strike_void(h, place, item)
                    break
            else:
                return KEY_ABSENT
        if self.n_items:
            self.n_items -= 1
        return KEY_MAYBE if page_contains(self.pages[self._place(h)], h) else KEY_REMOVED

    cdef uint64_t _count(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return self._contains(h, key, n)

    # --- figures

    def _figures(self):
        """Entries, keys that void items stand for, the rate, pages, deepest page, bytes of memory."""
        cdef uint64_t i = 0, j, n = 0, value
        cdef uint32_t width, voids, age
        cdef double rate = 0, void_keys = 0, share, here
        cdef uint64_t* page
        gate_read(&self.gate)
        try:
            self._need_pages()
            with nogil:
                while i < <uint64_t>1 << self.depth:
                    page = self.pages[i]
                    width = page_width(page)
                    share = 1.0 / (<uint64_t>1 << page_depth(page)) / BUCKETS
                    here = 0
                    for j in range(page_entries(page)):
                        value = bits_get(page + entries_at(page_entries(page)), j * width, width)
                        here += 1.0 / (<uint64_t>1 << (width - 1 - ctz64(value)))
                    for voids in range(page_voids(page)):
                        age = void_item(page, voids_at(page_entries(page), width), voids) >> 8
                        here += 1 << min(age, <uint32_t>BUCKET_BITS)
                        void_keys += 1.0 / (<uint64_t>1 << (max(age, <uint32_t>BUCKET_BITS) - BUCKET_BITS))
                    n += page_entries(page)
                    rate += share * here
                    i += <uint64_t>1 << (self.depth - page_depth(page))
            return n, void_keys, rate, self.n_pages, self.depth, self._memory()
        finally:
            gate_read_done(&self.gate)

    def _memory(self):
        """Bytes of pages, with what the allocator keeps of each, and of the directory; 0 when it is closed."""
        if self.pages == NULL:
            return 0
        return 8 * self.n_words + 16 * self.n_pages + (sizeof(void*) << self.depth)

    def _let_go(self):
        """Free the pages; the filter is closed."""
        gate_write(&self.gate)
        self._free_pages()
        gate_write_done(&self.gate)
