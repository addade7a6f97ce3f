"""The learned filter: one composite of a model and base filters, many designs."""
