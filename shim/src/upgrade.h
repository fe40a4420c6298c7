/* The way from a write-class call to the strategy. */
#ifndef LAZYRW_UPGRADE_H
#define LAZYRW_UPGRADE_H

#include "fdtab.h"
#include "server.h"
#include "strategy.h"

/* The slow path of lz_before_write: fd was seen to be lazy. Returns 0 or -errno. */
int lz_upgrade(int fd, enum lz_intent intent);

/*
 * Called by every wrapper that is about to change fd's file, or to make a copy of fd that might. Returns 0 when fd may be
 * written, or -errno, which the wrapper must report without doing anything else.
 */
static inline int lz_before_write(int fd, enum lz_intent intent)
{
	if (__builtin_expect(!lz_in_server(), 1))
		return 0;
	if (__builtin_expect(!(lz_fd_get(fd) & LZ_FD_LAZY), 1))
		return 0;
	return lz_upgrade(fd, intent);
}

#endif
