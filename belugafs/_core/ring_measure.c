/* How fast a ring is: one caller that waits for each reply, or one that keeps many requests under way. */
#include "ring.h"

#include <errno.h>
#include <stdlib.h>
#include "internal.h"

enum { KICK = 16 };

/* One at a time: each call's time, from the end of the one before. */
static int alone(struct rg_client *c, u32 calls, u32 len, u32 *ns)
{
	u8 pay[RG_SMALL], reply[RG_SMALL];
	memset(pay, 1, sizeof pay);
	u64 last = bfs_ops_coherent.mono_ns(NULL);
	for (u32 i = 0; i < calls; i++) {
		struct rg_call k = {.op = RG_OP_PING, .payload = pay, .len = len, .reply = reply, .reply_cap = len};
		int rc = rg_call(c, &k, 5000000000ull);
		if (rc) return rc;
		u64 now = bfs_ops_coherent.mono_ns(NULL);
		ns[i] = (u32)(now - last);
		last = now;
	}
	return 0;
}

static int many(struct rg_client *c, u32 calls, u32 in_flight, u32 len)
{
	u8 pay[RG_SMALL], reply[RG_SMALL];
	struct rg_chan *ch = rg_client_chan(c);
	u32 asked = 0, done = 0, unseen = 0;
	int rc = 0;
	struct rg_call *k = calloc(in_flight, sizeof *k);
	if (!k) return -ENOMEM;
	memset(pay, 1, sizeof pay);
	u64 deadline = bfs_ops_coherent.mono_ns(NULL) + 60000000000ull;
	while (done < calls && rc >= 0) {
		for (; asked < calls && asked - done < in_flight; asked++) {
			struct rg_call *x = &k[asked % in_flight];
			x->op = RG_OP_PING, x->number = 0, x->arg = asked, x->payload = pay, x->len = len, x->reply = reply, x->reply_cap = len;
			if ((rc = rg_submit(ch, x))) break;
			if (++unseen == KICK) rg_kick(ch), unseen = 0;
		}
		if (rc == -EAGAIN) rc = 0; /* fewer slots than that: the oldest comes first */
		if (unseen) rg_kick(ch), unseen = 0;
		if (rc < 0 || asked == done) break;
		struct rg_call *x = &k[done % in_flight];
		if ((rc = rg_wait(ch, x, deadline)) != 1) {
			rc = rc ? rc : -ETIMEDOUT;
			break;
		}
		if (x->result != done) rc = -EBADMSG;
		done++;
		while (done < asked && rg_take(ch, &k[done % in_flight]) == 1) done++;
		rc = 0;
	}
	free(k);
	return rc;
}

int rg_measure(struct rg_client *c, u32 calls, u32 in_flight, u32 len, u32 *ns, u64 *total_ns)
{
	if (len > RG_SMALL - RG_TEXT) return rg_error(-EINVAL, "a payload of %u bytes; this measures up to %u", len, RG_SMALL - RG_TEXT);
	u64 t = bfs_ops_coherent.mono_ns(NULL);
	int rc = in_flight <= 1 ? alone(c, calls, len, ns) : many(c, calls, in_flight, len);
	*total_ns = bfs_ops_coherent.mono_ns(NULL) - t;
	return rc;
}
