/* SIGBUS behind a guard becomes -EIO (guard.h).
 *
 * The core and the copies of kernels/ are extensions of their own, each with this in it: handlers chain, so
 * both can be installed in one process, in any order. */
#define _GNU_SOURCE
#include "guard.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include "bfk.h"

__thread sigjmp_buf *bfk_guard;
static struct sigaction old_bus, old_segv;
static atomic_bool installed;

static void on_fault(int sig, siginfo_t *info, void *context)
{
	if (bfk_guard) siglongjmp(*bfk_guard, 1);
	struct sigaction *old = sig == SIGBUS ? &old_bus : &old_segv;
	if (old->sa_flags & SA_SIGINFO) old->sa_sigaction(sig, info, context);
	else if (old->sa_handler != SIG_DFL && old->sa_handler != SIG_IGN) old->sa_handler(sig);
	else sigaction(sig, old, NULL); /* it faults again, with the default action: a core dump at the right place */
}

static void install(void)
{
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_sigaction = on_fault;
	action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
	sigemptyset(&action.sa_mask);
	sigaction(SIGBUS, &action, &old_bus);
	sigaction(SIGSEGV, &action, &old_segv);
	atomic_store(&installed, true);
}

void bfk_guard_install(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, install);
}

int bfk_guarded(int (*run)(void *arg, uint64_t part), void *arg, uint64_t part)
{
	int rc;
	if (!atomic_load_explicit(&installed, memory_order_relaxed)) return run(arg, part);
	BFK_GUARDED(rc = run(arg, part));
	return rc;
}
