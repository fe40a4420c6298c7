#include "fdtab.h"

uint8_t lz_fdtab[LZ_MAXFD];

void lz_fd_forget(unsigned first, unsigned last)
{
	if (last >= LZ_MAXFD)
		last = LZ_MAXFD - 1;
	for (unsigned fd = first; fd <= last; fd++) {
		unsigned state = lz_fd_get((int)fd); /* read first: do not dirty pages of the table that were never used */

		if (state && !(state & LZ_FD_LOCK))
			lz_fd_set((int)fd, 0);
	}
}
