/* The few string functions that the shim needs, since it has no libc to ask. */
#ifndef LAZYRW_TEXT_H
#define LAZYRW_TEXT_H

#include <stddef.h>

size_t lz_length(const char *s);
int lz_equal(const char *a, const char *b);

/* The rest of s after prefix, or NULL when s does not begin with it. */
const char *lz_after(const char *s, const char *prefix);

/* The part of path after its last slash; path itself when it has none. */
const char *lz_basename(const char *path);

/* Appends s to the string in buf of the given size. Returns 0, or -1 when it does not fit (buf is then unchanged). */
int lz_append(char *buf, size_t size, const char *s);

/* Appends a non-negative number in decimal, with the same contract as lz_append. */
int lz_append_number(char *buf, size_t size, unsigned long n);

/* The decimal number that s begins with; 0 where it begins with none. */
unsigned long lz_number(const char *s);

#endif
