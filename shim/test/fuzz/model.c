#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* A file: it lives as long as it has its name or an open description. */
struct object {
	unsigned char data[MAX_SIZE + MAX_IO];
	long size;
	int named, opens;
	int upper; /* it has an inode in the upper layer */
};

/* An open file description, shared by the copies that dup made. */
struct description {
	struct object *object;
	long offset;
	int accmode, append, lazy, refs;
};

static struct object *names[FILES];
static struct description *slots[WORKERS][SLOTS];
static int shim;

long model_lazy_opens, model_first_writes, model_stale;

long seed_size(int file)
{
	return file == 0 ? 0 : 1000 + file * 9001L;
}

unsigned char seed_byte(int file, long at)
{
	return fill_byte((unsigned)file * 77u + 5u, at);
}

static void *must(void *p)
{
	if (!p)
		abort();
	return p;
}

static void free_if_gone(struct object *o)
{
	if (!o->named && o->opens == 0)
		free(o);
}

static void drop_name(int file)
{
	struct object *o = names[file];

	names[file] = NULL;
	if (o) {
		o->named = 0;
		free_if_gone(o);
	}
}

static void drop_slot(int w, int slot)
{
	struct description *d = slots[w][slot];

	slots[w][slot] = NULL;
	if (!d || --d->refs > 0)
		return;
	d->object->opens--;
	free_if_gone(d->object);
	free(d);
}

static struct object *new_object(int file, int upper)
{
	struct object *o = must(calloc(1, sizeof(*o)));

	o->named = 1;
	o->upper = upper;
	names[file] = o;
	return o;
}

void model_forget(int w)
{
	for (int s = 0; s < SLOTS; s++)
		drop_slot(w, s);
}

void model_reset(int lazy)
{
	shim = lazy;
	for (int w = 0; w < WORKERS; w++)
		model_forget(w);
	for (int f = 0; f < FILES; f++) {
		struct object *o;

		drop_name(f);
		o = new_object(f, 0);
		o->size = seed_size(f);
		for (long i = 0; i < o->size; i++)
			o->data[i] = seed_byte(f, i);
	}
}

int model_is_open(int w, int slot)
{
	return slots[w][slot] != NULL;
}

int model_is_readable(int w, int slot)
{
	return slots[w][slot] && slots[w][slot]->accmode != O_WRONLY;
}

int model_same_file(int w, int a, int b)
{
	return slots[w][a]->object == slots[w][b]->object;
}

long model_file(int file, const unsigned char **bytes)
{
	if (!names[file])
		return -1;
	*bytes = names[file]->data;
	return names[file]->size;
}

int model_in_upper(int file)
{
	return names[file] && names[file]->upper;
}

/* The promise: the first write makes the file ours, or fails because it is a lower one that has lost its name. */
static int first_write(struct description *d)
{
	if (!d->lazy)
		return 0;
	if (!d->object->named && !d->object->upper) {
		model_stale++;
		return ESTALE;
	}
	model_first_writes++;
	d->lazy = 0;
	d->object->upper = 1;
	return 0;
}

static void set_size(struct object *o, long size)
{
	if (size < o->size)
		memset(o->data + size, 0, (size_t)(o->size - size));
	o->size = size;
}

static int model_open(int w, const struct order *o)
{
	struct object *f = names[o->file];
	struct description *d;
	int accmode = o->flags & O_ACCMODE, created = 0;

	if (f && (o->flags & O_CREAT) && (o->flags & O_EXCL))
		return EEXIST;
	if (!f) {
		if (!(o->flags & O_CREAT))
			return ENOENT;
		f = new_object(o->file, 1);
		created = 1;
	}
	d = must(calloc(1, sizeof(*d)));
	*d = (struct description){ f, 0, accmode, !!(o->flags & O_APPEND), 0, 1 };
	f->opens++;
	if (o->flags & O_TRUNC) {
		set_size(f, 0);
		f->upper = 1;
	} else if (accmode != O_RDONLY && !created) {
		d->lazy = shim;
		model_lazy_opens += shim;
		if (!shim)
			f->upper = 1;
	}
	slots[w][o->slot] = d;
	return 0;
}

static long read_at(const struct description *d, long off, long len, char *to)
{
	long n = d->object->size - off;

	if (n <= 0)
		return 0;
	if (n > len)
		n = len;
	memcpy(to, d->object->data + off, (size_t)n);
	return n;
}

/* Returns 0 or the error number. at < 0: at the offset, which moves. */
static int write_at(struct description *d, long at, long len, unsigned fill)
{
	struct object *o = d->object;
	int moves = at < 0, rc;

	if (d->accmode == O_RDONLY)
		return EBADF;
	rc = first_write(d);
	if (rc || len == 0) /* writing nothing does not even move an appending offset to the end (mm/filemap.c, generic_write_checks) */
		return rc;
	if (moves)
		at = d->offset;
	if (d->append)
		at = o->size; /* pwrite too (man 2 pwrite, BUGS) */
	for (long i = 0; i < len; i++)
		o->data[at + i] = fill_byte(fill, i);
	if (at + len > o->size)
		o->size = at + len;
	if (moves)
		d->offset = at + len;
	return 0;
}

static int truncate_description(struct description *d, long size)
{
	int rc;

	if (d->accmode == O_RDONLY)
		return EINVAL;
	rc = first_write(d);
	if (rc == 0)
		set_size(d->object, size);
	return rc;
}

static int truncate_name(int file, long size)
{
	if (!names[file])
		return ENOENT;
	names[file]->upper = 1;
	set_size(names[file], size);
	return 0;
}

static int allocate(struct description *d, long off, long len)
{
	int rc;

	if (d->accmode == O_RDONLY)
		return EBADF;
	rc = first_write(d);
	if (rc == 0 && off + len > d->object->size)
		d->object->size = off + len;
	return rc;
}

static int copy(const struct description *in, struct description *out, const struct order *o, long *n)
{
	int rc = out->accmode == O_RDONLY ? 0 : first_write(out);

	if (rc)
		return rc;
	if (out->accmode == O_RDONLY || out->append)
		return EBADF;
	*n = in->object->size - o->off;
	if (*n < 0)
		*n = 0;
	if (*n > o->len)
		*n = o->len;
	memcpy(out->object->data + o->off2, in->object->data + o->off, (size_t)*n);
	if (*n > 0 && o->off2 + *n > out->object->size)
		out->object->size = o->off2 + *n;
	return 0;
}

static int duplicate(int w, const struct order *o)
{
	struct description *d = slots[w][o->slot];
	int rc = o->op == OP_DUP2 && o->slot == o->other ? 0 : first_write(d);

	if (rc)
		return rc;
	d->refs++;
	drop_slot(w, o->other);
	slots[w][o->other] = d;
	return 0;
}

/* The kernel copies a lower file up before it gives it another name: with metacopy=on its inode only. */
static int rename_name(int from, int to)
{
	struct object *o = names[from];

	if (!o)
		return ENOENT;
	if (from == to)
		return 0;
	o->upper = 1;
	drop_name(to);
	names[to] = o;
	names[from] = NULL;
	return 0;
}

static int unlink_name(int file)
{
	if (!names[file])
		return ENOENT;
	drop_name(file);
	return 0;
}

static int chmod_name(int file)
{
	if (!names[file])
		return ENOENT;
	names[file]->upper = 1;
	return 0;
}

static long seek(struct description *d, long to)
{
	if (to == -1)
		d->offset = d->object->size;
	else if (to >= 0)
		d->offset = to;
	return d->offset;
}

static int get_flags(const struct description *d)
{
	return d->accmode | (d->append ? O_APPEND : 0);
}

void model_obey(int w, const struct order *o, struct answer *a)
{
	struct description *d = slots[w][o->slot];

	a->ret = 0;
	a->err = 0;
	switch (o->op) {
	case OP_OPEN:
		a->err = model_open(w, o);
		break;
	case OP_CLOSE:
		drop_slot(w, o->slot);
		break;
	case OP_READ:
		a->ret = read_at(d, d->offset, o->len, a->data);
		d->offset += a->ret;
		break;
	case OP_PREAD:
		a->ret = read_at(d, o->off, o->len, a->data);
		break;
	case OP_WRITE:
	case OP_WRITEV:
		a->err = write_at(d, -1, o->len, o->fill);
		a->ret = o->len;
		break;
	case OP_PWRITE:
	case OP_PWRITEV:
		a->err = write_at(d, o->off, o->len, o->fill);
		a->ret = o->len;
		break;
	case OP_SEEK:
		a->ret = seek(d, o->off);
		break;
	case OP_FTRUNCATE:
		a->err = truncate_description(d, o->len);
		break;
	case OP_TRUNCATE:
		a->err = truncate_name(o->file, o->len);
		break;
	case OP_ALLOCATE:
		a->err = allocate(d, o->off, o->len);
		break;
	case OP_COPY:
		a->err = copy(d, slots[w][o->other], o, &a->ret);
		break;
	case OP_DUP:
	case OP_DUP2:
		a->err = duplicate(w, o);
		break;
	case OP_SIZE:
		a->ret = d->object->size;
		break;
	case OP_GETFL:
		a->ret = get_flags(d);
		break;
	case OP_SETFL:
		d->append = !!(o->flags & O_APPEND);
		break;
	case OP_UNLINK:
		a->err = unlink_name(o->file);
		break;
	case OP_RENAME:
		a->err = rename_name(o->file, o->other);
		break;
	case OP_CHMOD:
		a->err = chmod_name(o->file);
		break;
	default: /* OP_FSYNC, OP_FORK: nothing changes */
		break;
	}
	if (a->err)
		a->ret = -1;
}
