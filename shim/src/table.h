/* The wrappers as data: for the second way in, which puts them into the tables of a running program (got.h). */
#ifndef LAZYRW_TABLE_H
#define LAZYRW_TABLE_H

#include <stddef.h>

struct lz_wrapper {
	const char *name; /* NULL ends a list */
	void *function;
};

/* One list a source file: a wrapper is private to its own. */
extern const struct lz_wrapper lz_open_wrappers[], lz_write_wrappers[], lz_fd_wrappers[];

/* The wrapper of the function of that name, or NULL. */
void *lz_wrapper_of(const char *name);

#endif
