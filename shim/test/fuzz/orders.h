/*
 * What the fuzzer's master orders a worker to do, and what the worker answers. The master keeps a model of all files in memory
 * and knows every answer beforehand; a worker is a `postgres` process below the shim that does what it is told.
 */
#ifndef FUZZ_ORDERS_H
#define FUZZ_ORDERS_H

#include <stddef.h>

enum {
	WORKERS = 4,
	SLOTS = 6, /* open descriptors a worker may have */
	FILES = 8, /* names: base/1/0 and so on */
	MAX_IO = 8192,
	MAX_SIZE = 128 * 1024,
};

enum op {
	OP_OPEN,      /* slot, file, flags */
	OP_CLOSE,     /* slot */
	OP_READ,      /* slot, len */
	OP_PREAD,     /* slot, off, len */
	OP_WRITE,     /* slot, len, fill */
	OP_PWRITE,    /* slot, off, len, fill */
	OP_WRITEV,    /* slot, len, fill */
	OP_PWRITEV,   /* slot, off, len, fill */
	OP_SEEK,      /* slot, off: from the start; -1: to the end; -2: only ask */
	OP_FTRUNCATE, /* slot, len */
	OP_TRUNCATE,  /* file, len */
	OP_ALLOCATE,  /* slot, off, len */
	OP_COPY,      /* slot (in), other (out), off (in), off2 (out), len */
	OP_DUP,       /* slot, other: a free slot gets the copy */
	OP_DUP2,      /* slot, other: an open slot is replaced by the copy */
	OP_FSYNC,     /* slot */
	OP_SIZE,      /* slot */
	OP_GETFL,     /* slot */
	OP_SETFL,     /* slot, flags */
	OP_UNLINK,    /* file */
	OP_RENAME,    /* file, other */
	OP_CHMOD,     /* file, flags */
	OP_FORK,      /* go on in a child, which inherits every descriptor */
	OP_DIE,       /* end at once, with everything open; there is no answer */
	OP_COUNT,
};

struct order {
	int op, slot, other, file, flags;
	long off, off2, len;
	unsigned fill; /* what is written: byte i is fill_byte(fill, i) */
};

struct answer {
	long ret; /* what the call returned; descriptors as 0 */
	int err;  /* errno, when ret is -1 */
	char data[MAX_IO];
};

static inline unsigned char fill_byte(unsigned fill, long i)
{
	return (unsigned char)(fill + (unsigned)i * 31u + (unsigned)i / 127u);
}

/* The bytes of an answer that are to be sent: the data only where there are any. */
static inline size_t answer_size(const struct order *o, const struct answer *a)
{
	int has_data = (o->op == OP_READ || o->op == OP_PREAD) && a->ret > 0;

	return offsetof(struct answer, data) + (has_data ? (size_t)a->ret : 0);
}

#endif
