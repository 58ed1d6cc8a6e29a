"""``belugafs bench --library``: look-ups, leases and copies of the client library, in one run.

===========  =======================================================================
``rows``     a row: the same work in several places; rounds, medians, ratios
``stores``   the places: a pool attached by this process, a dict, a mount through FUSE
``peers``    others where they are installed: LMDB on tmpfs, Mooncake's shared memory
``lookups``  rows of look-ups, also in a pool with millions of blocks
``blocks``   rows of leases, views and copies of blocks
``run``      the run: makes the places, measures all rows
``report``   the tables, the JSON, the picture
===========  =======================================================================

All of it runs in this process on pools in memory that it makes and removes; only FUSE needs a
mount, and is left out, with the reason, where there can be none. Ratios are of speeds, ours to
theirs: above 1 the library is faster.
"""
