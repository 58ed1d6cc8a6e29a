/* belugafs pool format, version 1.  docs/format.md is the specification; this
 * header and belugafs/format.py declare it, and tests/t0_format holds the three
 * together.  All integers are little-endian.  Nothing here is a pointer: places
 * are page numbers, granule addresses or byte offsets from the pool's start.
 *
 * Every 64-byte line has one writer, named beside its struct.
 */
#ifndef BELUGAFS_FORMAT_H
#define BELUGAFS_FORMAT_H

#include <assert.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

#define BFS_MAGIC "BELUGAFS"
#define BFS_VERSION_MAJOR 1u
#define BFS_VERSION_MINOR 0u

#define BFS_LINE 64u
#define BFS_PAGE 4096u    /* metadata page */
#define BFS_GRANULE 4096u /* unit of data allocation */
#define BFS_SB_OFF_A 0u
#define BFS_SB_OFF_B 4096u
#define BFS_HOSTS_MAX 16u
#define BFS_DEVICES_MAX 16u
#define BFS_NAME_MAX 255u
#define BFS_KEY_MAX 64u      /* raw key of a native block, bytes */
#define BFS_XATTR_MAX 65536u /* all extended attributes of an object together, bytes */
#define BFS_SYMLINK_MAX 4095u
#define BFS_LINK_MAX 65000u
#define BFS_REGION_GRANULES_MAX 16384u /* 64 MiB: one bitmap page each */

/* ---- checksummed 64-byte lines ------------------------------------------ */
/* csum = XXH3_64(first 56 bytes, seed = incarnation ^ (slot << 8 | line index)).
 * A line that was never written is all zero, and is absent, not damaged. */
struct bfs_line {
	u64 w[7];
	u64 csum;
};
static_assert(sizeof(struct bfs_line) == 64, "line");

/* Indices of the lines in a host slot's control area (writer: that host). */
enum {
	BFS_L_IDENT = 0,  /* w0,w1 host uuid; w2 boot id; w3 incarnation of the registration; w4 mount state; w5 features known (incompat); w6 registered at, s */
	BFS_L_CLAIM = 1,  /* w0 term; this line and CLAIM_B in turn, the higher valid one counts */
	BFS_L_ROOT_A = 2, /* w0 term; w1 txn; w2 root page; w3 page's term; w4 page's txn */
	BFS_L_ROOT_B = 3,
	BFS_L_GRANT = 4, /* w0: bit i = chunk i of BFS_CHUNK_PAGES(meta_pages) metadata pages; w1 term it was taken in; w2 count of
			  * writes; w3..w6: runs of data regions that it puts blocks into, first region | count << 32; this line
			  * and GRANT_B in turn, the valid one with the higher w2 counts */
	BFS_L_PIN_A = 5, /* w0,w1 lowest (term, txn) in use; w2,w3 highest */
	BFS_L_PIN_B = 6,
	BFS_L_APPLIED = 7, /* w0 term; w1 txn; w2 scan number; w3 number of held lines; w4 1 = everything is held */
	BFS_L_HEART = 8,   /* w0 counter; w1 seconds (that host's clock); w2 touch ring position */
	BFS_L_SPLIT_X = 9, /* exception: the splitter's two lines have many writers (whole-line stores): w0 host uuid low */
	BFS_L_SPLIT_Y = 10,/* w0 1 */
	BFS_L_CLAIM_B = 11,
	BFS_L_GRANT_B = 12,
	BFS_L_HELD = 16,   /* w0 scan number; w1..w6 granule address of held extents, 0 = none */
	BFS_HELD_LINES = 112,
	BFS_L_COUNT = 128, /* 8 KiB */
};
enum { BFS_MNT_NONE = 0, BFS_MNT_LIVE = 1, BFS_MNT_CLEAN = 2 };

/* ---- superblock (writer: mkfs; two copies) ------------------------------- */
struct bfs_device {
	u8 uuid[16];
	u64 size_bytes;
	u64 data_granules;
};

struct bfs_super {
	char magic[8];
	u32 version_major, version_minor;
	u64 compat, ro_compat, incompat;
	u8 uuid[16];
	u64 incarnation; /* random at mkfs: seeds every checksum, so that nothing of a former pool validates */
	u64 size_bytes, max_size_bytes;
	u64 created_s;
	u32 map_bytes; /* mapping granularity at mkfs */
	u32 nhosts;
	u64 host_off;
	u32 host_stride;   /* control lines, touch ring, open-file rows */
	u32 ring_entries;  /* u64 each, at slot + 8 KiB */
	u32 rows;          /* struct bfs_row pairs, after the ring */
	u32 rpc_stride;    /* one ring per (from, to) pair; reserved in version 1 */
	u64 rpc_off;
	u64 meta_off;
	u32 meta_pages; /* page numbers 1 .. meta_pages-1; 0 means none */
	u32 inodes;     /* slots 1 .. inodes-1; slot 1 is the root directory */
	u32 hash_buckets;
	u32 region_granules; /* power of two */
	u64 data_off;
	u64 data_granules; /* of device 0 */
	u32 chunk_bytes;   /* unit of checksums, power of two, multiple of the granule */
	u32 pad0;
	u64 hash_seed;
	u8 label[64];
	struct bfs_device dev[BFS_DEVICES_MAX];
	u8 pad1[4096 - 248 - 512 - 8];
	u64 csum; /* XXH3_64 of the 4088 bytes before it, seed 0 */
};
static_assert(sizeof(struct bfs_super) == 4096, "superblock");

/* ---- metadata pages ------------------------------------------------------- */
/* A pointer names a page and the transaction that wrote it; the same (page, term,
 * txn) is written once, ever. */
struct bfs_ptr {
	u32 page; /* 0 = none */
	u32 term;
	u64 txn;
};
static_assert(sizeof(struct bfs_ptr) == 16, "ptr");

enum {
	BFS_PK_ROOT = 0x52,
	BFS_PK_RADIX = 0x58,
	BFS_PK_OBJ = 0x4f,
	BFS_PK_HASH = 0x48,
	BFS_PK_BLEAF = 0x4c,
	BFS_PK_BNODE = 0x4e,
	BFS_PK_MAP = 0x4d,
	BFS_PK_LOG = 0x47,
	BFS_PK_REGION = 0x45,
	BFS_PK_STAMP = 0x53,
	BFS_PK_BLOB = 0x42,
	BFS_PK_SUMS = 0x55,
};

struct bfs_phead { /* writer of a page: the leader whose grant it is in */
	u16 kind;
	u16 count; /* meaning depends on kind */
	u32 self;  /* own page number */
	u32 term;
	u32 aux; /* depends on kind */
	u64 txn;
	u64 csum; /* XXH3_64(bytes 32.., seed = incarnation ^ XXH3_64(bytes 0..23, seed = incarnation)) */
};
static_assert(sizeof(struct bfs_phead) == 32, "phead");
#define BFS_BODY (BFS_PAGE - 32u)

/* metadata pages are granted to leaders in 64 chunks of equal size */
#define BFS_CHUNK_PAGES(meta_pages) (((meta_pages) + 63u) / 64u)

#define BFS_RADIX_FAN 254u
struct bfs_radix {
	struct bfs_phead h; /* aux = level, 1 = children are leaves */
	struct bfs_ptr child[BFS_RADIX_FAN];
};
static_assert(sizeof(struct bfs_radix) == 4096, "radix");

#define BFS_MAP_BITS 32000u
struct bfs_map { /* one bit per metadata page: 1 = in use, or freed and not yet proven reusable */
	struct bfs_phead h;
	u64 bits[BFS_MAP_BITS / 64];
	u8 pad[BFS_BODY - BFS_MAP_BITS / 8];
};
static_assert(sizeof(struct bfs_map) == 4096, "map");

struct bfs_logent { /* a metadata page freed, born at b, freed at f */
	u32 page;
	u32 bterm;
	u64 btxn;
	u32 fterm;
	u32 pad;
	u64 ftxn;
};
#define BFS_LOG_MAX 127u
struct bfs_log {
	struct bfs_phead h; /* count = entries */
	struct bfs_logent e[BFS_LOG_MAX];
};
static_assert(sizeof(struct bfs_log) == 4096, "log");

struct bfs_region {
	struct bfs_phead h; /* count = size class + 1 (0 = empty region), aux = free granules */
	u64 bits[BFS_REGION_GRANULES_MAX / 64]; /* 1 = allocated, granted or quarantined */
	u8 pad[BFS_BODY - BFS_REGION_GRANULES_MAX / 8];
};
static_assert(sizeof(struct bfs_region) == 4096, "region");

#define BFS_STAMPS 1000u
struct bfs_stamps { /* coarse time of last use by object slot, seconds since 1970 */
	struct bfs_phead h;
	u32 s[BFS_STAMPS];
	u8 pad[BFS_BODY - 4 * BFS_STAMPS];
};
static_assert(sizeof(struct bfs_stamps) == 4096, "stamps");

#define BFS_BLOB_BYTES (BFS_BODY - 16u)
struct bfs_blob { /* extended attributes, long symlink targets */
	struct bfs_phead h; /* aux = bytes used in this page */
	struct bfs_ptr next;
	u8 data[BFS_BLOB_BYTES];
};
static_assert(sizeof(struct bfs_blob) == 4096, "blob");

#define BFS_SUMS 508u
struct bfs_sums {
	struct bfs_phead h;
	u64 s[BFS_SUMS];
};
static_assert(sizeof(struct bfs_sums) == 4096, "sums");

/* ---- objects --------------------------------------------------------------- */
#define BFS_INLINE_SUMS 10u
#define BFS_INLINE_LINK 80u
enum { BFS_CLS_NONE = 0, BFS_CLS_BLOCK = 1, BFS_CLS_ORDINARY = 2 };
enum {
	BFS_ST_FREE = 0,
	BFS_ST_SEALED = 1,   /* what others see; directories and links are always sealed */
	BFS_ST_NEW = 2,      /* first writing, seen by its owner host only */
	BFS_ST_DIRTY = 3,    /* was sealed, is written again: base for others, overlay for the owner */
	BFS_ST_ABANDONED = 4,/* its first writer was killed */
};
enum {
	BFS_OF_NSBLOCK = 1,    /* directory: namespace of native blocks */
	BFS_OF_NOSUM = 2,      /* no checksums wanted */
	BFS_OF_UNVERIFIED = 4, /* content isn't covered by sums (crash while dirty) */
	BFS_OF_PINNED = 8,     /* never evicted; of a directory: nor is anything in it */
	BFS_OF_PUBLISHED = 16, /* some host saw it sealed before */
	BFS_OF_PINNED_SOFT = 32, /* evicted only when nothing unpinned is left; of a directory: so is all in it */
	BFS_OF_EMPTIED = 64,   /* directory: an eviction took its last entry, and nobody has used it since */
	BFS_OF_FORMING = 128,  /* file: has its first name, and was only ever added to: another name makes it a block */
};

struct bfs_obj { /* 240 bytes, 16 to a page */
	u32 slot, gen;
	u32 mode, nlink;
	u32 uid, gid;
	u64 size;
	u64 granules; /* allocated, base and overlay */
	i64 atime_ns, mtime_ns, ctime_ns, btime_ns;
	u32 rdev;
	u8 cls, state, owner /* host + 1 while unsealed */, flags;
	u32 version;   /* content version, grows with each seal */
	u32 next_free; /* free slots: FIFO */
	u64 parent;    /* first link: directory inode, */
	u64 cookie;    /* cookie and */
	u64 hash;      /* hash of its entry */
	union {
		struct {
			u64 inl_addr; /* one extent from file offset 0, 0 = none; others are BFS_T_EXT records */
			u32 inl_len;  /* granules */
			u32 nextents; /* EXT records, base and overlay */
		} f;
		struct {
			u64 entries;
			u32 subdirs;
			u32 guess; /* granules of the block last sealed here, or the first of a directory here, that wasn't empty */
		} d;
	} u;
	u32 nsums;
	u32 sums_height;
	struct bfs_ptr blob; /* xattrs; for a symlink longer than 80 bytes the target */
	u32 blob_len;
	u32 pad;
	union {
		u64 sum[BFS_INLINE_SUMS]; /* XXH3_64 per chunk, seed 0 */
		struct bfs_ptr sums;      /* radix of sums pages when nsums > 10 */
		u8 link[BFS_INLINE_LINK];
	} v;
};
static_assert(sizeof(struct bfs_obj) == 240, "obj");
#define BFS_OBJS 16u
struct bfs_objs {
	struct bfs_phead h;
	struct bfs_obj o[BFS_OBJS];
	u8 pad[BFS_BODY - 240 * BFS_OBJS];
};
static_assert(sizeof(struct bfs_objs) == 4096, "objs");

/* ---- hashed entries --------------------------------------------------------- */
enum { BFS_EK_NAME = 0, BFS_EK_KEY = 1 };
struct bfs_ent { /* 4-byte aligned in the bucket's heap; name follows */
	u32 dir_lo, dir_hi;
	u32 ino_lo, ino_hi;
	u32 cookie_lo, cookie_hi;
	u8 kind;
	u8 owner; /* 0 = published; host + 1 = private to that host */
	u8 type;  /* mode >> 12 */
	u8 len;
};
static_assert(sizeof(struct bfs_ent) == 28, "ent");
#define BFS_BUCKET_MAX 64u
#define BFS_BUCKET_HEAP (BFS_BODY - 16u - 4u * BFS_BUCKET_MAX)
struct bfs_bucket {
	struct bfs_phead h; /* count = entries, aux = heap bytes used (no gaps) */
	struct bfs_ptr more; /* overflow bucket */
	u16 fp[BFS_BUCKET_MAX];  /* bits 48..63 of the hash */
	u16 off[BFS_BUCKET_MAX]; /* of bfs_ent in heap */
	u8 heap[BFS_BUCKET_HEAP];
};
static_assert(sizeof(struct bfs_bucket) == 4096, "bucket");

/* ---- ordered records (one B+tree) -------------------------------------------- */
struct bfs_key {
	u64 a, b, c;
};
struct bfs_rec {
	struct bfs_key k;
	u64 x, y;
};
static_assert(sizeof(struct bfs_rec) == 40, "rec");
#define BFS_BT_MAX 101u
struct bfs_bleaf {
	struct bfs_phead h; /* count */
	struct bfs_rec r[BFS_BT_MAX];
	u8 pad[BFS_BODY - 40 * BFS_BT_MAX];
};
static_assert(sizeof(struct bfs_bleaf) == 4096, "bleaf");
struct bfs_bnode {
	struct bfs_phead h; /* count, aux = level (1 = children are leaves) */
	struct {
		struct bfs_key k; /* <= every key below */
		struct bfs_ptr p;
	} e[BFS_BT_MAX];
	u8 pad[BFS_BODY - 40 * BFS_BT_MAX];
};
static_assert(sizeof(struct bfs_bnode) == 4096, "bnode");

#define BFS_T(kind, low) ((u64)(kind) << 56 | (u64)(low))
enum {                /* a                     b             c        -> x                  y */
	BFS_T_LIST = 1,   /* T|dir slot            cookie        0           entry hash         inode */
	BFS_T_KEYS = 2,   /* T|namespace slot      key[0..2]<<48 cookie     entry hash         inode */
	BFS_T_EXT = 3,    /* T|slot                file granule  overlay     granule address    length | hole << 32 */
	BFS_T_OWN = 4,    /* T                     granule addr  0           len|host<<32|st<<40 inode */
	BFS_T_QUAR = 5,   /* T                     txn freed     gran. addr  length             term freed */
	BFS_T_OPEN = 6,   /* T|host                slot          0           inode              version */
	BFS_T_ORPHAN = 7, /* T|host                slot          0           inode              0 */
	BFS_T_LINK = 8,   /* T|slot                directory     cookie      entry hash         0 */
	BFS_T_BAD = 9,    /* T                     granule addr  0           length             inode */
};
enum { BFS_OWN_OBJ = 0, BFS_OWN_GRANT = 1 }; /* st: part of an object / granted to a host, not yet sealed */

/* granule address: device << 56 | granule index + 1 (0 = none) */
#define BFS_GADDR(dev, idx) ((u64)(dev) << 56 | ((u64)(idx) + 1))
#define BFS_GIDX(addr) (((addr) & 0x00ffffffffffffffull) - 1)
#define BFS_GDEV(addr) ((u32)((addr) >> 56))

/* ---- root page ----------------------------------------------------------------- */
struct bfs_hostrow {
	u64 uuid[2];
	u64 boot;
	u64 incarnation;
	u64 last_req; /* of that host, answered in this tree */
	i64 last_result;
	u32 state; /* enum below */
	u32 pad;
	u64 since_s;
};
static_assert(sizeof(struct bfs_hostrow) == 64, "hostrow");
enum { BFS_HOST_NONE = 0, BFS_HOST_ALIVE = 1, BFS_HOST_DEAD = 2, BFS_HOST_FENCED = 3 };

struct bfs_root {
	struct bfs_phead h;
	u64 incompat, ro_compat, compat; /* active masks */
	i64 time_ns;                     /* of the commit, leader's clock */
	struct bfs_ptr map, log, obj, hash, bt, region, stamp;
	u32 bt_height; /* 0: bt is a leaf (or none) */
	u32 log_head;  /* index of the log page being filled */
	u64 next_cookie;
	u32 slot_virgin; /* slots >= this were never used */
	u32 free_head, free_tail;
	u32 slots_used;
	u64 granules_used; /* allocated to objects or granted */
	u64 granules_quar; /* freed, not yet given back by every host */
	u64 granules_bad;
	u32 pages_used; /* bits set in the map */
	u32 pages_log;  /* of these, waiting in the log */
	u64 nblocks, nordinary, nunsealed, norphans;
	u64 blocks_granules; /* granules of class block, sealed: what eviction can take */
	u64 evicted_blocks, evicted_granules, seals, creates, unlinks;
	struct bfs_hostrow host[BFS_HOSTS_MAX];
	u8 pad[BFS_PAGE - 32 - 32 - 7 * 16 - 8 - 8 - 16 - 24 - 8 - 32 - 8 - 40 - 64 * BFS_HOSTS_MAX];
};
static_assert(sizeof(struct bfs_root) == 4096, "root");

/* ---- a host's table of files open for writing (writer: that host) ---------------- */
enum {
	BFS_ROW_FREE = 0,
	BFS_ROW_NEW = 1,    /* never closed nor synced: dropped after a crash */
	BFS_ROW_DIRTY = 2,  /* written in place after a seal or sync: kept, unverified */
	BFS_ROW_CLOSED = 3, /* closed or synced: whole, to be sealed */
};
struct bfs_row { /* two copies per file, used in turn; the valid one with the higher seq counts */
	u64 csum; /* XXH3_64 of the 120 bytes behind it, seed = incarnation ^ row offset */
	u64 ino;
	u32 version; /* the object's version when it was opened: void unless equal */
	u32 seq;
	u64 size;
	i64 mtime_ns;
	u8 state;
	u8 pad[3];
	u32 nsums; /* 0 = to be computed; at most BFS_INLINE_SUMS */
	u64 sum[BFS_INLINE_SUMS];
};
static_assert(sizeof(struct bfs_row) == 128, "row");

/* ---- files of a host that its processes share; not in the pool (docs/format.md, 19) ---- */
#define BFS_LOCAL_HOST_MAGIC 0x46484147554c4542ull  /* "BELUGAHF" */
#define BFS_LOCAL_LEASE_MAGIC 0x464c4147554c4542ull /* "BELUGALF" */
#define BFS_LOCAL_VERSION 2u
#define BFS_LOCAL_READERS 32u   /* snapshots that one process reads at a time */
#define BFS_LOCAL_LEASES 16384u /* extents that one process holds at a time */
#define BFS_LOCAL_TOUCHES 4096u
#define BFS_LOCAL_RESERVATIONS 2048u /* of one process at a time */
#define BFS_LOCAL_CLIENTS 256u  /* processes of a host */

struct bfs_lsnap { /* an applied root */
	u64 txn;
	u64 root_txn; /* tag of its page */
	u32 term;
	u32 root_page;
	u32 root_term;
	u32 pad;
	u64 pad1[4];
};
static_assert(sizeof(struct bfs_lsnap) == 64, "lsnap");

struct bfs_lhost { /* the host file.  Writer: whoever is attached as this host */
	u64 magic;
	u32 version;
	u32 bytes;
	u8 uuid[16]; /* of the pool */
	u64 incarnation;
	u64 id;      /* random: of this file */
	u64 boot;
	u32 slot;
	u32 epoch;   /* attachments that have used it */
	u64 registration;
	u32 pid;
	u32 verify;
	u64 suspect_ns;
	u64 pool_bytes;
	u32 coherent;
	u32 pad0;
	u64 pad1[3];
	u64 seq;     /* snap[seq % 2] is the newest */
	u64 pad2[7];
	struct bfs_lsnap snap[2];
	u8 pad3[BFS_PAGE - 320];
};
static_assert(sizeof(struct bfs_lhost) == 4096, "lhost");

struct bfs_lreader {
	u64 txn; /* of the snapshot in use + 1; 1: about to be announced; 0: free */
	u64 pad[7];
};
static_assert(sizeof(struct bfs_lreader) == 64, "lreader");

struct bfs_lheld {
	u64 ino;
	u64 word; /* granule address | (length - 1) << 40; 0: free */
};
static_assert(sizeof(struct bfs_lheld) == 16, "lheld");

struct bfs_lres { /* a reservation.  Writer: whoever is attached as this host */
	u64 ino;      /* of the file without a name whose pieces are reserved; 0: none.  Written last, cleared first */
	u64 number;   /* what the process calls it: that of its request */
	u64 ns;       /* namespace of the blocks to come */
	u32 granules; /* of each piece */
	u32 count;
};
static_assert(sizeof(struct bfs_lres) == 32, "lres");

struct bfs_llease { /* a lease file.  Writer: the process that has its lock; res, and the first page but touch_pos and high: the daemon */
	u64 magic;
	u32 version;
	u32 bytes;
	u8 uuid[16];
	u64 incarnation;
	u64 host_id; /* id of the host file */
	u32 pid;
	u32 uid;
	u64 made_ns;
	u64 touch_pos; /* touches ever written */
	u64 pad0[7];
	u32 high;      /* entries of held from here on were never used */
	u32 pad1[15];
	u8 pad2[BFS_PAGE - 192];
	struct bfs_lreader reader[BFS_LOCAL_READERS];
	u8 pad3[BFS_PAGE - 64 * BFS_LOCAL_READERS];
	struct bfs_lheld held[BFS_LOCAL_LEASES];
	u64 touch[BFS_LOCAL_TOUCHES]; /* object slot | seconds << 32 */
	struct bfs_lres res[BFS_LOCAL_RESERVATIONS];
};
static_assert(sizeof(struct bfs_llease) == 368640, "llease");

/* touch ring entry: slot | coarse seconds << 32 */

/* Feature bits.  DIRECTORY: this is the metadata of a directory pool; the content of its files is in
 * backing files beside it (docs/format.md, 18). */
#define BFS_INCOMPAT_DIRECTORY 1ull
#define BFS_INCOMPAT_KNOWN BFS_INCOMPAT_DIRECTORY
#define BFS_RO_COMPAT_KNOWN 0ull

#endif
