#include "check.h"

#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Whether PGDATA is locked: by asking as a second server would, with a description of our own. */
static int branch_is_locked(void)
{
	int fd = (int)syscall(SYS_openat, AT_FDCWD, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc = (int)syscall(SYS_flock, fd, LOCK_EX | LOCK_NB);
	int locked = rc < 0 && errno == EWOULDBLOCK;

	CHECK(fd >= 0);
	CHECK(syscall(SYS_close, fd) == 0);
	return locked;
}

/* The number that the lock has in this process. */
static int lock_number(void)
{
	struct stat here, st;

	CHECK(stat(".", &here) == 0);
	for (int fd = 3; fd < 1000; fd++)
		if (syscall(SYS_fcntl, fd, F_GETFD) >= 0 && fstat(fd, &st) == 0 && st.st_dev == here.st_dev && st.st_ino == here.st_ino)
			return fd;
	CHECK(!"there is a lock");
	return -1;
}

/*
 * The parent holds the lock too, so a child that lost its own would not be noticed by asking: look at the number itself.
 */
static int has_lock(void)
{
	return syscall(SYS_fcntl, lock_number(), F_GETFD) == FD_CLOEXEC && branch_is_locked();
}

static void the_lock_is_held_and_hidden(void)
{
	int fd = lock_number();

	CHECK(has_lock());
	CHECK(close(fd) < 0 && errno == EBADF);
	CHECK(has_lock());
	for (int i = 3; i < 1024; i++)
		(void)close(i);
	CHECK(has_lock());
}

static void closing_ranges_spares_the_lock(void)
{
	int (*range)(unsigned, unsigned, int) = (int (*)(unsigned, unsigned, int))function("close_range");
	void (*from)(int) = (void (*)(int))function("closefrom");
	const char *path = fresh();
	int fd = open_rw(path);

	CHECK(range && from);
	CHECK(range((unsigned)fd, (unsigned)fd, 0) == 0);
	CHECK(syscall(SYS_fcntl, fd, F_GETFD) < 0);
	CHECK(open("/dev/null", O_WRONLY) == fd && write(fd, NEWS, NEWS_SIZE) == NEWS_SIZE);
	CHECK(range(3, ~0u, 0) == 0);
	CHECK(has_lock());
	fd = open_rw(path);
	from(3);
	CHECK(has_lock());
	CHECK(syscall(SYS_fcntl, fd, F_GETFD) < 0);
	CHECK(range(9, 3, 0) < 0 && errno == EINVAL);
	CHECK(range(3, ~0u, 1 << 20) < 0 && errno == EINVAL);
	CHECK(range((unsigned)lock_number(), (unsigned)lock_number(), 0) == 0);
	CHECK(has_lock());
	CHECK(!in_upper(path));
}

/* Marking a range close-on-exec closes nothing, so what is known of it must stay known. */
static void close_range_cloexec_forgets_nothing(void)
{
	int (*range)(unsigned, unsigned, int) = (int (*)(unsigned, unsigned, int))function("close_range");
	const char *path = fresh();
	int fd = open_rw(path);

	CHECK(range(3, ~0u, 4 /* CLOSE_RANGE_CLOEXEC */) == 0);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(write_news(fd) == 0 && reads_news(fd, path));
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(has_lock());
}

static void a_copy_onto_the_locks_number_moves_the_lock(void)
{
	int number = lock_number(), pipes[2], fd;

	CHECK(pipe(pipes) == 0);
	CHECK(dup2(pipes[1], number) == number);
	CHECK(write(number, NEWS, NEWS_SIZE) == NEWS_SIZE);
	CHECK(lock_number() != number && has_lock());
	CHECK(close(number) == 0);
	number = lock_number();
	fd = open_rw(fresh());
	CHECK(dup3(fd, number, O_CLOEXEC) == number);
	CHECK(write_news(number) == 0);
	CHECK(lock_number() != number && has_lock());
	CHECK(close(lock_number()) < 0 && errno == EBADF);
}

static void programs_started_by_exec_do_not_hold_the_lock(void)
{
	char command[200];
	int status;

	snprintf(command, sizeof(command), "test ! -e /proc/self/fd/%d || test ! -d /proc/self/fd/%d", lock_number(), lock_number());
	status = system(command);
	CHECK(status == 0);
}

static void claiming_twice_is_no_conflict(void)
{
	int fd;

	CHECK(open("postmaster.pid", O_RDWR | O_CREAT | O_EXCL, 0600) < 0 && errno == EEXIST);
	CHECK(unlink("postmaster.pid") == 0); /* CreateLockFile does so with a stale one, and goes round again */
	fd = open("postmaster.pid", O_RDWR | O_CREAT | O_EXCL, 0600);
	CHECK(fd >= 0 && close(fd) == 0);
	CHECK(has_lock());
}

const struct test lock_tests[] = {
	{ "the lock is held and hidden", the_lock_is_held_and_hidden },
	{ "closing ranges spares the lock", closing_ranges_spares_the_lock },
	{ "CLOSE_RANGE_CLOEXEC forgets nothing", close_range_cloexec_forgets_nothing },
	{ "a copy onto the lock's number moves the lock", a_copy_onto_the_locks_number_moves_the_lock },
	{ "programs started by exec do not hold the lock", programs_started_by_exec_do_not_hold_the_lock },
	{ "claiming twice is no conflict", claiming_twice_is_no_conflict },
	{ 0 },
};
