"""belugafs: the KV cache of LLM engines as files in a shared memory pool.

This version has the filesystem: ``mkfs.belugafs``, ``mount -t belugafs``, ``belugafs status``
and ``ls``, ``fsck.belugafs -n``. The C core is ``belugafs._native``. The client library
(``belugafs.connect``) comes with a later version.
"""

__version__ = "0.1.0"
