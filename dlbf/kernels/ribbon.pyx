"""The ribbon filter on a flat buffer, and how it is built; layout and rationale are in ``ribbon.pxd``.

Building takes three steps, which :mod:`dlbf.filters.ribbon` puts together: sort the hashes and drop repeated ones
(``ribbon_sort``), find where each shard starts among them (``ribbon_bounds``), solve each shard (``ribbon_solve``, any
number of threads).  The result depends on the set of hashes alone, not on their order or on the number of threads.
"""

from libc.string cimport memmove, memset

from dlbf.kernels.core cimport KEY_ABSENT
from dlbf.kernels.hashing cimport hash_for_filter
from dlbf.kernels.keys cimport KeyChunk
from dlbf.kernels.types cimport ctz64, int64_t, store32, store64

import numpy as np

cdef enum:
    # Keys between the prefetch of their blocks and the look at them; a power of two.
    AHEAD = 16
    MAX_COLUMNS = 64

cdef enum:
    # A range of so few hashes is sorted by insertion.
    FEW = 24
    # Bits that one pass of the sort looks at, at most; fewer than four would make the recursion deep.
    MOST_BITS = 10
    LEAST_BITS = 4

cdef enum:
    # Rows of a bin when looking how evenly a seed spreads the keys.
    BIN_ROWS = 4
    # Keys in the queue at the end of a bin's arrivals.  With all but a few of its 64 rows taken, a key finds none.
    MOST_WAITING = 62


# --- asking ---------------------------------------------------------------------


cdef void ribbon_set_geometry(
    Ribbon* g, uint64_t n_shards, uint64_t n_rows, uint64_t n_columns, uint64_t n_wide
) noexcept nogil:
    g.n_shards = n_shards
    g.n_rows = n_rows
    g.n_columns = n_columns
    g.n_wide = n_wide
    g.n_blocks = (n_rows + 63) >> 6
    g.mean = (n_rows << 16) // n_shards if n_shards else 0
    g.table_bytes = 8 * ((n_shards + 2) // 2)


cdef void ribbon_contains_many(
    const Ribbon* geometry, const uint8_t* data, const uint64_t* hashes, Py_ssize_t n, uint8_t* out,
) noexcept nogil:
    cdef Ribbon g = geometry[0]
    cdef RibbonRow rows[AHEAD]
    cdef RibbonRow* row
    cdef Py_ssize_t i
    if g.n_rows == 0:
        memset(out, 0, n)
        return
    for i in range(n + AHEAD):
        row = &rows[i & (AHEAD - 1)]
        if i >= AHEAD:
            out[i - AHEAD] = ribbon_holds(row)
        if i < n:
            ribbon_row(&g, data, hashes[i], row)
            prefetch(row.first)
            prefetch(row.second)


cdef class RibbonCore(FilterCore):
    """Kernel of :class:`dlbf.RibbonFilter`."""

    def _set_geometry(self, uint64_t n_shards, uint64_t n_rows, uint64_t n_columns, uint64_t n_wide):
        """Fix the geometry; the caller has checked the values."""
        ribbon_set_geometry(&self.geometry, n_shards, n_rows, n_columns, n_wide)

    cdef bint _contains(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return ribbon_contains(&self.geometry, self.data, h)

    cdef void _contains_chunk(self, const KeyChunk* chunk, const uint64_t* hashes, uint8_t* out) noexcept nogil:
        ribbon_contains_many(&self.geometry, self.data, hashes, chunk.n, out)

    cdef int _add(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return -1

    cdef int _remove(self, uint64_t h, const uint8_t* key, size_t n) noexcept nogil:
        return KEY_ABSENT

    cdef void _prefetch(self, uint64_t h) noexcept nogil:
        ribbon_prefetch(&self.geometry, self.data, h)

    cdef int _places(self, uint64_t h, uint64_t* out) noexcept nogil:
        cdef RibbonRow row
        cdef uint64_t shard = mulhi64(h, self.geometry.n_shards)
        if self.geometry.n_rows == 0:
            return 0
        # Two entries, and all words of two blocks: less than a chunk between the first byte and the last of each.
        ribbon_row(&self.geometry, self.data, h, &row)
        out[0] = 4 * shard
        out[1] = 4 * shard + 7
        if row.n_columns == 0:
            return 2
        out[2] = <uint64_t>(row.first - self.data)
        out[3] = <uint64_t>(row.second - self.data) + 8 * row.n_columns - 1
        return 4


# --- sorting ---------------------------------------------------------------------


cdef void sort_few(uint64_t* a, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i, j
    cdef uint64_t x
    for i in range(1, n):
        x = a[i]
        j = i
        while j > 0 and a[j - 1] > x:
            a[j] = a[j - 1]
            j -= 1
        a[j] = x


cdef void sort_hashes(uint64_t* a, Py_ssize_t n, int known_bits) noexcept nogil:
    """Sort in place; the highest ``known_bits`` of all are equal.

    Hashes are spread evenly, so some of their next bits say nearly where each belongs (McIlroy, Bostic and McIlroy,
    "Engineering radix sort", 1993).  Others are sorted, too, in at most 16 passes.
    """
    cdef Py_ssize_t place[1 << MOST_BITS]
    cdef Py_ssize_t end[1 << MOST_BITS]
    cdef Py_ssize_t i, at, n_buckets
    cdef uint64_t x, y, bucket, mask
    cdef int bits = LEAST_BITS, shift
    if n <= FEW:
        sort_few(a, n)
        return
    if known_bits >= 64:
        return
    while bits < MOST_BITS and (n >> (bits + 3)):
        bits += 1
    bits = min(bits, 64 - known_bits)
    shift = 64 - known_bits - bits
    n_buckets = <Py_ssize_t>1 << bits
    mask = <uint64_t>n_buckets - 1
    memset(end, 0, n_buckets * sizeof(Py_ssize_t))
    for i in range(n):
        end[(a[i] >> shift) & mask] += 1
    at = 0
    for i in range(n_buckets):
        place[i] = at
        at += end[i]
        end[i] = at
    for i in range(n_buckets):
        while place[i] < end[i]:
            x = a[place[i]]
            bucket = (x >> shift) & mask
            while bucket != <uint64_t>i:
                y = a[place[bucket]]
                a[place[bucket]] = x
                place[bucket] += 1
                x = y
                bucket = (x >> shift) & mask
            a[place[i]] = x
            place[i] += 1
    at = 0
    for i in range(n_buckets):
        sort_hashes(a + at, end[i] - at, known_bits + bits)
        at = end[i]


def ribbon_sort(uint64_t[::1] hashes, uint64_t filter_id=0):
    """Sort hashes, as the filter of that id sees them, in place, and move the different ones to the front.

    Returns how many different ones there are.
    """
    cdef Py_ssize_t n = hashes.shape[0], i, kept = 1
    cdef uint64_t* a
    if n == 0:
        return 0
    a = &hashes[0]
    with nogil:
        if filter_id:
            for i in range(n):
                a[i] = hash_for_filter(a[i], filter_id)
        sort_hashes(a, n, 0)
        for i in range(1, n):
            a[kept] = a[i]
            kept += a[i] != a[kept - 1]
    return kept


def ribbon_halve(uint64_t[::1] hashes, uint64_t filter_id=0):
    """Bring the hashes below 2^63, as the filter of that id sees them, to the front; returns how many there are."""
    cdef Py_ssize_t i, low = 0
    cdef uint64_t x
    with nogil:
        for i in range(hashes.shape[0]):
            # No branch depends on a hash: the processor could not foresee it.
            x = hash_for_filter(hashes[i], filter_id)
            hashes[i] = hashes[low]
            hashes[low] = x
            low += not x >> 63
    return low


def ribbon_close_gap(uint64_t[::1] hashes, Py_ssize_t to, Py_ssize_t start, Py_ssize_t n):
    """Move ``n`` hashes from ``start`` on to the place ``to`` before it."""
    if not 0 <= to <= start <= start + n <= hashes.shape[0]:
        raise ValueError(f"expected {to} <= {start} <= {start + n} <= {hashes.shape[0]}")
    if n:
        memmove(&hashes[to], &hashes[start], n * sizeof(uint64_t))


def ribbon_partition(uint64_t[::1] hashes, uint8_t[::1] regions, Py_ssize_t n_regions):
    """Bring the hashes of each region together, in place, and their regions with them.

    Returns the number of hashes before each region, and of all.  Every region must be below ``n_regions``.
    """
    cdef Py_ssize_t place[256]
    cdef Py_ssize_t end[256]
    cdef Py_ssize_t i, at = 0, n = hashes.shape[0]
    cdef uint64_t x
    cdef uint8_t region, swapped
    if regions.shape[0] != n:
        raise ValueError(f"expected a region for each of {n} hashes, found {regions.shape[0]}")
    memset(end, 0, sizeof(end))
    for i in range(n):
        end[regions[i]] += 1
    for i in range(256):
        if i >= n_regions and end[i]:
            raise ValueError(f"regions must be below {n_regions}, found {i}")
        place[i] = at
        at += end[i]
        end[i] = at
    before = [place[i] for i in range(n_regions)] + [n]
    with nogil:
        for i in range(n_regions):
            while place[i] < end[i]:
                at = place[i]
                region = regions[at]
                while region != i:
                    x = hashes[place[region]]
                    hashes[place[region]] = hashes[at]
                    hashes[at] = x
                    swapped = regions[place[region]]
                    regions[place[region]] = region
                    place[region] += 1
                    region = swapped
                regions[at] = region
                place[i] += 1
    return before


def ribbon_bounds(const uint64_t[::1] hashes, Py_ssize_t n, uint64_t n_shards):
    """Number of hashes before each shard, and ``n``: a numpy array of ``n_shards + 1``.  The first ``n`` are sorted."""
    cdef int64_t[::1] bounds
    cdef uint64_t shard
    cdef Py_ssize_t low = 0, high, middle, step
    found = np.empty(n_shards + 1, dtype=np.int64)
    bounds = found
    with nogil:
        bounds[0] = 0
        for shard in range(1, n_shards + 1):
            # Shards are about equal, so look near first.
            step = 4096
            high = low
            while high < n and mulhi64(hashes[high], n_shards) < shard:
                low = high
                high = min(n, high + step)
                step *= 2
            while low < high:
                middle = (low + high) // 2
                if mulhi64(hashes[middle], n_shards) < shard:
                    low = middle + 1
                else:
                    high = middle
            bounds[shard] = low
    return found


# --- solving ---------------------------------------------------------------------


cdef bint shard_is_even(
    const uint64_t* hashes, Py_ssize_t n, uint64_t n_rows, uint64_t seed, uint32_t* bins
) noexcept nogil:
    """Whether the queue (see ribbon.pxd) neither grows too long nor loses more rows than there are to spare.

    Counting is an order of magnitude cheaper than elimination, which would fail.
    """
    cdef uint64_t n_bins = n_rows // BIN_ROWS + 1, waiting = 0, i
    cdef Py_ssize_t k
    memset(bins, 0, n_bins * sizeof(uint32_t))
    for k in range(n):
        bins[ribbon_start(hashes[k], seed, n_rows) // BIN_ROWS] += 1
    for i in range(n_bins):
        waiting += bins[i]
        if waiting > MOST_WAITING or waiting > n_rows - BIN_ROWS * i:
            return False
        waiting = waiting - BIN_ROWS if waiting > BIN_ROWS else 0
    return True


cdef bint shard_eliminate(
    const uint64_t* hashes, Py_ssize_t n, uint64_t n_rows, uint64_t seed, uint64_t* coefficients, uint64_t* sums
) noexcept nogil:
    """Bring the equations into a form in which row i is the first of equation i; False if they contradict each other.

    ``coefficients[i]`` is 0 where there is no equation.
    """
    cdef uint64_t at, left, total
    cdef Py_ssize_t k
    cdef int skipped
    memset(coefficients, 0, n_rows * sizeof(uint64_t))
    for k in range(n):
        at = ribbon_start(hashes[k], seed, n_rows)
        left = ribbon_masked(ribbon_coefficients(hashes[k]), n_rows - at)
        total = ribbon_fingerprint(hashes[k])
        while coefficients[at]:
            left ^= coefficients[at]
            total ^= sums[at]
            if left == 0:
                return False
            skipped = ctz64(left)
            left >>= skipped
            at += skipped
        coefficients[at] = left
        sums[at] = total
    return True


cdef void shard_substitute(
    const Ribbon* g, const uint64_t* coefficients, const uint64_t* sums, uint64_t first_row, uint64_t n_rows,
    uint8_t* data, uint64_t head_block, uint64_t* head,
) noexcept nogil:
    """Solve from the last row to the first, and put the bits where they belong; block ``head_block`` into ``head``."""
    cdef uint64_t window[MAX_COLUMNS]         # of each column the rows after this one, the next in the lowest bit
    cdef uint64_t n_columns = g.n_columns + (first_row >> 6 < g.n_wide)
    cdef uint64_t i = n_rows, j, left, total, row, block, count, width, word
    cdef uint8_t* place
    memset(window, 0, sizeof(window))
    while i > 0:
        i -= 1
        left = coefficients[i]
        if left:
            left >>= 1
            total = sums[i]
            for j in range(n_columns):
                window[j] = (window[j] << 1) | (parity64(window[j] & left) ^ ((total >> j) & 1))
        else:
            for j in range(n_columns):
                window[j] <<= 1
        row = first_row + i
        if row & 63 and i:
            continue
        block = row >> 6
        count = min(64 - (row & 63), n_rows - i)
        width = min(n_columns, g.n_columns + (block < g.n_wide))
        place = data + g.table_bytes + 8 * (block * g.n_columns + min(block, g.n_wide))
        for j in range(width):
            word = ribbon_masked(window[j], count) << (row & 63)
            if block == head_block:
                head[j] |= word
            else:
                store64(place + 8 * j, load64(place + 8 * j) | word)


cdef inline uint32_t table_entry(const Ribbon* g, uint64_t shard, uint64_t first_row) noexcept nogil:
    return <uint32_t>(first_row + RIBBON_OFFSET - ((shard * g.mean) >> 16)) << 8


cdef int64_t solve_shards(
    const Ribbon* g, const uint64_t* hashes, const int64_t* bounds, const int64_t* rows, uint64_t first, uint64_t last,
    uint8_t* data, uint64_t* scratch, uint64_t most_rows, uint64_t* head,
) noexcept nogil:
    cdef uint64_t shard, first_row, n_rows, seed
    cdef const uint64_t* own
    cdef Py_ssize_t n
    cdef uint64_t* coefficients = scratch
    cdef uint64_t* sums = scratch + most_rows
    cdef uint32_t* bins = <uint32_t*>(scratch + 2 * most_rows)
    for shard in range(first, last):
        first_row, n_rows = rows[shard], rows[shard + 1] - rows[shard]
        own = hashes + bounds[shard]
        n = bounds[shard + 1] - bounds[shard]
        seed = 0
        if g.n_columns + (first_row >> 6 < g.n_wide):
            while seed < RIBBON_SEEDS:
                if shard_is_even(own, n, n_rows, seed, bins) and shard_eliminate(
                    own, n, n_rows, seed, coefficients, sums
                ):
                    break
                seed += 1
            if seed == RIBBON_SEEDS:
                return shard
            shard_substitute(g, coefficients, sums, first_row, n_rows, data, rows[first] >> 6, head)
        store32(data + 4 * shard, table_entry(g, shard, first_row) | <uint32_t>seed)
    if last == g.n_shards:
        store32(data + 4 * last, table_entry(g, last, g.n_rows))
    return -1


def ribbon_solve(
    const uint64_t[::1] hashes, const int64_t[::1] bounds, const int64_t[::1] rows, uint64_t n_columns,
    uint64_t n_wide, uint8_t[::1] data, uint64_t first, uint64_t last,
):
    """Solve the shards from ``first`` to before ``last``, and write them to ``data``, where zeros are.

    Parameters
    ----------
    hashes, bounds : arrays
        What ``ribbon_sort`` and ``ribbon_bounds`` made.
    rows : array
        First row of each shard, and their number.
    n_columns, n_wide : int
        The geometry.
    data : writable buffer
        The whole payload, also of the shards that other threads solve.
    first, last : int
        Which shards.

    Returns
    -------
    failed : int
        A shard that no seed solves, for it has too few rows; -1 if all are solved.
    head : numpy.ndarray of uint64
        Words of the block in which the first of these shards starts: others may write to it, so the caller puts them
        there, with ``ribbon_put_head``.

    Notes
    -----
    Without the GIL; two calls for different shards may run at once.
    """
    cdef Ribbon g
    cdef uint64_t n_shards = bounds.shape[0] - 1, shard, most_rows = 1
    cdef int64_t failed
    cdef uint64_t[::1] scratch, words
    cdef const uint64_t* a = NULL
    ribbon_set_geometry(&g, n_shards, rows[n_shards], n_columns, n_wide)
    for shard in range(first, last):
        most_rows = max(most_rows, <uint64_t>(rows[shard + 1] - rows[shard]))
    scratch = np.empty(2 * most_rows + most_rows // (2 * BIN_ROWS) + 1, dtype=np.uint64)
    head = np.zeros(MAX_COLUMNS, dtype=np.uint64)
    words = head
    if hashes.shape[0]:
        a = &hashes[0]
    with nogil:
        failed = solve_shards(
            &g, a, &bounds[0], &rows[0], first, last, &data[0], &scratch[0], most_rows, &words[0]
        )
    return failed, head


def ribbon_put_head(
    const int64_t[::1] rows, uint64_t n_columns, uint64_t n_wide, uint8_t[::1] data, uint64_t first,
    const uint64_t[::1] head,
):
    """Write what ``ribbon_solve`` returned for the shards from ``first`` on."""
    cdef Ribbon g
    cdef uint64_t n_shards = rows.shape[0] - 1, block = rows[first] >> 6, j
    cdef uint8_t* place
    ribbon_set_geometry(&g, n_shards, rows[n_shards], n_columns, n_wide)
    if block < g.n_blocks:
        place = &data[0] + g.table_bytes + 8 * (block * g.n_columns + min(block, g.n_wide))
        for j in range(n_columns + (block < n_wide)):
            store64(place + 8 * j, load64(place + 8 * j) | head[j])
