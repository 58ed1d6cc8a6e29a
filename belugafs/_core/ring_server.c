/* The answering side of one ring.  Whatever is in the ring was written by somebody who may be broken or hostile:
 * it is copied, checked, and never looked at again.  The server's own position is in its memory. */
#include "ring.h"

#include <errno.h>
#include <string.h>
#include "internal.h"

enum { LATE_NS = 1000000000 }; /* incoherent memory: a payload that isn't what its line says gets so long to come */

static void *line_at(struct rg_port *p, u64 i) { return p->m->base + i * BFS_LINE; }

int rg_port_open(struct rg_port *p, struct bfs_mem *m, u64 epoch, u64 pid)
{
	memset(p, 0, sizeof *p);
	p->m = m;
	int rc = rg_read_head(m, &p->head, &p->at);
	if (rc) return rc;
	p->next = p->head.start;
	p->mark = (struct rg_mark){.state = RG_OPEN, .epoch = epoch, .pid = pid};
	rg_seal(&p->mark, p->head.nonce, RG_L_SERVER);
	u64 awake[8] = {0};
	rg_put(m, line_at(p, RG_L_SLEEP), awake);
	rg_put(m, line_at(p, RG_L_SERVER), &p->mark);
	rg_fence(m);
	return 0;
}

void rg_port_close(struct rg_port *p)
{
	p->mark.state = RG_CLOSED;
	rg_seal(&p->mark, p->head.nonce, RG_L_SERVER);
	rg_put(p->m, line_at(p, RG_L_SERVER), &p->mark);
	rg_fence(p->m);
}

int rg_buffers_fit(struct bfs_mem *m, struct rg_buffers *b, const struct rg_port *p)
{
	if (b->in_cap < p->at.req_len) {
		u8 *x = m->ops->alloc(m, p->at.req_len);
		if (!x) return -ENOMEM;
		if (b->in) m->ops->free(m, b->in);
		b->in = x, b->in_cap = p->at.req_len;
	}
	if (b->out_cap < p->at.rep_len) {
		u8 *x = m->ops->alloc(m, p->at.rep_len);
		if (!x) return -ENOMEM;
		if (b->out) m->ops->free(m, b->out);
		b->out = x, b->out_cap = p->at.rep_len;
	}
	return 0;
}

void rg_buffers_free(struct bfs_mem *m, struct rg_buffers *b)
{
	if (b->in) m->ops->free(m, b->in);
	if (b->out) m->ops->free(m, b->out);
	memset(b, 0, sizeof *b);
}

/* 1: the request that comes next is there, whole. */
static int next_request(struct rg_port *p, struct rg_req *r)
{
	u64 at = RG_LINES_OFF / BFS_LINE + (p->next & (p->head.slots - 1));
	if (BFS_MUT(RG_MUT_REQ_PEEK_STALE)) {
		memcpy(r, line_at(p, at), sizeof *r);
	} else {
		if (p->m->coherent && rg_peek(p->m, line_at(p, at)) != p->next) return 0;
		rg_get(p->m, r, line_at(p, at));
	}
	if (r->pos != p->next && !BFS_MUT(RG_MUT_REQ_NO_POS)) return 0; /* of the lap before, or none yet */
	if (!rg_valid(r, p->head.nonce, at) && !BFS_MUT(RG_MUT_REQ_NO_CSUM)) { /* torn, another ring's, or garbage */
		p->bad_lines += r->pos == p->next && p->m->coherent;
		return 0;
	}
	if (BFS_MUT(RG_MUT_REQ_NO_POS)) p->next = r->pos;
	return 1;
}

/* 1: in `in`; 0: it isn't there yet; negative: it never will be. */
static int payload(struct rg_port *p, const struct rg_req *r, u8 *in)
{
	struct bfs_mem *m = p->m;
	const u8 *pay = m->base + p->at.req_pay + r->off;
	if (!r->len) return 1;
	if (!m->coherent && !BFS_MUT(RG_MUT_REQ_PAY_NO_INVAL)) {
		mm_inval(m, pay, r->len);
		mm_fence(m);
	}
	if (m->ops->copy_out(m, in, pay, r->len)) return rg_error(-EFAULT, "the request's payload can't be read");
	if (rg_sum(in, r->len, p->head.nonce ^ r->number) == r->psum || BFS_MUT(RG_MUT_REQ_NO_PSUM)) {
		p->late_ns = 0;
		return 1;
	}
	if (!m->coherent) {
		u64 now = m->ops->mono_ns(m);
		p->late++;
		if (!p->late_ns) p->late_ns = now;
		if (now - p->late_ns < LATE_NS) return 0;
		p->late_ns = 0;
	}
	return rg_error(-EBADMSG, "the checksum of the request's payload is wrong");
}

static void answer(struct rg_port *p, const struct rg_req *r, int rc, struct rg_job *j)
{
	struct bfs_mem *m = p->m;
	u8 *pay = m->base + p->at.rep_pay + r->rep_off;
	const char *text = rc < 0 ? bfs_errmsg() : "";
	u32 n = j->out_len, t = (u32)strlen(text), left = j->out_cap - n;
	if (t > left) t = left;
	if (t > RG_TEXT - 1) t = RG_TEXT - 1;
	memcpy(j->out + n, text, t);
	u64 sum = (n ? rg_sum(j->out, n, p->head.nonce ^ r->pos) : 0) ^ (t ? rg_sum(j->out + n, t, ~p->head.nonce ^ r->pos) : 0);
	if (n + t) {
		if (m->ops->copy_in(m, pay, j->out, n + t)) n = t = 0, sum = 0, rc = -EIO;
		else if (!m->coherent) {
			if (!BFS_MUT(RG_MUT_REP_PAY_NO_FENCE)) mm_fence(m);
			if (!BFS_MUT(RG_MUT_REP_PAY_NO_FLUSH)) mm_flush(m, pay, n + t);
			if (!BFS_MUT(RG_MUT_REP_PAY_NO_FENCE)) mm_fence(m);
		}
	}
	struct rg_rep a = {.pos = r->pos, .status = rc, .text_len = t, .result = j->result, .number = r->number, .len = n, .psum = sum};
	u64 at = p->at.rep_line / BFS_LINE + r->slot;
	rg_seal(&a, p->head.nonce, at);
	rg_put(m, line_at(p, at), &a);
	p->woken[p->nwoken++] = r->slot;
}

/* A client sets its flag, fences, and looks for its reply; this puts the reply, fences, and looks for the flag. */
static void wake_them(struct rg_port *p, rg_wake *wake, void *ctx)
{
	struct rg_state s;
	if (!p->nwoken) return;
	if (wake) {
		if (!BFS_MUT(RG_MUT_WAKE_NO_FENCE)) rg_fence(p->m);
		rg_get(p->m, &s, line_at(p, RG_L_CLIENT));
		for (u32 i = 0; i < p->nwoken; i++)
			if (s.asleep[p->woken[i] / 64] >> p->woken[i] % 64 & 1) wake(ctx, p->woken[i]);
	}
	p->nwoken = 0;
}

int rg_port_serve(struct rg_port *p, struct rg_buffers *b, u32 max, rg_exec *exec, void *ctx, rg_wake *wake, void *wake_ctx)
{
	struct rg_req r;
	u32 done = 0;
	for (; done < max && next_request(p, &r); done++) {
		if (p->m->coherent) __builtin_prefetch(line_at(p, RG_LINES_OFF / BFS_LINE + ((p->next + 4) & (p->head.slots - 1))));
		struct rg_job j = {.op = r.op, .again = r.flags & RG_AGAIN, .client = p->head.client, .number = r.number, .arg = r.arg, .owner = p->owner, .in = b->in, .in_len = r.len, .out = b->out, .out_cap = r.rep_cap};
		int rc;
		bfs_errmsg_clear();
		bool slot = r.slot < p->head.slots, room = (u64)r.rep_off + r.rep_cap <= p->at.rep_len;
		if (!room) j.out_cap = 0;
		if (!slot || !room || (u64)r.off + r.len > p->at.req_len) {
			rc = rg_error(-EBADMSG, "the request points out of the ring");
		} else if ((rc = payload(p, &r, b->in)) == 0) {
			break;
		} else if (rc == 1) {
			/* nobody's reply waits for what may take long */
			if (r.op != RG_OP_PING) wake_them(p, wake, wake_ctx);
			rc = exec(ctx, &j);
			if (j.out_len > j.out_cap) j.out_len = 0, rc = rg_error(-EOVERFLOW, "the reply doesn't fit into the room that was given for it");
		}
		p->next++;
		p->served++;
		p->refused += rc == -EBADMSG || rc == -EFAULT;
		if (!slot) continue; /* nowhere to answer */
		answer(p, &r, rc, &j);
		if (j.slow || p->nwoken == 32) wake_them(p, wake, wake_ctx);
	}
	wake_them(p, wake, wake_ctx);
	return (int)done;
}

/* Either this sees the request, or its client sees the flag and rings. */
int rg_port_doze(struct rg_port *p, struct rg_buffers *b, u32 max, rg_exec *exec, void *ctx, rg_wake *wake, void *wake_ctx)
{
	u64 w[8] = {1};
	rg_put(p->m, line_at(p, RG_L_SLEEP), w);
	if (!BFS_MUT(RG_MUT_SERVER_NAP_NO_FENCE)) rg_fence(p->m);
	return BFS_MUT(RG_MUT_SERVER_NAP_NO_LOOK) ? 0 : rg_port_serve(p, b, max, exec, ctx, wake, wake_ctx);
}

void rg_port_awake(struct rg_port *p)
{
	u64 w[8] = {0};
	rg_put(p->m, line_at(p, RG_L_SLEEP), w);
}

bool rg_port_left(struct rg_port *p)
{
	struct rg_state s;
	rg_get(p->m, &s, line_at(p, RG_L_CLIENT));
	return s.state == RG_CLOSED;
}
