/* Every call that changes a file through a descriptor, in a form that the tests can loop over. */
#ifndef CALLS_WRITE_CALLS_H
#define CALLS_WRITE_CALLS_H

struct write_call {
	const char *name; /* the symbol */

	/* Puts NEWS at SPOT of fd by the function f of that name. Returns 0 or the error number. */
	int (*put)(void *f, int fd);
};

extern const struct write_call write_calls[]; /* ended by an entry without a name */

#endif
