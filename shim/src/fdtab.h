/*
 * What the shim knows about each descriptor of this process: one byte a number, zero for "none of our business".
 *
 * The table is copied by fork, like the descriptors. A number at or past LZ_MAXFD is never tracked: its file is opened
 * as asked, which costs a copy-up and is never wrong.
 */
#ifndef LAZYRW_FDTAB_H
#define LAZYRW_FDTAB_H

#include "kernel.h"

#ifndef LZ_MAXFD
#define LZ_MAXFD 65536 /* numbers tracked; a test makes it small */
#endif

enum {
	LZ_FD_ACCMODE = O_ACCMODE, /* the access mode that the caller asked for: O_WRONLY or O_RDWR */
	LZ_FD_LAZY = 4,            /* open O_RDONLY in truth; the first write reopens it */
	LZ_FD_LOCK = 8,            /* the branch lock (lock.h): the process does not know that it has this number */
	LZ_FD_MADE = 16,           /* a data file that this open has made */
};

extern uint8_t lz_fdtab[LZ_MAXFD];

static inline unsigned lz_fd_get(int fd)
{
	if ((unsigned)fd >= LZ_MAXFD)
		return 0;
	return __atomic_load_n(&lz_fdtab[fd], __ATOMIC_ACQUIRE);
}

static inline void lz_fd_set(int fd, unsigned state)
{
	if ((unsigned)fd < LZ_MAXFD)
		__atomic_store_n(&lz_fdtab[fd], (uint8_t)state, __ATOMIC_RELEASE);
}

/* Forgets the numbers first to last, both included, but for the lock. */
void lz_fd_forget(unsigned first, unsigned last);

#endif
