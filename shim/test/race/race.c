/*
 * Copy-ups amid readers and writers: many processes, each the only writer of its blocks, as Postgres' buffer manager lets at most
 * one backend write a block. A process that reads a block nobody is writing must find exactly the version that was written
 * last, by whatever process and however old its own descriptor is.
 *
 *   postgres MILLISECONDS FILES BLOCKS
 *
 * Run it in a data directory below the shim, whose base/1/0 and so on hold BLOCKS blocks each; what they hold
 * does not matter. Exit status 0: every read was right.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
	BLOCK = 4096,
	WORDS = BLOCK / 8,
	PROCESSES = 8,
	MAX_BLOCKS = 4096,
};

static struct {
	/* Twice the version of the block; odd while its owner is writing it. Version 0 is the seed's. */
	uint64_t sequence[MAX_BLOCKS];
	uint64_t reads, writes;
} *shared;

static uint64_t seed[MAX_BLOCKS][WORDS]; /* what the files held in the beginning */
static int files, blocks; /* blocks of a file */
static uint64_t rng;

static void fail(const char *what, long n, uint64_t want, uint64_t have)
{
	fprintf(stderr, "block %ld: %s: %llx, not %llx (errno %d)\n", n, what, (unsigned long long)have, (unsigned long long)want, errno);
	_exit(1);
}

static uint64_t next_random(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return rng;
}

static uint64_t word_of(long n, uint64_t version)
{
	return (uint64_t)n << 40 | version << 8 | 0x5a;
}

static void compare(long n, const uint64_t *words, uint64_t version)
{
	for (int i = 0; i < WORDS; i++) {
		uint64_t want = version ? word_of(n, version) : seed[n][i];

		if (words[i] != want)
			fail("holds another version", n, want, words[i]);
	}
}

/* Opens anew now and then, as the LRU of Postgres' virtual descriptors does; otherwise keeps what it has. */
static int descriptor(int *fds, int file)
{
	char name[64];

	if (fds[file] >= 0 && next_random() % 16 == 0) {
		close(fds[file]);
		fds[file] = -1;
	}
	if (fds[file] < 0) {
		snprintf(name, sizeof(name), "base/1/%d", file);
		fds[file] = open(name, O_RDWR);
	}
	if (fds[file] < 0)
		fail("cannot open", file, 0, 0);
	return fds[file];
}

static void write_block(int *fds, long n)
{
	uint64_t sequence = __atomic_load_n(&shared->sequence[n], __ATOMIC_SEQ_CST), words[WORDS];

	for (int i = 0; i < WORDS; i++)
		words[i] = word_of(n, sequence / 2 + 1);
	__atomic_store_n(&shared->sequence[n], sequence + 1, __ATOMIC_SEQ_CST);
	if (pwrite(descriptor(fds, (int)(n / blocks)), words, BLOCK, n % blocks * BLOCK) != BLOCK)
		fail("cannot write", n, 0, 0);
	__atomic_store_n(&shared->sequence[n], sequence + 2, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&shared->writes, 1, __ATOMIC_RELAXED);
}

static void read_block(int *fds, long n)
{
	uint64_t before = __atomic_load_n(&shared->sequence[n], __ATOMIC_SEQ_CST), words[WORDS];

	if (pread(descriptor(fds, (int)(n / blocks)), words, BLOCK, n % blocks * BLOCK) != BLOCK)
		fail("cannot read", n, 0, 0);
	if (before % 2 || __atomic_load_n(&shared->sequence[n], __ATOMIC_SEQ_CST) != before)
		return; /* being written: nothing can be said */
	compare(n, words, before / 2);
	__atomic_fetch_add(&shared->reads, 1, __ATOMIC_RELAXED);
}

static long milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

_Noreturn static void play(int self, long until)
{
	int fds[MAX_BLOCKS];
	long all = (long)files * blocks;

	memset(fds, -1, sizeof(fds));
	rng = (uint64_t)self * 0x9e3779b97f4a7c15u + (uint64_t)milliseconds() + 1;
	for (int f = 0; f < files; f++)
		(void)descriptor(fds, f); /* old descriptors, from before any copy-up */
	while (milliseconds() < until) {
		long n = (long)(next_random() % (uint64_t)all);

		if (next_random() % 4 == 0)
			write_block(fds, n - n % PROCESSES + self);
		else
			read_block(fds, n);
	}
	_exit(0);
}

static void read_afresh(long n, uint64_t *words)
{
	char name[64];
	int fd;

	snprintf(name, sizeof(name), "base/1/%ld", n / blocks);
	fd = open(name, O_RDONLY);
	if (fd < 0 || pread(fd, words, BLOCK, n % blocks * BLOCK) != BLOCK || close(fd) < 0)
		fail("cannot read", n, 0, 0);
}

/* All blocks once more, through fresh descriptors. */
static void check_all(void)
{
	uint64_t words[WORDS];

	for (long n = 0; n < (long)files * blocks; n++) {
		read_afresh(n, words);
		compare(n, words, shared->sequence[n] / 2);
	}
}

int main(int argc, char **argv)
{
	int fd, status, failed = 0;
	long until;

	if (argc != 4)
		return 2;
	files = atoi(argv[2]);
	blocks = atoi(argv[3]);
	if (files * blocks > MAX_BLOCKS || blocks % PROCESSES)
		return 2;
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	fd = open("postmaster.pid", O_RDWR | O_CREAT | O_EXCL, 0600);
	if (shared == MAP_FAILED || fd < 0 || close(fd) < 0)
		return 2;
	for (long n = 0; n < (long)files * blocks; n++)
		read_afresh(n, seed[n]);
	until = milliseconds() + atol(argv[1]);
	for (int i = 0; i < PROCESSES; i++)
		if (fork() == 0)
			play(i, until);
	while (wait(&status) > 0)
		failed |= status != 0;
	check_all();
	printf("%llu %llu\n", (unsigned long long)shared->reads, (unsigned long long)shared->writes);
	return failed;
}
