/*
 * Random operations by several processes below the shim, on files of an overlay, each answer compared with a model in
 * memory. Rounds: a fresh branch, WORKERS processes, a few hundred steps, then all files compared through old descriptors, by path
 * from outside, and by path after the branch was mounted anew; and the upper layer must hold the files that were written and no others.
 *
 *   fuzz DISK WORKER OBJECT STEPS SEED [eager]
 *
 * DISK: an empty directory on the file system to test. WORKER: the program called `postgres`. OBJECT: the shim. eager: without
 * the shim, which puts the model itself to the test. Needs root and a mount namespace of its own.
 */
#include "model.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *disk, *worker_program;
static int lazy = 1;
static long steps_done, replaced;
static unsigned long long seed;
static uint64_t rng;
static int socks[WORKERS], control;
static pid_t leader, workers[WORKERS];
static struct order last;

static const char *const op_names[OP_COUNT] = { "open", "close", "read", "pread", "write", "pwrite", "writev", "pwritev", "seek", "ftruncate",
	"truncate", "allocate", "copy", "dup", "dup2", "fsync", "size", "getfl", "setfl", "unlink", "rename", "chmod", "fork", "die" };

_Noreturn __attribute__((format(printf, 1, 2))) static void fail(const char *format, ...)
{
	va_list ap;

	fprintf(stderr, "FAIL seed %llu, step %ld: ", seed, steps_done);
	va_start(ap, format);
	vfprintf(stderr, format, ap);
	va_end(ap);
	fprintf(stderr, " (last order: %s slot %d other %d file %d flags 0%o off %ld off2 %ld len %ld)\n", op_names[last.op], last.slot,
		last.other, last.file, last.flags, last.off, last.off2, last.len);
	exit(1);
}

static void must(int holds, const char *what)
{
	if (!holds)
		fail("%s: %s", what, strerror(errno));
}

/* splitmix64: small, and good enough for every bit. */
static uint64_t next_random(void)
{
	uint64_t z = (rng += 0x9e3779b97f4a7c15u);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static long below(long n)
{
	return (long)(next_random() % (uint64_t)n);
}

static const char *in_disk(const char *rest)
{
	static char paths[4][4096];
	static int turn;

	turn = (turn + 1) % 4;
	snprintf(paths[turn], sizeof(paths[turn]), "%s/%s", disk, rest);
	return paths[turn];
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
	(void)st;
	(void)type;
	(void)at;
	return remove(path);
}

static void make_dir(const char *rest)
{
	must(mkdir(in_disk(rest), 0755) == 0 || errno == EEXIST, rest);
}

static void copy_object(const char *object)
{
	char command[8192];

	snprintf(command, sizeof(command), "cp '%s' '%s'", object, in_disk("seed/.pgoverlay/lazyrw.so"));
	must(system(command) == 0, "copy the object");
}

static void make_seed(const char *object)
{
	char name[64];

	make_dir("branch");
	make_dir("seed");
	make_dir("seed/.pgoverlay");
	make_dir("seed/base");
	make_dir("seed/base/1");
	copy_object(object);
	for (int f = 0; f < FILES; f++) {
		FILE *file;

		snprintf(name, sizeof(name), "seed/base/1/%d", f);
		file = fopen(in_disk(name), "w");
		must(file != NULL, name);
		for (long i = 0; i < seed_size(f); i++)
			putc(seed_byte(f, i), file);
		must(fclose(file) == 0, name);
	}
}

static void mount_branch(void)
{
	char options[8192];

	snprintf(options, sizeof(options), "lowerdir=%s,upperdir=%s,workdir=%s,index=on,metacopy=on,redirect_dir=on", in_disk("seed"),
		in_disk("upper"), in_disk("work"));
	must(mount("overlay", in_disk("branch"), "overlay", 0, options) == 0, "mount");
}

/* A process that is ending gives up its working directory after its sockets: the mount may be busy for a moment. */
static void unmount_branch(void)
{
	int rc = umount(in_disk("branch"));

	for (int i = 0; i < 5000 && rc < 0 && errno == EBUSY; i++) {
		usleep(1000);
		rc = umount(in_disk("branch"));
	}
	must(rc == 0, "umount");
}

static void fresh_branch(void)
{
	nftw(in_disk("upper"), remove_one, 16, FTW_DEPTH | FTW_PHYS);
	nftw(in_disk("work"), remove_one, 16, FTW_DEPTH | FTW_PHYS);
	make_dir("upper");
	make_dir("work");
	mount_branch();
}

/* Hands a worker's number to the leader and takes the pid that it got. */
static void hire(int w)
{
	must(send(control, &w, sizeof(w), 0) == (ssize_t)sizeof(w), "order a worker");
	must(recv(control, &workers[w], sizeof(workers[w]), 0) == (ssize_t)sizeof(workers[w]), "hear of a worker");
}

static void start_workers(void)
{
	char numbers[WORKERS + 1][16], preload[4200];
	char *argv[WORKERS + 3] = { (char *)worker_program };
	int pair[2], theirs[WORKERS + 1];

	for (int i = 0; i <= WORKERS; i++) {
		must(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0, "socketpair");
		*(i == 0 ? &control : &socks[i - 1]) = pair[0];
		theirs[i] = pair[1];
		snprintf(numbers[i], sizeof(numbers[i]), "%d", pair[1]);
		argv[i + 1] = numbers[i];
	}
	snprintf(preload, sizeof(preload), "LD_PRELOAD=%s", in_disk("branch/.pgoverlay/lazyrw.so"));
	leader = fork();
	must(leader >= 0, "fork");
	if (leader == 0) {
		char *env[] = { lazy ? preload : NULL, NULL };

		for (int i = 0; i <= WORKERS; i++)
			fcntl(theirs[i], F_SETFD, 0);
		setpgid(0, 0);
		if (chdir(in_disk("branch")) == 0)
			execve(worker_program, argv, env);
		_exit(127);
	}
	for (int i = 0; i <= WORKERS; i++)
		close(theirs[i]);
	for (int w = 0; w < WORKERS; w++)
		hire(w);
}

/* Ends the workers of a round: by SIGKILL of all at once every second time, else by the end of their input. */
static void stop_workers(void)
{
	int status;

	if (below(2))
		must(kill(-leader, SIGKILL) == 0, "kill");
	for (int w = 0; w < WORKERS; w++)
		close(socks[w]);
	close(control);
	must(waitpid(leader, &status, 0) == leader, "wait");
}

static void command(int w, const struct order *o, struct answer *a)
{
	last = *o;
	must(send(socks[w], o, sizeof(*o), 0) == (ssize_t)sizeof(*o), "send");
	must(recv(socks[w], a, sizeof(*a), 0) >= (ssize_t)offsetof(struct answer, data), "recv");
}

static void step(int w, const struct order *o)
{
	static struct answer have, want;

	struct order done = *o;

	command(w, o, &have);
	if (o->op == OP_COPY && have.ret > 0 && have.ret < o->len)
		done.len = have.ret; /* copy_file_range may do less than it was asked to, and XFS and btrfs do */
	model_obey(w, &done, &want);
	steps_done++;
	if (have.ret != want.ret || have.err != want.err)
		fail("worker %d answered %ld (%s), not %ld (%s)", w, have.ret, strerror(have.err), want.ret, strerror(want.err));
	if ((o->op == OP_READ || o->op == OP_PREAD) && want.ret > 0 && memcmp(have.data, want.data, (size_t)want.ret) != 0)
		fail("worker %d read other bytes", w);
}

static long random_offset(void)
{
	return below(4) ? below(80000) : below(10) * 8192;
}

static int random_open_flags(void)
{
	static const int flags[] = { O_RDONLY, O_RDWR, O_RDWR, O_RDWR, O_RDWR, O_RDWR, O_WRONLY, O_RDWR | O_CREAT, O_RDWR | O_CREAT,
		O_RDWR | O_CREAT | O_EXCL, O_RDWR | O_TRUNC, O_RDWR | O_APPEND, O_WRONLY | O_CREAT | O_TRUNC, O_RDWR | O_CLOEXEC };

	return flags[below((long)(sizeof(flags) / sizeof(flags[0])))];
}

/* How often each is tried; reads are cheap and show what the writes did. */
static enum op random_op(void)
{
	static const enum op weighted[] = { OP_READ, OP_READ, OP_PREAD, OP_PREAD, OP_PREAD, OP_PREAD, OP_WRITE, OP_PWRITE, OP_PWRITE, OP_PWRITE,
		OP_WRITEV, OP_PWRITEV, OP_SEEK, OP_SEEK, OP_FTRUNCATE, OP_ALLOCATE, OP_COPY, OP_DUP, OP_DUP2, OP_FSYNC, OP_SIZE, OP_SIZE,
		OP_GETFL, OP_SETFL, OP_CLOSE, OP_CLOSE };

	switch (below(100)) { /* what changes names or processes is rarer */
	case 0:
		return OP_TRUNCATE;
	case 1:
		return OP_UNLINK;
	case 2:
		return OP_RENAME;
	case 3:
		return OP_CHMOD;
	case 4:
		return OP_FORK;
	default:
		return weighted[below((long)(sizeof(weighted) / sizeof(weighted[0])))];
	}
}

/* Makes the order fit what is open. Returns 0 when it makes no sense. */
static int sensible(int w, struct order *o)
{
	switch (o->op) {
	case OP_TRUNCATE:
	case OP_UNLINK:
	case OP_RENAME:
	case OP_CHMOD:
	case OP_FORK:
		return 1;
	}
	if (!model_is_open(w, o->slot)) {
		o->op = OP_OPEN;
		o->flags = random_open_flags();
		return 1;
	}
	switch (o->op) {
	case OP_READ:
	case OP_PREAD:
		return model_is_readable(w, o->slot); /* a lazy O_WRONLY one can be read, which POSIX forbids and nobody does */
	case OP_COPY:
		return model_is_readable(w, o->slot) && model_is_open(w, o->other) && !model_same_file(w, o->slot, o->other);
	case OP_DUP:
		return !model_is_open(w, o->other);
	case OP_DUP2:
		return model_is_open(w, o->other);
	}
	return 1;
}

static void random_step(int w)
{
	struct order o = { .op = random_op(), .slot = (int)below(SLOTS), .other = (int)below(SLOTS), .file = (int)below(FILES) };

	o.off = random_offset();
	o.off2 = random_offset();
	o.len = below(8) ? 1 + below(MAX_IO) : below(8);
	o.fill = (unsigned)below(1 << 20);
	if (o.op == OP_SEEK && below(2))
		o.off = -1 - below(2);
	if (o.op == OP_FTRUNCATE || o.op == OP_TRUNCATE)
		o.len = below(2) ? 0 : below(90000);
	if (o.op == OP_ALLOCATE)
		o.len = 1 + below(20000);
	if (o.op == OP_SETFL)
		o.flags = below(2) ? O_APPEND : 0;
	if (o.op == OP_CHMOD)
		o.flags = below(2) ? 0600 : 0640;
	if (o.op == OP_RENAME)
		o.other = (int)below(FILES);
	if (sensible(w, &o))
		step(w, &o);
}

/* Appending files must not outgrow the model. */
static void keep_small(int w)
{
	const unsigned char *bytes;

	for (int f = 0; f < FILES; f++)
		if (model_file(f, &bytes) > 100000) {
			struct order o = { .op = OP_TRUNCATE, .file = f, .len = 20000 };

			step(w, &o);
		}
	for (int s = 0; s < SLOTS; s++) {
		struct order size = { .op = OP_SIZE, .slot = s }, close_it = { .op = OP_CLOSE, .slot = s };
		static struct answer a;

		if (!model_is_open(w, s))
			continue;
		model_obey(w, &size, &a);
		if (a.ret > 100000)
			step(w, &close_it);
	}
}

/* A worker dies in the middle of its life; another, forked from the leader, takes its place with nothing open. */
static void replace_a_worker(void)
{
	int w = (int)below(WORKERS);
	struct order o = { .op = OP_DIE };

	last = o;
	must(send(socks[w], &o, sizeof(o), 0) == (ssize_t)sizeof(o), "send");
	model_forget(w);
	hire(w);
	replaced++;
}

/* Every open descriptor, read from end to end. */
static void compare_descriptors(void)
{
	for (int w = 0; w < WORKERS; w++)
		for (int s = 0; s < SLOTS; s++)
			for (long off = 0; model_is_readable(w, s) && off < MAX_SIZE; off += MAX_IO) {
				struct order o = { .op = OP_PREAD, .slot = s, .off = off, .len = MAX_IO };

				step(w, &o);
			}
}

static void compare_file(int f, const char *when)
{
	static unsigned char have[MAX_SIZE + MAX_IO];
	const unsigned char *want = NULL;
	char name[64];
	long size = model_file(f, &want), n;
	int fd;

	snprintf(name, sizeof(name), "branch/base/1/%d", f);
	fd = open(in_disk(name), O_RDONLY);
	if (fd < 0 && errno == ENOENT && size < 0)
		return;
	must(fd >= 0, name);
	n = pread(fd, have, sizeof(have), 0);
	close(fd);
	if (n != size || memcmp(have, want, (size_t)size) != 0)
		fail("%s: file %d has %ld bytes, not the %ld of the model, or others", when, f, n, size);
}

/* The upper must hold what was written and nothing else: laziness itself. */
static void compare_upper(int f)
{
	const unsigned char *bytes;
	struct stat st;
	char name[64];
	int have;

	snprintf(name, sizeof(name), "upper/base/1/%d", f);
	have = lstat(in_disk(name), &st) == 0 && S_ISREG(st.st_mode);
	if (model_file(f, &bytes) >= 0 && have != model_in_upper(f))
		fail("file %d is %sin the upper layer", f, have ? "" : "not ");
}

static void compare_seed(void)
{
	char name[64];

	for (int f = 0; f < FILES; f++) {
		FILE *file;

		snprintf(name, sizeof(name), "seed/base/1/%d", f);
		file = fopen(in_disk(name), "r");
		must(file != NULL, name);
		for (long i = 0; i < seed_size(f); i++)
			if (getc(file) != seed_byte(f, i))
				fail("the seed's file %d has changed", f);
		if (getc(file) != EOF)
			fail("the seed's file %d has grown", f);
		fclose(file);
	}
}

static void play_round(long steps)
{
	model_reset(lazy);
	fresh_branch();
	start_workers();
	for (long end = steps_done + steps; steps_done < end;) {
		int w = (int)below(WORKERS);

		random_step(w);
		keep_small(w);
		if (below(150) == 0)
			replace_a_worker();
	}
	compare_descriptors();
	for (int f = 0; f < FILES; f++) {
		compare_file(f, "from outside");
		compare_upper(f);
	}
	stop_workers();
	for (int w = 0; w < WORKERS; w++)
		model_forget(w);
	unmount_branch();
	mount_branch();
	for (int f = 0; f < FILES; f++)
		compare_file(f, "after a new mount");
	unmount_branch();
}

int main(int argc, char **argv)
{
	long steps, rounds = 0;

	if (argc < 6)
		return 2;
	disk = argv[1];
	worker_program = argv[2];
	steps = atol(argv[4]);
	seed = strtoull(argv[5], NULL, 10);
	lazy = argc == 6;
	rng = seed;
	signal(SIGPIPE, SIG_IGN);
	make_seed(argv[3]);
	for (; steps_done < steps; rounds++)
		play_round(40 + below(300));
	compare_seed();
	printf("%ld steps in %ld rounds, %ld lazy opens, %ld first writes, %ld refused as stale, %ld workers replaced; seed %llu%s\n", steps_done, rounds,
		model_lazy_opens, model_first_writes, model_stale, replaced, seed, lazy ? "" : ", without the shim");
	return 0;
}
