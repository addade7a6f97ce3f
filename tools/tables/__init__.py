"""The tables of README and docs, made from recorded figures.

A *section* is a command, mostly of ``dlbf bench``; its output is recorded as ``docs/figures/SECTION.json``, with the
machine and the commit.  A *table* is made from such a record.  In a markdown file it stands between markers, and so
does a figure in running text::

    <!-- table: peers -->
    (this is written by ``make tables``)
    <!-- end -->

    It takes <!-- figure: learned/sizes/0/bits_per_key:.2f -->0.89<!-- end --> bits per key.

The first part of a figure is the section, the others lead into its record; after the colon is a Python format.  The
section ``derived`` has what is computed from a record, or from the theory alone: see ``attacks.DERIVED``.
``make tables SECTIONS="filters store"`` measures those sections anew and rewrites every file; without sections it only
rewrites.  A test fails when a file is not what the records give.

A table of many columns is written in parts that fit a page.  ``pictures`` draws ``docs/img/bits-per-key.svg``.

A section may bring tables of its own: a record with ``{"tables": {"name": {"headings": [...], "rows": [[...]]}}}``.
"""
