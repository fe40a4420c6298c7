/*
 * Puts the wrappers between a program that is running already and its libc: what LD_PRELOAD would have made the dynamic
 * linker do, done afterwards, in the tables in which it has left its answers (the GOT of each object).
 */
#ifndef LAZYRW_GOT_H
#define LAZYRW_GOT_H

/*
 * Every object of the process, but for this one, calls the wrappers from now on, and so does every one that it loads
 * with dlopen later. Returns how many places were changed, 0 when nothing could be done.
 */
unsigned lz_got_patch(void);

#endif
