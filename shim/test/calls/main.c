#include "check.h"
#include "library.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

static int *next_file; /* shared by all tests, which run in processes of their own */
static long *checks;

void check_that(int holds, const char *condition, const char *file, int line)
{
	__atomic_fetch_add(checks, 1, __ATOMIC_RELAXED);
	if (holds)
		return;
	fprintf(stderr, "\n    %s:%d: not so: %s (errno %d, %s)\n", file, line, condition, errno, strerror(errno));
	_exit(1);
}

const char *fresh(void)
{
	static char names[SEED_FILES][32];
	int n = __atomic_fetch_add(next_file, 1, __ATOMIC_RELAXED);

	CHECK(n < SEED_FILES);
	snprintf(names[n], sizeof(names[n]), "base/1/%d", n);
	return names[n];
}

static int stat_upper(const char *path, struct stat *st)
{
	char full[4096];

	snprintf(full, sizeof(full), "%s/%s", getenv("LZ_UPPER"), path);
	return lstat(full, st);
}

int in_upper(const char *path)
{
	struct stat st;

	return stat_upper(path, &st) == 0 && S_ISREG(st.st_mode); /* a whiteout is a device */
}

long upper_blocks(const char *path)
{
	struct stat st;

	CHECK(stat_upper(path, &st) == 0);
	return st.st_blocks;
}

unsigned char seed_byte(const char *path, long at)
{
	long n = atol(strrchr(path, '/') + 1);

	return (unsigned char)(at * 7 + at / 251 + n * 13 + n / 17);
}

int reads(int fd, long at, const void *want, size_t n)
{
	char have[SEED_SIZE];

	return pread(fd, have, n, at) == (ssize_t)n && memcmp(have, want, n) == 0;
}

int reads_seed(int fd, const char *path, long at, size_t n)
{
	unsigned char want[SEED_SIZE];

	for (size_t i = 0; i < n; i++)
		want[i] = seed_byte(path, at + (long)i);
	return reads(fd, at, want, n);
}

int reads_news(int fd, const char *path)
{
	return reads_seed(fd, path, 0, SPOT) && reads(fd, SPOT, NEWS, NEWS_SIZE) &&
	       reads_seed(fd, path, SPOT + NEWS_SIZE, SEED_SIZE - SPOT - NEWS_SIZE);
}

void *function(const char *name)
{
	return getenv("LZ_LIBRARY") ? linked_function(name) : dlsym(RTLD_DEFAULT, name);
}

int true_accmode(int fd)
{
	return (int)syscall(SYS_fcntl, fd, F_GETFL) & O_ACCMODE;
}

int open_rw(const char *path)
{
	int fd = open(path, O_RDWR);

	CHECK(fd >= 0);
	return fd;
}

int write_news(int fd)
{
	ssize_t n = pwrite(fd, NEWS, NEWS_SIZE, SPOT);

	return n == NEWS_SIZE ? 0 : errno;
}

int expect_lazy(void)
{
	return atoi(getenv("LZ_LAZY"));
}

/* Fills the directory that is to become the lower layer. */
static int make_seed(const char *dir)
{
	static unsigned char bytes[SEED_SIZE];
	char path[4096];

	for (int n = 0; n < SEED_FILES; n++) {
		int fd;

		snprintf(path, sizeof(path), "%s/%d", dir, n);
		for (long i = 0; i < SEED_SIZE; i++)
			bytes[i] = seed_byte(path, i);
		fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
		if (fd < 0 || write(fd, bytes, SEED_SIZE) != SEED_SIZE || close(fd) != 0) {
			perror(path);
			return 1;
		}
	}
	return 0;
}

/* What CreateLockFile of a real server does: try, remove a stale file, try again. */
static void claim_data_directory(void)
{
	int fd = open("postmaster.pid", O_RDWR | O_CREAT | O_EXCL, 0600);

	if (fd < 0 && errno == EEXIST && unlink("postmaster.pid") == 0)
		fd = open("postmaster.pid", O_RDWR | O_CREAT | O_EXCL, 0600);
	CHECK(fd >= 0);
	CHECK(dprintf(fd, "%d\n/data\n", getpid()) > 0);
	CHECK(close(fd) == 0);
	if (getenv("LZ_LIBRARY"))
		load_library(getenv("LZ_LIBRARY"));
}

/* The status of a test's process; -1 when it does not end: a test that hangs has failed. */
static int status_of(pid_t pid)
{
	enum { SECONDS = 60 };
	int status;

	for (int i = 0; i < SECONDS * 1000; i++) {
		pid_t ended = waitpid(pid, &status, WNOHANG);

		if (ended == pid)
			return status;
		usleep(1000);
	}
	return -1;
}

static int run_one(const struct test *t)
{
	int status;
	pid_t pid;

	fflush(stdout); /* not once more by every child */
	pid = fork();
	if (pid == 0) {
		setpgid(0, 0);
		t->run();
		_exit(0);
	}
	status = pid < 0 ? -1 : status_of(pid);
	if (status == 0)
		return 0;
	printf("FAIL %s\n", t->name);
	kill(-pid, SIGKILL); /* children of a test that failed may wait for it for ever */
	return 1;
}

static int run_all(const struct test *tests, int *count)
{
	int failed = 0;

	for (; tests->name; tests++, ++*count)
		failed += run_one(tests);
	return failed;
}

/* What a postmaster asks each minute: is postmaster.pid still mine (utils/init/miscinit.c, RecheckDataDirLockFile)? */
static int still_claimed(void)
{
	int fd = open("postmaster.pid", O_RDWR);
	char text[64] = "";

	if (fd < 0)
		return 0;
	CHECK(read(fd, text, sizeof(text) - 1) >= 0);
	CHECK(close(fd) == 0);
	return atoi(text) == getpid();
}

/*
 * Claims the directory, says so, and stays until stdin ends: a server for the lock tests of overlay.sh and claim.sh. For each
 * byte that it reads it says whether it would go on.
 */
static int hold(int with_child)
{
	char c;

	claim_data_directory();
	if (with_child && fork() != 0)
		_exit(0); /* the "postmaster" dies; its "backend" lives on */
	printf("holding\n");
	fflush(stdout);
	while (read(0, &c, 1) > 0) {
		printf(still_claimed() ? "claimed\n" : "lost\n");
		fflush(stdout);
	}
	return 0;
}

/* Opens one file for writing and says whether that copied it up: for programs in which the shim must do nothing. */
static int probe(void)
{
	const char *path = "base/1/999";
	int fd;

	claim_data_directory();
	fd = open(path, O_RDWR);
	CHECK(fd >= 0);
	printf("%s\n", in_upper(path) ? "eager" : "lazy");
	return 0;
}

/* Numbers at and past the end of the shim's table (here made small): the file is opened as asked, and all else holds. */
static int numbers(int maxfd)
{
	const char *path = fresh();
	int fd;

	claim_data_directory();
	for (fd = open("/dev/null", O_RDONLY); fd >= 0 && fd < maxfd - 1; fd = open("/dev/null", O_RDONLY))
		;
	CHECK(fd == maxfd - 1);
	fd = open_rw(path);
	CHECK(fd == maxfd);
	CHECK(in_upper(path));
	CHECK(write_news(fd) == 0 && reads_news(fd, path));
	CHECK(dup(fd) == maxfd + 1 && dup2(fd, maxfd + 2) == maxfd + 2 && close(maxfd + 2) == 0);
	CHECK(close(fd) == 0 && close(maxfd - 1) == 0);
	fd = open_rw(path = fresh());
	CHECK(fd == maxfd - 1 && !in_upper(path));
	CHECK(write_news(fd) == 0 && reads_news(fd, path));
	printf("numbers hold\n");
	return 0;
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";
	int count = 0, failed = 0;

	if (strcmp(mode, "seed") == 0)
		return make_seed(argv[2]);
	next_file = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (next_file == MAP_FAILED)
		return 1;
	checks = (long *)(next_file + 2);
	if (strcmp(mode, "hold") == 0)
		return hold(0);
	if (strcmp(mode, "orphan") == 0)
		return hold(1);
	if (strcmp(mode, "probe") == 0)
		return probe();
	if (strcmp(mode, "numbers") == 0)
		return numbers(atoi(argv[2]));

	if (strcmp(mode, "aftercut") == 0) {
		look_after_cut();
		return 0;
	}
	claim_data_directory();
	if (strcmp(mode, "cut") == 0) {
		sync_and_cut();
		return 0;
	}
	if (strcmp(mode, "last") == 0) {
		failed += run_all(last_tests, &count);
	} else if (expect_lazy()) {
		failed += run_all(open_tests, &count);
		failed += run_all(write_tests, &count);
		failed += run_all(descriptor_tests, &count);
		failed += run_all(failure_tests, &count);
		failed += run_all(identity_tests, &count);
		failed += run_all(process_tests, &count);
		failed += run_all(thread_tests, &count);
		failed += run_all(lock_tests, &count);
		failed += run_all(space_tests, &count);
	} else {
		failed += run_all(control_tests, &count);
	}
	printf("%d tests, %ld checks, %d failed\n", count, *checks, failed);
	return failed != 0;
}
