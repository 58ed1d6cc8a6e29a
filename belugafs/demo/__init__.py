"""``belugafs demo``: two engine processes share one KV cache through a mounted pool.

The package holds a small but real transformer in numpy with a paged KV cache (``model``,
``paged``, ``keys``, ``store``, ``engine``), and what makes, mounts, shows and removes a pool
around it (``mounting``, ``flow``, ``cli``). The engine knows nothing of belugafs: it uses
directories, files and ``mmap``, as any engine would. ``vllm_side`` holds the files that run
under vLLM's interpreter, ``vllm_flow`` what starts them.

Nothing else in belugafs depends on this package.
"""
