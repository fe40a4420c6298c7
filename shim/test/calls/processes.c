#include "check.h"

#include <sys/wait.h>

static void wait_for_child(void)
{
	int status;

	CHECK(wait(&status) > 0 && status == 0);
}

static void a_child_writes_an_inherited_lazy_descriptor(void)
{
	const char *path = fresh();
	int fd = open_rw(path);

	if (fork() == 0) {
		CHECK(write_news(fd) == 0);
		CHECK(reads_news(fd, path));
		_exit(0);
	}
	wait_for_child();
	CHECK(reads_news(fd, path));
	CHECK(true_accmode(fd) == O_RDONLY); /* the child's first write was the child's */
	CHECK(pwrite(fd, "parent", 6, 0) == 6);
	CHECK(reads(open(path, O_RDONLY), 0, "parent", 6));
}

static void parent_and_child_both_write(void)
{
	const char *path = fresh();
	int fd = open_rw(path), go[2];
	char c;

	CHECK(pipe(go) == 0);
	if (fork() == 0) {
		CHECK(read(go[0], &c, 1) == 1);
		CHECK(reads_news(fd, path));
		CHECK(pwrite(fd, "child", 5, 0) == 5);
		_exit(0);
	}
	CHECK(write_news(fd) == 0);
	CHECK(write(go[1], "", 1) == 1);
	wait_for_child();
	CHECK(reads(fd, 0, "child", 5));
	CHECK(reads(fd, SPOT, NEWS, NEWS_SIZE));
}

static void a_descriptor_written_before_the_fork_is_written_after(void)
{
	const char *path = fresh();
	int fd = open_rw(path);

	CHECK(write_news(fd) == 0);
	if (fork() == 0) {
		CHECK(pwrite(fd, "child", 5, 0) == 5);
		_exit(0);
	}
	wait_for_child();
	CHECK(reads(fd, 0, "child", 5));
}

static void a_grandchild_is_no_different(void)
{
	const char *path = fresh();
	int fd = open_rw(path);

	if (fork() == 0) {
		if (fork() == 0) {
			CHECK(write_news(fd) == 0);
			_exit(0);
		}
		wait_for_child();
		CHECK(reads_news(fd, path));
		_exit(0);
	}
	wait_for_child();
	CHECK(reads_news(fd, path));
}

/* Ten processes read the file and keep it open; one of them writes; all see it, then write their own part in turn. */
static void many_processes_with_old_descriptors_agree(void)
{
	enum { MANY = 10 };
	const char *path = fresh();
	int ready[2], go[2], fd;
	char c;

	CHECK(pipe(ready) == 0 && pipe(go) == 0);
	for (int i = 0; i < MANY; i++) {
		if (fork() != 0)
			continue;
		fd = open_rw(path);
		CHECK(reads_seed(fd, path, 0, SEED_SIZE));
		CHECK(write(ready[1], "", 1) == 1);
		CHECK(read(go[0], &c, 1) == 1);
		CHECK(reads(fd, SPOT, NEWS, NEWS_SIZE));
		CHECK(pwrite(fd, &i, sizeof(i), 100 * i) == sizeof(i));
		_exit(0);
	}
	for (int i = 0; i < MANY; i++)
		CHECK(read(ready[0], &c, 1) == 1);
	CHECK(!in_upper(path));
	fd = open_rw(path);
	CHECK(write_news(fd) == 0);
	for (int i = 0; i < MANY; i++)
		CHECK(write(go[1], "", 1) == 1);
	for (int i = 0; i < MANY; i++)
		wait_for_child();
	for (int i = 0; i < MANY; i++)
		CHECK(reads(fd, 100 * i, &i, sizeof(i)));
}

/* All first writes at the same moment: one copy-up, nobody's write lost. */
static void simultaneous_first_writes_are_all_kept(void)
{
	enum { MANY = 16, ROUNDS = 8 };

	for (int round = 0; round < ROUNDS; round++) {
		const char *path = fresh();
		int go[2], fd;
		char c;

		CHECK(pipe(go) == 0);
		for (int i = 0; i < MANY; i++) {
			if (fork() != 0)
				continue;
			close(go[1]);
			fd = open_rw(path);
			CHECK(read(go[0], &c, 1) == 0); /* all wake when the parent closes its end */
			CHECK(pwrite(fd, &i, sizeof(i), 4096 * i) == sizeof(i));
			CHECK(reads(fd, 4096 * i, &i, sizeof(i)));
			_exit(0);
		}
		close(go[0]);
		close(go[1]);
		for (int i = 0; i < MANY; i++)
			wait_for_child();
		fd = open(path, O_RDONLY);
		for (int i = 0; i < MANY; i++) {
			CHECK(reads(fd, 4096 * i, &i, sizeof(i)));
			CHECK(reads_seed(fd, path, 4096 * i + 4, 4092));
		}
		close(fd);
	}
}

/* A program started by exec is not the server's business: no state, no lock, and its writes to its own files work. */
static void a_program_started_by_exec_is_inert(void)
{
	const char *path = fresh();

	if (fork() == 0) {
		execl("/bin/sh", "sh", "-c", "echo hello > base/1/by-shell && test -z \"$(ls /proc/self/fd | grep -x 99)\"", (char *)NULL);
		_exit(127);
	}
	wait_for_child();
	CHECK(in_upper("base/1/by-shell"));
	CHECK(unlink("base/1/by-shell") == 0);
	CHECK(!in_upper(path));
}

const struct test process_tests[] = {
	{ "a child writes an inherited lazy descriptor", a_child_writes_an_inherited_lazy_descriptor },
	{ "parent and child both write", parent_and_child_both_write },
	{ "a descriptor written before the fork is written after", a_descriptor_written_before_the_fork_is_written_after },
	{ "a grandchild is no different", a_grandchild_is_no_different },
	{ "many processes with old descriptors agree", many_processes_with_old_descriptors_agree },
	{ "simultaneous first writes are all kept", simultaneous_first_writes_are_all_kept },
	{ "a program started by exec is inert", a_program_started_by_exec_is_inert },
	{ 0 },
};
