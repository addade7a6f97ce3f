"""Measuring: made-up keys, interleaved timing, and the sections of ``dlbf bench``."""
