/* What both ends of a ring among processes of one host share. */
#ifndef BELUGAFS_RING_LOCAL_H
#define BELUGAFS_RING_LOCAL_H

#include <linux/futex.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "ring.h"

static inline bool rg_futex_wait(void *word, u32 seen, u64 ns) /* false: the time is over */
{
	struct timespec t = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
	return !(syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0) && errno == ETIMEDOUT);
}
static inline void rg_futex_wake(void *word) { syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0); }
/* What says that the process behind fd is dead: a pidfd becomes readable; a socket, which may have other things
 * to be read, is hung up. */
static inline u32 rg_death(int fd)
{
	struct stat st;
	return !fstat(fd, &st) && S_ISSOCK(st.st_mode) ? POLLRDHUP : POLLIN;
}
static inline bool rg_only_cpu(void) { return sysconf(_SC_NPROCESSORS_ONLN) == 1; } /* polling would keep the other side from going on */

#endif
