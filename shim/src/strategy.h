/*
 * What happens at the first write to a lazily opened descriptor. Everything else in the shim is the same whatever the
 * strategy: which opens are lazy, which calls write, what the descriptor table remembers.
 */
#ifndef LAZYRW_STRATEGY_H
#define LAZYRW_STRATEGY_H

/* What the caller is about to do with the file. */
enum lz_intent {
	LZ_WRITE, /* change some of it: what is there must stay */
	LZ_EMPTY, /* truncate it to nothing: what is there need not be copied */
};

struct lz_strategy {
	const char *name;

	/*
	 * Makes fd, which is open O_RDONLY, writable under the same number, with the access mode that the caller of
	 * open asked for (O_WRONLY or O_RDWR). Offset, status flags and descriptor flags stay.
	 *
	 * Returns 0, or -errno with fd and its file as they were. Runs with all signals blocked and under the
	 * process's upgrade lock (upgrade.h). Must not allocate.
	 */
	int (*first_write)(int fd, int accmode, enum lz_intent intent);
};

/* Reopens the file: overlayfs copies it up whole, or clones it where the file system can. */
extern const struct lz_strategy lz_strategy_file;

/* The one in force. */
extern const struct lz_strategy *lz_strategy;

#endif
