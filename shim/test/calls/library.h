/*
 * The second way in: LZ_LIBRARY names the shim, which this program loads as a server loads an entry of
 * shared_preload_libraries, after it has created postmaster.pid.
 */
#ifndef CALLS_LIBRARY_H
#define CALLS_LIBRARY_H

void load_library(const char *path);

/* The function of this name as this program was linked to it: dlsym would find libc's. NULL when it is none of those. */
void *linked_function(const char *name);

#endif
