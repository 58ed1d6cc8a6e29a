/* Who opened a file for writing, and whether that process is being killed, for both transports: belugafs/opener.py says
 * what is seen and what isn't.
 *
 * The process of a thread is remembered for a second: Linux hands out thread ids in turn, in so short a time none
 * comes back. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "server.h"

#define REMEMBERED 256
#define REMEMBER_NS 1000000000ull
#define STATE_SIGNAL 0x7f

static struct { u64 at_ns, opener[2]; u32 thread_id; } known[REMEMBERED];
static pthread_mutex_t mx = PTHREAD_MUTEX_INITIALIZER;

static bool text_of(const char *path, char *buf, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return false;
	ssize_t n = read(fd, buf, size - 1);
	close(fd);
	if (n <= 0) return false;
	buf[n] = 0;
	return true;
}

/* Fields 22 (start time in ticks) and 52 (exit code) of proc(5)'s stat; the name before them may hold any character. */
static bool stat_of(u64 tgid, u64 *start_ticks, u64 *exit_code)
{
	char path[64], buf[4096], *p;
	snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)tgid);
	if (!text_of(path, buf, sizeof buf) || !(p = strrchr(buf, ')'))) return false;
	for (int field = 2; field < 52; field++) {
		if (!(p = strchr(p + 1, ' '))) return false;
		if (field + 1 == 22) *start_ticks = strtoull(p + 1, NULL, 10);
	}
	*exit_code = strtoull(p + 1, NULL, 10);
	return true;
}

/* Whether the process is on its way out: it has no memory any more.  Unlike stat this waits for nobody: a process
 * that is becoming another program closes what it doesn't hand on, and lets nobody look at its stat until we have
 * answered. */
static bool is_exiting(u64 tgid)
{
	char path[64], buf[256];
	snprintf(path, sizeof path, "/proc/%llu/statm", (unsigned long long)tgid);
	return text_of(path, buf, sizeof buf) && buf[0] == '0' && buf[1] == ' ';
}

void ds_opener(u32 thread_id, u64 out[2])
{
	struct timespec t;
	char path[64], buf[4096], *p;
	u64 exit_code, start = 0;
	out[0] = out[1] = 0;
	if (!thread_id) return; /* of another pid namespace */
	clock_gettime(CLOCK_MONOTONIC, &t);
	u64 now = (u64)t.tv_sec * 1000000000ull + (u64)t.tv_nsec;
	u32 i = thread_id % REMEMBERED;
	pthread_mutex_lock(&mx);
	bool hit = known[i].thread_id == thread_id && now - known[i].at_ns < REMEMBER_NS;
	if (hit) out[0] = known[i].opener[0], out[1] = known[i].opener[1];
	pthread_mutex_unlock(&mx);
	if (hit) return;
	snprintf(path, sizeof path, "/proc/%u/status", thread_id);
	if (!text_of(path, buf, sizeof buf) || !(p = strstr(buf, "\nTgid:"))) return;
	u64 tgid = strtoull(p + 6, NULL, 10);
	if (!stat_of(tgid, &start, &exit_code)) return;
	out[0] = tgid, out[1] = start;
	pthread_mutex_lock(&mx);
	known[i].thread_id = thread_id, known[i].at_ns = now, known[i].opener[0] = tgid, known[i].opener[1] = start;
	pthread_mutex_unlock(&mx);
}

bool ds_is_killed(const u64 opener[2])
{
	u64 start = 0, exit_code = 0;
	if (!opener[0] || !is_exiting(opener[0]) || !stat_of(opener[0], &start, &exit_code) || start != opener[1]) return false;
	/* the low 7 bits are the signal; a stopped process shows its stop signal there */
	int sig = (int)(exit_code & STATE_SIGNAL);
	return sig && sig != SIGSTOP && sig != SIGTSTP && sig != SIGTTIN && sig != SIGTTOU;
}
