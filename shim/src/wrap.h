/* What every wrapper needs: the way back to a C caller, and its public names. */
#ifndef LAZYRW_WRAP_H
#define LAZYRW_WRAP_H

#include "kernel.h"
#include "table.h"

/*
 * The only symbol that the shim asks of a libc; glibc and musl both have it. Weak, so that the object loads in a program
 * that has neither: such a program has no errno to set.
 */
extern int *__errno_location(void) __attribute__((weak, visibility("default")));

/* Turns the kernel's result into libc's: -1 and errno for an error. On success errno is left alone. */
static inline long lz_return(long rc)
{
	if (__builtin_expect(rc < 0 && rc > -4096, 0)) {
		if (__errno_location)
			*__errno_location() = (int)-rc;
		return -1;
	}
	return rc;
}

#define LZ_EXPORT(public, wrapper) \
	extern __typeof(wrapper) public __attribute__((alias(#wrapper), visibility("default")));

#define LZ_LIST(public, wrapper) { #public, (void *)wrapper },

#endif
