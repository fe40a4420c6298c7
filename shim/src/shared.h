/*
 * State shared by every process of one server: one anonymous MAP_SHARED region, mapped in the postmaster before its
 * first fork. No file, no cleanup, gone with the server.
 */
#ifndef LAZYRW_SHARED_H
#define LAZYRW_SHARED_H

#include <stdint.h>

struct lz_shared {
	uint64_t lazy_opens;   /* opens for writing that became O_RDONLY */
	uint64_t first_writes; /* descriptors made writable by their first write */
	uint64_t refused;      /* first writes that failed: the caller got the errno, the file stayed as it was */
	uint64_t emptied;      /* truncations to zero, done without copying */
};

/* Never NULL. Counts of one process only, should the region not have been to be had. */
extern struct lz_shared *lz_shared;

/* Maps the region. Returns 0 or -errno; the counts are then private to each process, and nothing else changes. */
int lz_shared_map(void);

static inline void lz_count(uint64_t *counter)
{
	(void)__atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
}

#endif
