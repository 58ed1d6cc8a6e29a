/* Descriptors from a daemon, by its socket: SOCK_SEQPACKET, one request, one answer with the three of them
 * (docs/library.md, "The socket"). */
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include "client.h"

enum { LEASE = 0, RING = 1 };
struct request { u64 magic; u32 version, what; };
struct answer { u64 magic; int32_t error; u32 len; char text[256]; };

static int receive(int s, int *fds, int want)
{
	struct answer a = {0};
	union { struct cmsghdr h; char room[CMSG_SPACE(3 * sizeof(int))]; } ctl;
	struct iovec v = {&a, sizeof a};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &ctl, .msg_controllen = sizeof ctl};
	ssize_t n;
	do n = recvmsg(s, &m, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0) return bfs_fail(NULL, errno == EAGAIN ? -ETIMEDOUT : -errno, "the daemon doesn't answer: %s", strerror(errno));
	struct cmsghdr *h = CMSG_FIRSTHDR(&m);
	int got = 0;
	if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS) {
		got = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(fds, CMSG_DATA(h), (size_t)(got > want ? want : got) * sizeof(int));
		for (int i = want; i < got; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(h) + (size_t)i * sizeof fd, sizeof fd);
			close(fd);
		}
		if (got > want) got = want;
	}
	int rc = 0;
	if (!n) rc = bfs_fail(NULL, -ECONNREFUSED, "the daemon has ended");
	else if ((size_t)n < offsetof(struct answer, text) || a.magic != BFS_LOCAL_LEASE_MAGIC) rc = bfs_fail(NULL, -EPROTO, "no belugafs daemon answers there");
	else if (a.error) rc = bfs_fail(NULL, a.error < 0 ? a.error : -EPROTO, "%.*s", (int)(a.len < sizeof a.text ? a.len : sizeof a.text - 1), a.text);
	else if (got != want) rc = bfs_fail(NULL, -EMFILE, "the daemon's descriptors didn't come: are there too many open files?");
	for (int i = 0; rc && i < got; i++) close(fds[i]);
	return rc;
}

/* A connection that the request, with nsend descriptors, went out by. */
static int ask(const char *path, u32 what, const int *send_fds, int nsend)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	struct request q = {BFS_LOCAL_LEASE_MAGIC, BFS_LOCAL_VERSION, what};
	struct timeval limit = {10, 0};
	union { struct cmsghdr h; char room[CMSG_SPACE(3 * sizeof(int))]; } ctl = {0};
	struct iovec v = {&q, sizeof q};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
	if (nsend) {
		m.msg_control = &ctl, m.msg_controllen = CMSG_SPACE((size_t)nsend * sizeof(int));
		struct cmsghdr *h = CMSG_FIRSTHDR(&m);
		h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN((size_t)nsend * sizeof(int));
		memcpy(CMSG_DATA(h), send_fds, (size_t)nsend * sizeof(int));
	}
	if (strlen(path) >= sizeof at.sun_path) return bfs_fail(NULL, -ENAMETOOLONG, "%s is too long for a socket", path);
	strcpy(at.sun_path, path);
	int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (s < 0) return -errno;
	setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	setsockopt(s, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
	if (!connect(s, (struct sockaddr *)&at, sizeof at) && sendmsg(s, &m, MSG_NOSIGNAL) == sizeof q) return s;
	int rc = bfs_fail(NULL, -errno, "no daemon answers at %s: %s", path, strerror(errno));
	close(s);
	return rc;
}

int bfc_connect(const char *path, bfc **out)
{
	int fds[3], s, rc;
	bfs_errmsg_clear();
	if ((s = ask(path, LEASE, NULL, 0)) < 0) return s;
	rc = receive(s, fds, 3);
	close(s);
	if (rc || (rc = bfc_open(fds[0], fds[1], fds[2], out))) return rc;
	(*out)->hand_over = cl_by_socket;
	if (((*out)->socket = strdup(path))) return 0;
	bfc_close(*out);
	return -ENOMEM;
}

/* The connection stays, and tells each side of the other's end. */
int cl_by_socket(void *arg, bfc *c, int ring_fd, int bell_fd, int got[2])
{
	int s = ask(c->socket, RING, (int[]){ring_fd, bell_fd, c->lease_fd}, 3), rc;
	(void)arg;
	if (s < 0) return s;
	if ((rc = receive(s, &got[0], 1))) close(s);
	else got[1] = s;
	return rc;
}
