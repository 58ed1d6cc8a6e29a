/* sim: runs of the core on simulated memory, each from one seed.
 *
 *   sim --seeds 100000 [--from 1] [--jobs 2] [--hosts 2|3]    stops at the first violation
 *   sim --seed 4711 --hosts 3 [--trace] [--dump 200]          one run again, with its steps
 *   sim --mutants [--seeds 200000]                            each step left out must be noticed
 *   sim --mutant NAME|NUMBER ...                              one of these
 *   sim --bent NAME                                           nothing left out, bent as for that mutant
 *   sim --weak                                                fences that don't reach the pool
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "world.h"

#ifdef BFS_MUTANTS
int bfs_mutant;
#define MUTANT bfs_mutant
#else
#define MUTANT 0
#endif

struct job { /* shared with the parent */
	u64 seed, runs, steps, ops, acks, reads, moved, torn;
	int hosts;
	bool running, bad;
	char what[400];
};
static struct job *jobs;
static int njobs = 1, hosts_only, verbose, dump = 40, max_fail = 1;
static bool trace, weak;
static u64 from = 1, nseeds = 1000;

/* ---- mutants ---------------------------------------------------------------------------- */
struct mutant {
	int id;
	const char *name;
	void (*bias)(struct scen *);
	const char *unseen; /* why no run can show it; NULL = must be caught */
};
#include "mutants.h"
static const struct mutant *mutant_find(int id)
{
	for (u32 i = 0; i < sizeof mutants / sizeof *mutants; i++)
		if (mutants[i].id == id) return &mutants[i];
	return NULL;
}

static const struct mutant *bent; /* all runs as for this one, with nothing left out */

/* ---- one run ------------------------------------------------------------------------------- */
static struct job *me;
static void on_signal(int sig)
{
	/* a crash of the core is a violation like any other; nothing else can be saved here */
	if (me) {
		me->bad = true;
		snprintf(me->what, sizeof me->what, "%s in the core", sig == SIGALRM ? "endless loop" : strsignal(sig));
		if (!MUTANT) {
			fprintf(stderr, "seed %llu, %d hosts: %s\n", (unsigned long long)me->seed, me->hosts, me->what);
			world_dump(stderr, (u32)dump);
		}
	}
	signal(sig, SIG_DFL);
	if (sig == SIGALRM) _exit(4);
	raise(sig);
}
static void catch_signals(void)
{
	static u8 stack[65536];
	stack_t ss = {.ss_sp = stack, .ss_size = sizeof stack};
	sigaltstack(&ss, NULL);
	struct sigaction sa = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_NODEFER};
	const int sigs[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
#ifdef __SANITIZE_ADDRESS__
	sigaction(SIGALRM, &sa, NULL);
	(void)sigs;
#else
	for (u32 i = 0; i < sizeof sigs / sizeof *sigs; i++) sigaction(sigs[i], &sa, NULL);
#endif
}
static bool one(u64 seed, int hosts)
{
	struct scen sc;
	if (!hosts) hosts = seed & 1 ? 3 : 2;
	scen_draw(&sc, seed, hosts);
	sc.mem.weak_fence = weak;
	/* one run in eight is bent in one of the ways in which mutants' are */
	const struct mutant *m = MUTANT ? mutant_find(MUTANT) : bent;
	if (m && m->bias) m->bias(&sc);
	else if (!m && seed % 8 == 3) biases[seed / 8 % (sizeof biases / sizeof *biases)](&sc);
	me->seed = seed, me->hosts = sc.hosts;
	alarm(30);
	bool ok = world_run(&sc, trace);
	alarm(0);
	struct world *w = world_last();
	me->runs++, me->steps += w->s->step, me->ops += w->ops, me->acks += w->acks, me->reads += w->reads;
	me->moved += w->s->moved, me->torn += w->s->torn;
	w->s->moved = w->s->torn = 0;
	if (!ok) {
		me->bad = true;
		snprintf(me->what, sizeof me->what, "%s", world_what());
	}
	return ok;
}
static void work(int j)
{
	int fails = 0;
	me = &jobs[j];
	me->running = true;
	catch_signals();
	for (u64 s = from + (u64)j; s < from + nseeds; s += (u64)njobs) {
		if (one(s, hosts_only)) continue;
		if (MUTANT && !verbose) break;
		fprintf(stderr, "seed %llu, %d hosts, step %llu: %s\n", (unsigned long long)s, me->hosts, (unsigned long long)world_last()->s->step, me->what);
		if (!trace && dump) world_dump(stderr, (u32)dump);
		if (++fails >= max_fail) break;
	}
	me->running = false;
	world_free();
}
/* the first violation, or NULL */
static struct job *run_all(void)
{
	memset(jobs, 0, sizeof *jobs * (size_t)njobs);
	pid_t pid[16];
	bool gone[16] = {false};
	struct job *bad = NULL;
	fflush(NULL);
	for (int j = 0; j < njobs; j++) {
		if ((pid[j] = fork()) == 0) {
			work(j);
			_exit(me->bad ? 3 : 0);
		}
		if (pid[j] < 0) {
			perror("fork");
			exit(2);
		}
	}
	for (int left = njobs; left; left--) {
		int st;
		pid_t p = wait(&st);
		for (int j = 0; j < njobs; j++) {
			if (pid[j] != p) continue;
			pid[j] = 0;
			if (gone[j] || (WIFEXITED(st) && WEXITSTATUS(st) == 0)) break;
			if (WIFSIGNALED(st) && (WTERMSIG(st) == SIGKILL || WTERMSIG(st) == SIGTERM)) {
				fprintf(stderr, "a worker was killed from outside\n");
				exit(2);
			}
			jobs[j].bad = true;
			if (!jobs[j].what[0]) snprintf(jobs[j].what, sizeof jobs[j].what, "process ended by %s", WIFSIGNALED(st) ? strsignal(WTERMSIG(st)) : "an exit of its own");
			if (!bad || jobs[j].seed < bad->seed) bad = &jobs[j];
			if (max_fail == 1) /* one is enough: our own children, by number */
				for (int k = 0; k < njobs; k++)
					if (pid[k] > 0) gone[k] = true, kill(pid[k], SIGKILL);
		}
	}
	if (bad && !MUTANT && max_fail == 1)
		for (int j = 0; j < njobs; j++)
			if (&jobs[j] != bad) jobs[j].bad = false;
	return bad;
}
static double now_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void report(const char *what, double s)
{
	struct job t = {0};
	for (int j = 0; j < njobs; j++) t.runs += jobs[j].runs, t.steps += jobs[j].steps, t.ops += jobs[j].ops, t.acks += jobs[j].acks, t.reads += jobs[j].reads, t.moved += jobs[j].moved, t.torn += jobs[j].torn;
	printf("%s: %llu seeds, %.1f s, %llu steps (%.1f million a minute), %llu calls, %llu acknowledged changes, %llu reads, %llu lines moved by themselves, %llu torn\n", what,
	       (unsigned long long)t.runs, s, (unsigned long long)t.steps, (double)t.steps / s * 60e-6, (unsigned long long)t.ops, (unsigned long long)t.acks, (unsigned long long)t.reads,
	       (unsigned long long)t.moved, (unsigned long long)t.torn);
}

#ifdef BFS_MUTANTS
static int run_mutants(void)
{
	int caught = 0, missed = 0, n = (int)(sizeof mutants / sizeof *mutants);
	for (int i = 0; i < n; i++) {
		const struct mutant *m = &mutants[i];
		double t = now_s();
		if (m->unseen) {
			printf("--       %-26s %s\n", m->name, m->unseen);
			continue;
		}
		bfs_mutant = m->id;
		struct job *b = run_all();
		bfs_mutant = 0;
		u64 runs = 0;
		for (int j = 0; j < njobs; j++) runs += jobs[j].runs;
		if (b) caught++;
		else missed++;
		printf("%s %-26s %7llu runs %5.1f s  ", b ? "caught  " : "NOT SEEN", m->name, (unsigned long long)runs, now_s() - t);
		if (b) printf("seed %llu, %d hosts: %.110s", (unsigned long long)b->seed, b->hosts, b->what);
		printf("\n");
		fflush(stdout);
	}
	weak = true;
	struct job *b = run_all();
	weak = false;
	printf("%s %-26s               %s\n", b ? "caught  " : "NOT SEEN", "(machine: weak fences)", b ? b->what : "");
	printf("%d of %d mutants caught\n", caught, caught + missed);
	return missed || !b;
}
#endif
static const struct mutant *mutant_by(const char *s)
{
	for (u32 i = 0; i < sizeof mutants / sizeof *mutants; i++)
		if (!strcasecmp(s, mutants[i].name) || atoi(s) == mutants[i].id) return &mutants[i];
	fprintf(stderr, "no mutant %s\n", s);
	exit(2);
}

int main(int argc, char **argv)
{
	static const struct option lo[] = {{"seeds", 1, 0, 'n'}, {"seed", 1, 0, 's'}, {"from", 1, 0, 'f'}, {"jobs", 1, 0, 'j'}, {"hosts", 1, 0, 'h'}, {"trace", 0, 0, 't'}, {"dump", 1, 0, 'd'},
		{"max-fail", 1, 0, 'x'}, {"mutants", 0, 0, 'M'}, {"mutant", 1, 0, 'm'}, {"bent", 1, 0, 'b'}, {"weak", 0, 0, 'w'}, {"verbose", 0, 0, 'v'}, {0, 0, 0, 0}};
	bool all_mutants = false, single = false;
	int c;
	while ((c = getopt_long(argc, argv, "", lo, NULL)) != -1) switch (c) {
		case 'n': nseeds = strtoull(optarg, NULL, 0); break;
		case 's': from = strtoull(optarg, NULL, 0), nseeds = 1, single = true; break;
		case 'f': from = strtoull(optarg, NULL, 0); break;
		case 'j': njobs = atoi(optarg); break;
		case 'h': hosts_only = atoi(optarg); break;
		case 't': trace = true; break;
		case 'd': dump = atoi(optarg); break;
		case 'x': max_fail = atoi(optarg); break;
		case 'M': all_mutants = true; break;
		case 'w': weak = true; break;
		case 'v': verbose = 1; break;
#ifdef BFS_MUTANTS
		case 'm': bfs_mutant = mutant_by(optarg)->id; break;
#endif
		case 'b': bent = mutant_by(optarg); break;
		default: fprintf(stderr, "see the head of sim/main.c\n"); return 2;
		}
	if (njobs < 1 || njobs > 16) njobs = 2;
	if (single) njobs = 1;
	jobs = mmap(NULL, sizeof *jobs * 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (jobs == MAP_FAILED) return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
#ifdef BFS_MUTANTS
	if (all_mutants) return run_mutants();
	if (bfs_mutant) {
		double t = now_s();
		verbose = 1;
		struct job *b = run_all();
		report(mutant_find(bfs_mutant)->name, now_s() - t);
		printf("%s\n", b ? b->what : "not seen");
		return !b;
	}
#else
	if (all_mutants) {
		fprintf(stderr, "this is a build without mutants\n");
		return 2;
	}
#endif
	if (single) { /* in this process, for a debugger */
		work(0);
		if (!jobs[0].bad) report("one run", 1);
		return jobs[0].bad ? 3 : 0;
	}
	int bad = 0;
	for (int h = 2; h <= W_HOSTS; h++) {
		int want = hosts_only;
		if (want && want != h) continue;
		u64 all = nseeds;
		char what[32];
		double t = now_s();
		hosts_only = h;
		if (!want) nseeds = nseeds / 2 ? nseeds / 2 : 1;
		if (run_all()) bad++;
		snprintf(what, sizeof what, "%d hosts", h);
		report(what, now_s() - t);
		hosts_only = want, nseeds = all;
		if (bad && max_fail == 1) break;
	}
	printf("%s\n", bad ? "VIOLATION" : weak ? "no violation, although the fences are weak" : "no violation");
	return bad ? 3 : 0;
}
