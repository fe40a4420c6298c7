/*
 * The test program's own frame. It must be called `postgres` and be started in a data directory on an overlay, by
 * test/overlay.sh, which puts the names of the layers into the environment:
 *
 *   LZ_UPPER   the upper directory: what is in it was copied up
 *   LZ_LAZY    1: the shim must be at work; 0: it must not (the control)
 *
 * base/1/ holds SEED_FILES files of SEED_SIZE bytes in the lower layer, all different.
 */
#ifndef CALLS_CHECK_H
#define CALLS_CHECK_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum {
	SEED_FILES = 1000,
	SEED_SIZE = 65536,
	SPOT = 4096, /* where the tests write */
};

static const char NEWS[] = "NEWDATA!"; /* what they write, without its terminator */
enum { NEWS_SIZE = sizeof(NEWS) - 1 };

struct test {
	const char *name;
	void (*run)(void);
};

/* One list a file of tests, ended by an entry without a name. */
extern const struct test open_tests[], write_tests[], descriptor_tests[], failure_tests[], identity_tests[], process_tests[],
	thread_tests[], lock_tests[], space_tests[], control_tests[], last_tests[];

/* Before and after a cut of the power, which overlay.sh makes good in between. */
void sync_and_cut(void);
void look_after_cut(void);

/* Ends the test as failed when the condition does not hold; says where, and errno. */
#define CHECK(condition) check_that(!!(condition), #condition, __FILE__, __LINE__)
void check_that(int holds, const char *condition, const char *file, int line);

/* The path of a seed file that no test has used yet. The answers stay valid for the whole test. */
const char *fresh(void);

/* Whether the file at path is in the upper layer. */
int in_upper(const char *path);

/* Blocks of 512 bytes which the upper layer's file has allocated. */
long upper_blocks(const char *path);

/* The byte that the seed has at this offset of the file at path. */
unsigned char seed_byte(const char *path, long at);

/* Whether fd's bytes from offset at on are these. */
int reads(int fd, long at, const void *want, size_t n);

/* Whether fd's bytes from offset at on, n of them, are those of the seed file at path. */
int reads_seed(int fd, const char *path, long at, size_t n);

/* Whether fd holds the seed's bytes but for NEWS at SPOT. */
int reads_news(int fd, const char *path);

/* The function of this name as the program would be linked to it: the shim's if it has one. NULL when nobody has it. */
void *function(const char *name);

/* What the kernel says of fd's access mode, behind the shim's back. */
int true_accmode(int fd);

/* Opens for reading and writing what must exist. */
int open_rw(const char *path);

/* Writes NEWS at SPOT. Returns 0, or errno. */
int write_news(int fd);

/* Whether the shim is expected to be at work. */
int expect_lazy(void);

#endif
