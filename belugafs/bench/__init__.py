"""``belugafs bench``: a mount against tmpfs and memcpy, in one run.

=============  ==================================================================
``cli``        the command
``plan``       what is measured: cells of case, size and number of clients
``client``     one client process: does the work, is timed by itself
``clients``    the client processes, from outside: started once, started together
``place``      the pool and mount of the run, or the mount that is there; tmpfs
``runner``     rounds, medians, ratios
``report``     the table, the JSON
``plot``       the picture, with matplotlib
=============  ==================================================================

The machine is shared and noisy, so each cell is measured in rounds that alternate between the
places (mount, tmpfs, mount, tmpfs), and a ratio is the median of the ratios within a round. The
process that runs this never touches the mount itself: a daemon that hangs hangs a client, which
has a deadline.
"""
