/* Any processor: plain C.  A pool without coherence then needs the core's cache maintenance. */
#define LOOPS bfk_loops_portable
#define LOOPS_NAME "portable"
#include "copy_body.h"
