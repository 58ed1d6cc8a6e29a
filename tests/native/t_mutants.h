/* What runs each of a test's `mutants` with the one of its `tests` that has to notice it, and that test without it. */
static int run_mutants(const char *program)
{
	enum { TRIES = 60 }; /* what only shows when two processors meet doesn't, while others have them */
	int missed = 0;
	for (u32 i = 0; i < sizeof mutants / sizeof *mutants; i++) {
		bool noticed[2] = {false, false};
		for (int with = 0, tries = 0; with < 2; with += !with || noticed[1] || ++tries == TRIES) {
			fflush(stdout);
			pid_t pid = fork();
			if (!pid) {
				int null = open("/dev/null", O_WRONLY);
				dup2(null, 1);
				dup2(null, 2);
				alarm(150);
				setenv("LITMUS", "20000", 0);
				bfs_mutant = with ? mutants[i].id : 0;
				for (u32 k = 0; k < sizeof tests / sizeof *tests; k++)
					if (!strcmp(tests[k].name, mutants[i].test)) tests[k].f();
				_exit(0);
			}
			int how;
			waitpid(pid, &how, 0);
			noticed[with] = !WIFEXITED(how) || WEXITSTATUS(how);
		}
		printf("%s: %-26s %s\n", program, mutants[i].name, noticed[0] ? "FAILS WITHOUT IT" : noticed[1] ? "noticed" : "NOT NOTICED");
		missed += noticed[0] || !noticed[1];
	}
	return missed != 0;
}
