class KeyReader:
    n_read: int
