/* Blobs (a chain of pages) and extended attributes.
 *
 * The attributes of an object are one blob: entries sorted by name, each
 *	u8 length of the name, u8 0, u16 length of the value, name, value
 * without gaps, 65536 bytes together at most.  Changing one writes the blob anew: they
 * are few and small, and copy on write would copy the pages anyway.
 *
 * user.beluga.* are computed when asked for and can't be set. */
#include <linux/limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include "internal.h"

/* ---- blobs ---------------------------------------------------------------------------- */
void blob_free(struct txn *t, struct bfs_ptr *p)
{
	u32 left = BFS_XATTR_MAX / BFS_BLOB_BYTES + 1; /* a chain that somebody made longer ends here */
	while (p->page && !t->poison) {
		int rc = 0;
		const struct bfs_blob *c = pg_get(t->b, *p, BFS_PK_BLOB, &rc);
		if (!c || !left--) {
			txn_fail(t, c ? bfs_fail(t->b, -EIO, "blob at metadata page %u is too long", p->page) : rc);
			return;
		}
		struct bfs_ptr next = c->next;
		pg_free(t, p);
		*p = next;
	}
}

int blob_write(struct txn *t, struct bfs_ptr *p, const void *data, u32 len)
{
	const u8 *s = data;
	blob_free(t, p);
	while (len && !t->poison) {
		struct bfs_blob *c = pg_new(t, p, BFS_PK_BLOB);
		if (!c) break;
		u32 n = len < BFS_BLOB_BYTES ? len : BFS_BLOB_BYTES;
		memcpy(c->data, s, n);
		c->h.aux = n;
		s += n, len -= n, p = &c->next;
	}
	return t->poison;
}

int blob_read(struct bfs *b, struct bfs_ptr p, void *data, u32 len)
{
	u8 *d = data;
	while (len) {
		int rc = 0;
		const struct bfs_blob *c = p.page ? pg_get(b, p, BFS_PK_BLOB, &rc) : NULL;
		if (!c) return rc ? rc : bfs_fail(b, -EIO, "blob ends %u bytes early", len);
		u32 n = c->h.aux;
		if (!n || n > len || n > BFS_BLOB_BYTES) return bfs_fail(b, -EIO, "blob at metadata page %u: %u bytes of %u", p.page, n, len);
		memcpy(d, c->data, n);
		d += n, len -= n, p = c->next;
	}
	return 0;
}

/* ---- the packed list --------------------------------------------------------------------- */
struct xent { /* decoded */
	const u8 *name, *val;
	u32 nlen, vlen, size;
};

static int xent_at(struct bfs *b, const u8 *buf, u32 len, u32 off, struct xent *x)
{
	if (len - off < 4) goto bad;
	x->nlen = buf[off], x->vlen = (u32)buf[off + 2] | (u32)buf[off + 3] << 8;
	x->size = 4 + x->nlen + x->vlen;
	x->name = buf + off + 4, x->val = x->name + x->nlen;
	if (x->nlen && x->size <= len - off) return 0;
bad:
	return bfs_fail(b, -EIO, "list of extended attributes is damaged at byte %u of %u; run fsck.belugafs -n", off, len);
}

static int name_cmp(const u8 *p, u32 n, const char *q, u32 m)
{
	int c = memcmp(p, q, n < m ? n : m);
	return c ? c : n < m ? -1 : n > m;
}

/* Where the name is (1) or belongs (0); negative errno. */
static int xent_find(struct bfs *b, const u8 *buf, u32 len, const char *name, u32 nlen, u32 *off, struct xent *x)
{
	for (*off = 0; *off < len; *off += x->size) {
		int rc = xent_at(b, buf, len, *off, x);
		if (rc) return rc;
		int c = name_cmp(x->name, x->nlen, name, nlen);
		if (c >= 0) return !c;
	}
	return 0;
}

/* ---- what the core computes, and the pin, which is a flag ------------------------------------------------------------------ */
static const char virt[] = "user.beluga.";
static const char identity[] = "user.beluga.identity"; /* of a directory: what its blocks were made by; stored as it is given */
static const char *const virt_names[] = {"checksum", "class", "extents", "owner", "pin", "state", "version"};
enum { V_CHECKSUM, V_CLASS, V_EXTENTS, V_OWNER, V_PIN, V_STATE, V_VERSION, NVIRT };
#define SUMS_LISTED 1024u
#define EXTENTS_LISTED 1024

struct text {
	char *s;
	size_t n, cap;
};
static void __attribute__((format(printf, 2, 3))) put(struct text *x, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(x->s + x->n, x->cap - x->n, fmt, ap);
	va_end(ap);
	if (n > 0) x->n = x->n + (size_t)n < x->cap ? x->n + (size_t)n : x->cap - 1;
}

static int virt_index(const char *name)
{
	if (strncmp(name, virt, sizeof virt - 1) || !strcmp(name, identity)) return -1;
	for (int i = 0; i < NVIRT; i++)
		if (!strcmp(name + sizeof virt - 1, virt_names[i])) return i;
	return NVIRT; /* in the name space, but no such thing */
}

/* one line each: file offset, device, offset in the pool (device 0) or on the device, length, all in bytes */
static int text_extents(struct bfs *b, u64 ino, struct text *x)
{
	struct bfs_extent *e = xalloc(b, EXTENTS_LISTED * sizeof *e);
	if (!e) return -ENOMEM;
	int n = bfs_extents(b, ino, e, EXTENTS_LISTED);
	for (int i = 0; i < n; i++) {
		u32 dev = BFS_GDEV(e[i].addr);
		u64 at = BFS_GIDX(e[i].addr) * BFS_GRANULE + (dev ? 0 : b->sb.data_off);
		if (e[i].addr) put(x, "%llu %u %llu %llu\n", (unsigned long long)e[i].file_granule * BFS_GRANULE, dev, (unsigned long long)at, (unsigned long long)e[i].len * BFS_GRANULE);
	}
	xfree(b, e);
	return n < 0 ? n : 0;
}

/* "xxh3 <bytes a chunk> <number of chunks>" and a line a chunk; 0 = the chunk is a hole */
static int text_sums(struct bfs *b, const struct bfs_obj *o, struct text *x)
{
	u64 s[64];
	if (!o->nsums || o->state != BFS_ST_SEALED || (o->flags & (BFS_OF_UNVERIFIED | BFS_OF_NOSUM))) {
		put(x, "none");
		return 0;
	}
	put(x, "xxh3 %u %u\n", b->sb.chunk_bytes, o->nsums);
	for (u32 i = 0, end = o->nsums < SUMS_LISTED ? o->nsums : SUMS_LISTED; i < end; i += 64) {
		u32 n = end - i < 64 ? end - i : 64;
		int rc = ob_sums_get(b, o, i, n, s);
		if (rc) return rc;
		for (u32 j = 0; j < n; j++) put(x, "%016llx\n", (unsigned long long)s[j]);
	}
	if (o->nsums > SUMS_LISTED) put(x, "...\n");
	return 0;
}

static bool pinned(const struct bfs_obj *o) { return o->flags & (BFS_OF_PINNED | BFS_OF_PINNED_SOFT); }

static int virt_text(struct bfs *b, const struct bfs_obj *o, int which, struct text *x)
{
	static const char *const state[] = {"free", "sealed", "new", "dirty", "abandoned"};
	switch (which) {
	case V_CHECKSUM: return text_sums(b, o, x);
	case V_CLASS: put(x, o->cls == BFS_CLS_BLOCK ? "block" : "ordinary"); break;
	case V_OWNER: /* host slot, while somebody writes */
		if (o->owner) put(x, "%u", o->owner - 1u);
		else put(x, "none");
		break;
	case V_PIN:
		if (!pinned(o)) return -ENODATA;
		put(x, "%s", o->flags & BFS_OF_PINNED ? "hard" : "soft");
		break;
	case V_STATE: put(x, "%s%s", o->state < 5 ? state[o->state] : "unknown", o->flags & BFS_OF_UNVERIFIED ? ",unverified" : ""); break;
	case V_VERSION: put(x, "%u", o->version); break;
	default: return -ENODATA;
	}
	return 0;
}

/* ---- calls --------------------------------------------------------------------------------------- */
static int check_name(const char *name)
{
	size_t n = strlen(name);
	if (n > BFS_NAME_MAX) return -ERANGE;
	static const char *const ok[] = {"user.", "trusted.", "security."};
	for (int i = 0; i < 3; i++)
		if (!strncmp(name, ok[i], strlen(ok[i]))) return name[strlen(ok[i])] ? 0 : -EINVAL;
	return -EOPNOTSUPP;
}

/* The blob of an object that has attributes; *buf is the caller's to free (NULL: none). */
static int load(struct bfs *b, const struct bfs_obj *o, u8 **buf, u32 *len)
{
	*buf = NULL, *len = 0;
	if (S_ISLNK(o->mode) || !o->blob_len) return 0;
	if (o->blob_len > BFS_XATTR_MAX) return bfs_fail(b, -EIO, "object %u: %u bytes of extended attributes", o->slot, o->blob_len);
	if (!(*buf = xalloc(b, o->blob_len))) return -ENOMEM;
	*len = o->blob_len;
	return blob_read(b, o->blob, *buf, *len);
}

/* user.beluga.pin of a file or a directory, which then is of all in it: evict.c.  val NULL: removed. */
static int change_pin(struct bfs *b, u64 ino, const void *val, size_t len, int flags)
{
	struct txn *t;
	int rc = 0;
	u8 pin = !val ? 0 : len == 4 && !memcmp(val, "hard", 4) ? BFS_OF_PINNED : len == 4 && !memcmp(val, "soft", 4) ? BFS_OF_PINNED_SOFT : 255;
	if (pin == 255) return bfs_fail(b, -EINVAL, "user.beluga.pin is hard or soft");
	if ((rc = op_begin_room(b, &t))) return rc;
	const struct bfs_obj *c = ob_get(tview(t), ino, &rc);
	if (c && !S_ISREG(c->mode) && !S_ISDIR(c->mode)) rc = bfs_fail(b, -EPERM, "only files and directories can be pinned");
	else if (c && !pinned(c) && (!val || (flags & XATTR_REPLACE))) rc = -ENODATA;
	else if (c && pinned(c) && (flags & XATTR_CREATE)) rc = -EEXIST;
	struct bfs_obj *o = c && !rc ? ob_cow(t, ino) : NULL;
	if (o) {
		o->flags = (u8)((o->flags & ~(BFS_OF_PINNED | BFS_OF_PINNED_SOFT | BFS_OF_EMPTIED)) | pin);
		o->ctime_ns = (i64)now_ns(b);
		if (S_ISDIR(o->mode)) ev_pins_changed(b);
		else ev_regrade(b, o->slot);
	} else if (!rc) {
		rc = t->poison ? t->poison : -ESTALE;
	}
	return op_end(b, t, rc);
}

/* Sets (val) or removes (val NULL). */
static int change(struct bfs *b, u64 ino, const char *name, const void *val, size_t len, int flags)
{
	struct txn *t;
	struct xent x = {0};
	u8 *old = NULL, *new = NULL;
	u32 n = 0, off, nlen = (u32)strlen(name), size = 0;
	int rc = check_name(name);
	if (rc) return rc;
	if (virt_index(name) >= 0 && virt_index(name) != V_PIN) return bfs_fail(b, -EPERM, "%s: user.beluga.* attributes are read only, but for user.beluga.pin and .identity", name);
	if (ino >> 63) return bfs_fail(b, -EPERM, "this directory is made up from the keys below it");
	if (virt_index(name) == V_PIN) return change_pin(b, ino, val, len, flags);
	if (len > XATTR_SIZE_MAX) return -E2BIG;
	if ((rc = val ? op_begin_room(b, &t) : op_begin(b, &t))) return rc;
	const struct bfs_obj *c = ob_get(tview(t), ino, &rc);
	if (c && !S_ISDIR(c->mode) && !strcmp(name, identity)) rc = bfs_fail(b, -EPERM, "%s is a directory's", identity);
	if (c && S_ISLNK(c->mode)) rc = -EOPNOTSUPP; /* the blob of a symbolic link is its target */
	if (!c || rc || (rc = load(b, c, &old, &n))) goto out;
	int found = xent_find(b, old, n, name, nlen, &off, &x);
	if (found < 0) rc = found;
	else if (!found && (!val || (flags & XATTR_REPLACE))) rc = -ENODATA;
	else if (found && (flags & XATTR_CREATE)) rc = -EEXIST;
	if (rc) goto out;
	u32 behind = off + (found ? x.size : 0);
	size = n - (behind - off) + (val ? 4 + nlen + (u32)len : 0);
	if (size > BFS_XATTR_MAX) rc = bfs_fail(b, -ENOSPC, "extended attributes of one object: %u bytes of %u", size, BFS_XATTR_MAX);
	else if (size && !(new = xalloc(b, size))) rc = -ENOMEM;
	if (rc) goto out;
	u8 *w = new;
	if (off) w = (u8 *)memcpy(w, old, off) + off;
	if (val) {
		*w++ = (u8)nlen, *w++ = 0, *w++ = (u8)len, *w++ = (u8)(len >> 8);
		w = (u8 *)memcpy(w, name, nlen) + nlen;
		if (len) w = (u8 *)memcpy(w, val, len) + len;
	}
	if (n > behind) memcpy(w, old + behind, n - behind);
	struct bfs_obj *o = ob_cow(t, ino);
	if (!o || blob_write(t, &o->blob, new, size)) {
		rc = txn_fail(t, -EIO);
		goto out;
	}
	o->blob_len = size;
	o->flags &= (u8)~BFS_OF_EMPTIED;
	o->ctime_ns = (i64)now_ns(b);
out:
	xfree(b, old);
	xfree(b, new);
	return op_end(b, t, rc);
}

int bfs_setxattr(struct bfs *b, u64 ino, const char *name, const void *val, size_t len, int flags)
{
	if (flags & ~(XATTR_CREATE | XATTR_REPLACE)) return -EINVAL;
	return change(b, ino, name, val ? val : "", len, flags);
}

int bfs_removexattr(struct bfs *b, u64 ino, const char *name) { return change(b, ino, name, NULL, 0, 0); }

ssize_t bfs_getxattr(struct bfs *b, u64 ino, const char *name, void *buf, size_t len)
{
	struct rd r;
	struct xent x = {0};
	u8 *blob = NULL;
	u32 n = 0, off;
	int which = virt_index(name);
	struct text tx = {NULL, 0, BFS_XATTR_MAX};
	ssize_t rc = check_name(name);
	int err = 0;
	if (rc) return rc;
	if (ino >> 63) return -ENODATA;
	if (which >= 0 && !(tx.s = xalloc(b, tx.cap))) return -ENOMEM;
	if ((err = rd_begin(b, &r))) {
		xfree(b, tx.s);
		return err;
	}
	const void *val = NULL;
	size_t vlen = 0;
	const struct bfs_obj *o = ob_get(&r.v, ino, &err);
	if (o && which >= 0) {
		err = !S_ISREG(o->mode) && which != V_PIN ? -ENODATA : which == V_EXTENTS ? 0 : virt_text(b, o, which, &tx);
	} else if (o && !(err = load(b, o, &blob, &n))) {
		err = xent_find(b, blob, n, name, (u32)strlen(name), &off, &x);
		if (err == 1) val = x.val, vlen = x.vlen, err = 0;
		else if (!err) err = -ENODATA;
	}
	rd_end(&r);
	if (!err && which == V_EXTENTS) err = text_extents(b, ino, &tx); /* has a snapshot or locks of its own */
	if (!err && which >= 0) val = tx.s, vlen = tx.n;
	if (!err && len && vlen > len) err = -ERANGE;
	if (!err && len && vlen) memcpy(buf, val, vlen);
	xfree(b, tx.s);
	xfree(b, blob);
	return err ? err : (ssize_t)vlen;
}

ssize_t bfs_listxattr(struct bfs *b, u64 ino, char *buf, size_t len)
{
	struct rd r;
	struct xent x;
	u8 *blob = NULL;
	u32 n = 0;
	size_t total = 0;
	if (ino >> 63) return 0;
	int rc = rd_begin(b, &r);
	if (rc) return rc;
	const struct bfs_obj *o = ob_get(&r.v, ino, &rc);
	bool reg = o && S_ISREG(o->mode), pin = o && pinned(o);
	if (o) rc = load(b, o, &blob, &n);
	rd_end(&r);
	for (u32 off = 0; !rc && off < n; off += x.size) {
		if ((rc = xent_at(b, blob, n, off, &x))) break;
		if (total + x.nlen + 1 <= len) {
			memcpy(buf + total, x.name, x.nlen);
			buf[total + x.nlen] = 0;
		} else if (len) {
			rc = -ERANGE;
		}
		total += x.nlen + 1;
	}
	for (int i = 0; !rc && i < NVIRT; i++) {
		if (i == V_PIN ? !pin : !reg) continue;
		size_t m = sizeof virt - 1 + strlen(virt_names[i]) + 1;
		if (total + m <= len) snprintf(buf + total, m, "%s%s", virt, virt_names[i]);
		else if (len) rc = -ERANGE;
		total += m;
	}
	xfree(b, blob);
	return rc ? rc : (ssize_t)total;
}
