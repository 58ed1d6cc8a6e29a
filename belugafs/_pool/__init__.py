"""Parts of :mod:`belugafs.pool`, which is the interface; import from there."""
