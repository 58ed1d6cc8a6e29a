/* How much a new file is likely to get: as much as the last block of its directory.  Where that is new, as in a tree
 * whose directories are digits of a hash and hold a block or two each, as the last one of the directories above.
 *
 * A directory knows of the blocks in it; of those below, only of the first one that a directory below was given.
 * So blocks of one size cause no store but into the directories that are new.  The root tells nothing of new
 * trees: there is one to a model, or to a program. */
#include <sys/stat.h>
#include "file.h"

enum { LEVELS = 8 }; /* above a file: engines have up to 4 */

static const struct bfs_obj *parent(struct view *v, const struct bfs_obj *o)
{
	int rc = 0;
	const struct bfs_obj *d = o->parent && !(o->parent >> 63) && ob_ino(o) != BFS_ROOT_INO ? ob_get(v, o->parent, &rc) : NULL;
	return d && S_ISDIR(d->mode) ? d : NULL;
}

u64 gs_expected(struct view *v, u64 ino, bool above)
{
	int rc = 0;
	const struct bfs_obj *o = ob_get(v, ino, &rc), *d = o ? parent(v, o) : NULL;
	if (d && d->u.d.guess) return d->u.d.guess;
	for (int i = 1; above && i < LEVELS && d && !d->u.d.guess; i++) d = parent(v, d);
	return d && ob_ino(d) != BFS_ROOT_INO ? d->u.d.guess : 0;
}

void gs_learn(struct txn *t, const struct bfs_obj *o, u64 size)
{
	u32 n = (u32)granules(size);
	const struct bfs_obj *d = parent(tview(t), o);
	bool first = true;
	if (!size || o->cls != BFS_CLS_BLOCK) return; /* an empty one says nothing of the next */
	for (int i = 0; i < LEVELS && first && d && !(d->flags & BFS_OF_NSBLOCK); i++) {
		first = !d->u.d.guess;
		if (d->u.d.guess != n) {
			struct bfs_obj *w = ob_cow(t, ob_ino(d));
			if (!w) return;
			w->u.d.guess = n;
			d = w;
		}
		d = parent(tview(t), d);
	}
}
