/* The kernel's FUSE protocol, as much of it as the direct transport speaks: version 7.40.
 * Written down here because the headers of the distributions that belugafs is built on are older
 * than the kernels that it runs on.  Numbers and layouts are the kernel's (include/uapi/linux/fuse.h).
 * All structures are little-endian words without holes, 8-byte aligned. */
#ifndef BELUGAFS_DIRECT_PROTO_H
#define BELUGAFS_DIRECT_PROTO_H

#include <stdint.h>
#include <sys/ioctl.h>

#define FP_MAJOR 7
#define FP_MINOR 40u
#define FP_MINOR_LEAST 31u /* Linux 5.4 */

#define FP_IOC_CLONE _IOR(229, 0, uint32_t)

enum fp_op {
	FP_LOOKUP = 1, FP_FORGET = 2, FP_GETATTR = 3, FP_SETATTR = 4, FP_READLINK = 5, FP_SYMLINK = 6, FP_MKNOD = 8, FP_MKDIR = 9,
	FP_UNLINK = 10, FP_RMDIR = 11, FP_RENAME = 12, FP_LINK = 13, FP_OPEN = 14, FP_READ = 15, FP_WRITE = 16, FP_STATFS = 17,
	FP_RELEASE = 18, FP_FSYNC = 20, FP_SETXATTR = 21, FP_GETXATTR = 22, FP_LISTXATTR = 23, FP_REMOVEXATTR = 24, FP_FLUSH = 25,
	FP_INIT = 26, FP_OPENDIR = 27, FP_READDIR = 28, FP_RELEASEDIR = 29, FP_FSYNCDIR = 30, FP_ACCESS = 34, FP_CREATE = 35,
	FP_INTERRUPT = 36, FP_DESTROY = 38, FP_IOCTL = 39, FP_BATCH_FORGET = 42, FP_FALLOCATE = 43, FP_READDIRPLUS = 44,
	FP_RENAME2 = 45, FP_LSEEK = 46, FP_COPY_FILE_RANGE = 47, FP_SYNCFS = 50, FP_TMPFILE = 51, FP_STATX = 52,
	FP_OPS = 64,
};

/* INIT flags; those from bit 32 on travel in flags2 */
#define FP_I_ASYNC_READ (1ull << 0)
#define FP_I_ATOMIC_O_TRUNC (1ull << 3)
#define FP_I_EXPORT_SUPPORT (1ull << 4)
#define FP_I_BIG_WRITES (1ull << 5)
#define FP_I_AUTO_INVAL_DATA (1ull << 12)
#define FP_I_DO_READDIRPLUS (1ull << 13)
#define FP_I_READDIRPLUS_AUTO (1ull << 14)
#define FP_I_ASYNC_DIO (1ull << 15)
#define FP_I_PARALLEL_DIROPS (1ull << 18)
#define FP_I_ABORT_ERROR (1ull << 21)
#define FP_I_MAX_PAGES (1ull << 22)
#define FP_I_CACHE_SYMLINKS (1ull << 23)
#define FP_I_HANDLE_KILLPRIV_V2 (1ull << 28)
#define FP_I_INIT_EXT (1ull << 30)
#define FP_I_DIRECT_IO_ALLOW_MMAP (1ull << 36) /* Linux 6.6 */
#define FP_I_PASSTHROUGH (1ull << 37)          /* Linux 6.9 */

#define FP_O_DIRECT_IO (1u << 0)
#define FP_O_KEEP_CACHE (1u << 1)
#define FP_O_NOFLUSH (1u << 5)
#define FP_O_PARALLEL_DIRECT_WRITES (1u << 6)
#define FP_O_PASSTHROUGH (1u << 7)

enum {
	FP_SET_MODE = 1 << 0, FP_SET_UID = 1 << 1, FP_SET_GID = 1 << 2, FP_SET_SIZE = 1 << 3, FP_SET_ATIME = 1 << 4, FP_SET_MTIME = 1 << 5,
	FP_SET_FH = 1 << 6, FP_SET_ATIME_NOW = 1 << 7, FP_SET_MTIME_NOW = 1 << 8, FP_SET_CTIME = 1 << 10, FP_SET_KILL_SUIDGID = 1 << 11,
};
#define FP_WRITE_KILL_SUIDGID (1u << 2)
#define FP_OPEN_KILL_SUIDGID (1u << 0)

struct fp_in { uint32_t len, opcode; uint64_t unique, nodeid; uint32_t uid, gid, pid; uint16_t ext_words, pad; };
struct fp_out { uint32_t len; int32_t error; uint64_t unique; };

struct fp_attr {
	uint64_t ino, size, blocks, atime, mtime, ctime;
	uint32_t atime_ns, mtime_ns, ctime_ns, mode, nlink, uid, gid, rdev, blksize, flags;
};
struct fp_entry_out { uint64_t nodeid, generation, entry_valid_s, attr_valid_s; uint32_t entry_valid_ns, attr_valid_ns; struct fp_attr attr; };
struct fp_attr_out { uint64_t valid_s; uint32_t valid_ns, pad; struct fp_attr attr; };
struct fp_init_in { uint32_t major, minor, max_readahead, flags, flags2, unused[11]; };
struct fp_init_out {
	uint32_t major, minor, max_readahead, flags;
	uint16_t max_background, congestion_threshold;
	uint32_t max_write, time_gran;
	uint16_t max_pages, map_alignment;
	uint32_t flags2, max_stack_depth;
	uint16_t request_timeout_s, unused[11];
};
struct fp_setattr_in {
	uint32_t valid, pad;
	uint64_t fh, size, lock_owner, atime, mtime, ctime;
	uint32_t atime_ns, mtime_ns, ctime_ns, mode, unused4, uid, gid, unused5;
};
struct fp_mknod_in { uint32_t mode, rdev, umask, pad; };
struct fp_mkdir_in { uint32_t mode, umask; };
struct fp_rename_in { uint64_t newdir; };
struct fp_rename2_in { uint64_t newdir; uint32_t flags, pad; };
struct fp_link_in { uint64_t ino; };
struct fp_open_in { uint32_t flags, open_flags; };
struct fp_create_in { uint32_t flags, mode, umask, open_flags; };
struct fp_open_out { uint64_t fh; uint32_t open_flags; int32_t backing_id; };
struct fp_release_in { uint64_t fh; uint32_t flags, release_flags; uint64_t lock_owner; };
struct fp_flush_in { uint64_t fh; uint32_t unused, pad; uint64_t lock_owner; };
struct fp_read_in { uint64_t fh, offset; uint32_t size, read_flags; uint64_t lock_owner; uint32_t flags, pad; };
struct fp_write_in { uint64_t fh, offset; uint32_t size, write_flags; uint64_t lock_owner; uint32_t flags, pad; };
struct fp_write_out { uint32_t size, pad; };
struct fp_fsync_in { uint64_t fh; uint32_t flags, pad; };
struct fp_setxattr_in { uint32_t size, flags; };
struct fp_getxattr_in { uint32_t size, pad; };
struct fp_getxattr_out { uint32_t size, pad; };
struct fp_statfs_out { uint64_t blocks, bfree, bavail, files, ffree; uint32_t bsize, namelen, frsize, pad, spare[6]; };
struct fp_fallocate_in { uint64_t fh, offset, length; uint32_t mode, pad; };
struct fp_lseek_in { uint64_t fh, offset; uint32_t whence, pad; };
struct fp_lseek_out { uint64_t offset; };
struct fp_ioctl_in { uint64_t fh; uint32_t flags, cmd; uint64_t arg; uint32_t in_size, out_size; };
struct fp_ioctl_out { int32_t result; uint32_t flags, in_iovs, out_iovs; };
struct fp_dirent { uint64_t ino, off; uint32_t namelen, type; };
struct fp_statx_time { int64_t s; uint32_t ns; int32_t pad; };
struct fp_statx_in { uint32_t getattr_flags, reserved; uint64_t fh; uint32_t sx_flags, sx_mask; };
struct fp_statx {
	uint32_t mask, blksize;
	uint64_t attributes;
	uint32_t nlink, uid, gid;
	uint16_t mode, pad;
	uint64_t ino, size, blocks, attributes_mask;
	struct fp_statx_time atime, btime, ctime, mtime;
	uint32_t rdev_major, rdev_minor, dev_major, dev_minor;
	uint64_t spare[14];
};
struct fp_statx_out { uint64_t valid_s; uint32_t valid_ns, flags; uint64_t spare[2]; struct fp_statx stat; };

_Static_assert(sizeof(struct fp_in) == 40 && sizeof(struct fp_out) == 16 && sizeof(struct fp_attr) == 88 && sizeof(struct fp_entry_out) == 128 && sizeof(struct fp_attr_out) == 104, "protocol 7.40");
_Static_assert(sizeof(struct fp_init_in) == 64 && sizeof(struct fp_init_out) == 64 && sizeof(struct fp_setattr_in) == 88 && sizeof(struct fp_read_in) == 40 && sizeof(struct fp_write_in) == 40, "protocol 7.40");
_Static_assert(sizeof(struct fp_statx) == 256 && sizeof(struct fp_statx_out) == 288 && sizeof(struct fp_statfs_out) == 80 && sizeof(struct fp_open_out) == 16 && sizeof(struct fp_dirent) == 24, "protocol 7.40");

#define FP_ALIGN(n) (((n) + 7) & ~(size_t)7)

#endif
