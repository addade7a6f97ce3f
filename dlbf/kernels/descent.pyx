"""Logistic regression over the table view by stochastic gradients, straight from packed keys: no matrix is made.

Floating point is fine here: what is learnt is rounded to integers afterwards, and only those ever score a key.
"""

from libc.math cimport exp, sqrtf

from dlbf.kernels.features cimport (
    MAX_INDICES, TAKE_INDICES, check_packed, count_low, ngram_walk,
)
from dlbf.kernels.types cimport int64_t, uint8_t, uint32_t

from dlbf.kernels.features import check_ngram


def descend(const uint8_t[::1] data, const int64_t[::1] offsets, const int64_t[::1] rows, const uint8_t[::1] labels,
            order, split_byte, log2_weights, float[::1] weights, float[::1] squares, double rate):
    """Take one gradient step for each row, in order.

    Parameters
    ----------
    data, offsets : arrays
        From `dlbf.kernels.features.pack_keys`.
    rows : array of int64
        Which keys, in which order.
    labels : array of uint8
        1 for a stored key, 0 for an absent one, for each of ``rows``.
    order, split_byte, log2_weights : int
        As for `dlbf.kernels.features.ngram_rows`.
    weights, squares : arrays of float32
        The ``2**log2_weights`` weights and the intercept after them, and the sums of their squared gradients; both are
        changed.  Each weight moves by ``rate / sqrt(its sum)`` times its gradient: rare runs learn as fast as common
        ones.
    rate : float
        Size of the first step.

    Examples
    --------
    >>> import numpy as np
    >>> from dlbf.kernels.features import pack_keys
    >>> data, offsets = pack_keys([b"10.0.0.1/a.exe", b"example.org/b.html"])
    >>> weights, squares = np.zeros(1025, np.float32), np.ones(1025, np.float32)
    >>> descend(data, offsets, np.array([0, 1]), np.array([1, 0], np.uint8), 3, 47, 10, weights, squares, 0.1)
    >>> int((weights > 0).sum()) > 5, int((weights < 0).sum()) > 5
    (True, True)
    """
    check_ngram(order, split_byte, log2_weights)
    check_packed(data, offsets, rows)
    cdef uint32_t run = order, split = split_byte, shift = 32 - log2_weights, n_weights = 1 << log2_weights
    cdef Py_ssize_t i, j, m = 0, n = rows.shape[0]
    cdef uint32_t[MAX_INDICES + 1] found
    cdef double margin, probability
    cdef float gradient, step = <float>rate
    cdef uint8_t nothing = 0
    cdef const uint8_t* base = &data[0] if data.shape[0] else &nothing
    if labels.shape[0] != n:
        raise ValueError(f"expected {n} labels, found {labels.shape[0]}")
    if weights.shape[0] != n_weights + 1 or squares.shape[0] != n_weights + 1:
        raise ValueError(
            f"expected {n_weights + 1} weights and squares, found {weights.shape[0]} and {squares.shape[0]}")
    with nogil:
        for i in range(n):
            ngram_walk(base + offsets[rows[i]], <size_t>(offsets[rows[i] + 1] - offsets[rows[i]]), run, split, shift,
                       count_low, TAKE_INDICES, NULL, found, &m)
            found[m] = n_weights
            margin = 0.0
            for j in range(m + 1):
                margin += weights[found[j]]
            if margin > 30.0:
                margin = 30.0
            elif margin < -30.0:
                margin = -30.0
            probability = 1.0 / (1.0 + exp(-margin))
            gradient = <float>(probability - labels[i])
            for j in range(m + 1):
                squares[found[j]] += gradient * gradient
                weights[found[j]] -= step * gradient / sqrtf(squares[found[j]])
