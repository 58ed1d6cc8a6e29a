/* Directories: a handle is nothing but the inode number. */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include "server.h"

#define CACHE_S 1u
#define BATCH 64
/* Positions in a listing: the core's cookies begin at 1. */
#define AFTER_DOT 1
#define AFTER_DOTDOT 2
#define COOKIE_SHIFT 2

int ds_opendir(struct ds_req *r)
{
	struct fp_open_out o = {.fh = r->in->nodeid};
	int rc = bfs_opendir(r->b, r->in->nodeid);
	return rc ? rc : ds_reply(r, &o, sizeof o);
}

int ds_releasedir(struct ds_req *r)
{
	bfs_releasedir(r->b, r->in->nodeid);
	return 0;
}

struct list { struct ds_req *r; size_t n, max; bool plus; };

/* false: there is no room for it any more */
static bool add(struct list *l, const char *name, size_t len, u64 ino, u32 type, u64 next, const struct bfs_attr *a, u32 valid_s)
{
	size_t head = sizeof(struct fp_dirent) + (l->plus ? sizeof(struct fp_entry_out) : 0), all = FP_ALIGN(head + len);
	u8 *p = l->r->out + l->n;
	struct fp_dirent e = {.ino = ino, .off = next, .namelen = (u32)len, .type = type};
	if (l->n + all > l->max) return false;
	if (l->plus) {
		struct fp_entry_out x = {0};
		if (a) ds_entry(a, valid_s, &x);
		memcpy(p, &x, sizeof x), p += sizeof x;
	}
	memcpy(p, &e, sizeof e);
	memcpy(p + sizeof e, name, len);
	memset(p + sizeof e + len, 0, all - head - len);
	l->n += all;
	return true;
}

static int list(struct ds_req *r, bool plus)
{
	const struct fp_read_in *x = ds_arg(r, sizeof *x);
	struct bfs_dirent e[BATCH];
	struct bfs_attr a;
	u64 dir = r->in->nodeid, after;
	int n, rc;
	if (!x) return -EINVAL;
	struct list l = {.r = r, .max = x->size < r->out_cap ? x->size : r->out_cap, .plus = plus};
	if (x->offset < AFTER_DOT && !add(&l, ".", 1, dir, S_IFDIR >> 12, AFTER_DOT, NULL, 0)) return -EINVAL;
	if (x->offset < AFTER_DOTDOT) {
		u64 up;
		if ((rc = bfs_parent(r->b, dir, &up))) return rc;
		if (!add(&l, "..", 2, up, S_IFDIR >> 12, AFTER_DOTDOT, NULL, 0)) return ds_reply(r, r->out, l.n);
	}
	after = x->offset > COOKIE_SHIFT ? x->offset - COOKIE_SHIFT : 0;
	while ((n = bfs_readdir(r->b, dir, after, e, BATCH)) > 0)
		for (int i = 0; i < n; i++) {
			after = e[i].cookie;
			if (plus && (rc = bfs_peekattr(r->b, e[i].ino, &a))) {
				if (rc == -ENOENT || rc == -ESTALE) continue; /* evicted or removed in between */
				return rc;
			}
			/* A directory that may be reaped: who uses the name has to ask for it himself. */
			u32 valid_s = plus && a.flags & BFS_OF_EMPTIED ? 0 : CACHE_S;
			if (!add(&l, e[i].name, e[i].len, e[i].ino, e[i].type, e[i].cookie + COOKIE_SHIFT, plus ? &a : NULL, valid_s)) return ds_reply(r, r->out, l.n);
		}
	return n < 0 ? n : ds_reply(r, r->out, l.n);
}

int ds_readdir(struct ds_req *r) { return list(r, false); }
int ds_readdirplus(struct ds_req *r) { return list(r, true); }
