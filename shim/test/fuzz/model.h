/* The files as they ought to be: plain memory, with the semantics of POSIX and of the shim's promises. */
#ifndef FUZZ_MODEL_H
#define FUZZ_MODEL_H

#include "orders.h"

/* Begins a round: every name has its seed file, nothing is open. lazy: whether the shim is at work. */
void model_reset(int lazy);

/* What worker w must answer to this order; brings the model up to date. */
void model_obey(int w, const struct order *o, struct answer *expect);

/* Worker w is dead: its descriptors are closed. */
void model_forget(int w);

/* Whether the slot is open; whether it may be read in the model's eyes. */
int model_is_open(int w, int slot);
int model_is_readable(int w, int slot);

/* Whether both slots have the same file open. */
int model_same_file(int w, int a, int b);

/* The file of that name: its size and bytes, or -1 when there is none. */
long model_file(int file, const unsigned char **bytes);

/* Whether the file of that name has a reason to be in the upper layer. */
int model_in_upper(int file);

/* The seed's file of that name. */
long seed_size(int file);
unsigned char seed_byte(int file, long at);

/* Descriptors that were lazy, and first writes that had to be refused, since the program began. */
extern long model_lazy_opens, model_first_writes, model_stale;

#endif
