/* Any processor: plain C.  Where stores must be in memory, lines are written back behind them. */
#define LOOPS bfk_loops_portable
#define LOOPS_NAME "portable"
#include "copy_body.h"
