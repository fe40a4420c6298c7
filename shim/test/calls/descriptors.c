#include "check.h"

#include <dirent.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void offset_survives(void)
{
	const char *path = fresh();
	int fd = open_rw(path), old = open_rw(path);
	char buf[1000];

	CHECK(read(fd, buf, sizeof(buf)) == sizeof(buf));
	CHECK(write(fd, NEWS, NEWS_SIZE) == NEWS_SIZE);
	CHECK(lseek(fd, 0, SEEK_CUR) == 1000 + NEWS_SIZE);
	CHECK(reads(old, 1000, NEWS, NEWS_SIZE));
	CHECK(lseek(old, 0, SEEK_END) == SEED_SIZE);
	CHECK(write(old, NEWS, NEWS_SIZE) == NEWS_SIZE);
	CHECK(reads(fd, SEED_SIZE, NEWS, NEWS_SIZE));
	path = fresh();
	fd = open_rw(path);
	CHECK(lseek(fd, 777, SEEK_SET) == 777);
	CHECK(pwrite(fd, NEWS, NEWS_SIZE, 0) == NEWS_SIZE);
	CHECK(lseek(fd, 0, SEEK_CUR) == 777);
}

static void status_flags_survive(void)
{
	const char *path = fresh();
	int want = O_APPEND | O_NONBLOCK | O_DSYNC | O_NOATIME | O_NOFOLLOW;
	int fd = open(path, O_RDWR | want), old = open_rw(path);

	CHECK(fd >= 0);
	CHECK((fcntl(fd, F_GETFL) & want) == want);
	CHECK(write(fd, NEWS, NEWS_SIZE) == NEWS_SIZE);
	CHECK((fcntl(fd, F_GETFL) & (want & ~O_NOFOLLOW)) == (want & ~O_NOFOLLOW));
	CHECK(reads(old, SEED_SIZE, NEWS, NEWS_SIZE)); /* at the end: it appended */
	CHECK(reads_seed(old, path, 0, SEED_SIZE));
}

static void changed_status_flags_survive(void)
{
	const char *path = fresh();
	int fd = open(path, O_RDWR | O_NONBLOCK), old = open_rw(path);

	CHECK(fcntl(fd, F_SETFL, O_APPEND) == 0);
	CHECK((fcntl(fd, F_GETFL) & (O_APPEND | O_NONBLOCK | O_ACCMODE)) == (O_APPEND | O_RDWR));
	CHECK(write(fd, NEWS, NEWS_SIZE) == NEWS_SIZE);
	CHECK((fcntl(fd, F_GETFL) & (O_APPEND | O_NONBLOCK | O_ACCMODE)) == (O_APPEND | O_RDWR));
	CHECK(reads(old, SEED_SIZE, NEWS, NEWS_SIZE));
}

static void close_on_exec_survives(void)
{
	int fd = open(fresh(), O_RDWR | O_CLOEXEC);

	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(write_news(fd) == 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	fd = open(fresh(), O_RDWR | O_CLOEXEC);
	CHECK(fcntl(fd, F_SETFD, 0) == 0);
	CHECK(write_news(fd) == 0 && fcntl(fd, F_GETFD) == 0);
	fd = open(fresh(), O_RDWR);
	CHECK(write_news(fd) == 0 && fcntl(fd, F_GETFD) == 0);
	fd = open(fresh(), O_RDWR);
	CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0);
	CHECK(write_news(fd) == 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
}

/* Both numbers write, both see it, and they share one offset. */
static void check_copy(int fd, int copy, const char *path)
{
	int reader = open(path, O_RDONLY);

	CHECK(copy >= 0);
	CHECK(lseek(copy, SPOT, SEEK_SET) == SPOT);
	CHECK(lseek(fd, 0, SEEK_CUR) == SPOT);
	CHECK(write(copy, NEWS, NEWS_SIZE) == NEWS_SIZE);
	CHECK(lseek(fd, 0, SEEK_CUR) == SPOT + NEWS_SIZE);
	CHECK(reads_news(fd, path) && reads_news(copy, path) && reads_news(reader, path));
	CHECK(write(fd, "more", 4) == 4);
	CHECK(reads(copy, SPOT + NEWS_SIZE, "more", 4));
	CHECK(close(fd) == 0);
	CHECK(pwrite(copy, "last", 4, 0) == 4);
	CHECK(reads(reader, 0, "last", 4));
	CHECK(close(copy) == 0);
}

static void copies_of_a_descriptor_write(void)
{
	int (*dup2_inner)(int, int) = (int (*)(int, int))function("__dup2");
	const char *path = fresh();
	int fd = open_rw(path), copy;

	check_copy(fd, dup(fd), path);
	fd = open_rw(path = fresh());
	check_copy(fd, dup2(fd, 200), path);
	fd = open_rw(path = fresh());
	check_copy(fd, dup2_inner(fd, 201), path);
	fd = open_rw(path = fresh());
	copy = dup3(fd, 202, O_CLOEXEC);
	CHECK(fcntl(copy, F_GETFD) == FD_CLOEXEC);
	check_copy(fd, copy, path);
	fd = open_rw(path = fresh());
	copy = fcntl(fd, F_DUPFD, 210);
	CHECK(copy == 210);
	check_copy(fd, copy, path);
	fd = open_rw(path = fresh());
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 220);
	CHECK(copy == 220 && fcntl(copy, F_GETFD) == FD_CLOEXEC);
	check_copy(fd, copy, path);
}

static void copies_onto_a_lazy_number_forget_it(void)
{
	const char *path = fresh();
	int fd = open_rw(path), pipes[2];

	CHECK(pipe(pipes) == 0);
	CHECK(dup2(pipes[1], fd) == fd);
	CHECK(write(fd, NEWS, NEWS_SIZE) == NEWS_SIZE);
	CHECK(!in_upper(path));
	fd = open_rw(path);
	CHECK(dup3(pipes[1], fd, 0) == fd);
	CHECK(write(fd, NEWS, NEWS_SIZE) == NEWS_SIZE);
	CHECK(!in_upper(path));
	fd = open_rw(path);
	CHECK(dup2((int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY), fd) == fd); /* read-only for real */
	CHECK(write_news(fd) == EBADF);
	CHECK(!in_upper(path));
}

static void duplicating_calls_fail_alike(void)
{
	int fd = open_rw(fresh());

	CHECK(dup(-1) < 0 && errno == EBADF);
	CHECK(dup2(-1, 50) < 0 && errno == EBADF);
	CHECK(dup2(fd, -1) < 0 && errno == EBADF);
	CHECK(dup2(fd, fd) == fd);
	CHECK(dup2(300, 300) < 0 && errno == EBADF);
	CHECK(dup3(fd, fd, 0) < 0 && errno == EINVAL);
	CHECK(dup3(fd, 60, O_APPEND) < 0 && errno == EINVAL);
	CHECK(fcntl(fd, F_DUPFD, -1) < 0 && errno == EINVAL);
	CHECK(fcntl(-1, F_GETFL) < 0 && errno == EBADF);
}

static void a_number_is_closed_and_used_again(void)
{
	const char *path = fresh();
	int fd = open_rw(path), sock[2], again;

	CHECK(close(fd) == 0);
	CHECK(close(fd) < 0 && errno == EBADF);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sock) == 0);
	CHECK(sock[0] == fd);
	CHECK(write(sock[0], NEWS, NEWS_SIZE) == NEWS_SIZE);
	close(sock[0]);
	again = open(path, O_RDONLY);
	CHECK(again == fd);
	CHECK(write_news(again) == EBADF);
	close(again);
	again = open_rw(path);
	CHECK(again == fd && close(again) == 0);
	again = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY); /* by a call that no wrapper sees */
	CHECK(again == fd);
	CHECK(write_news(again) == EBADF);
	CHECK(!in_upper(path));
}

/* Calls inside libc close descriptors that no wrapper sees; the next owner of the number must not inherit the note. */
static void a_number_closed_unseen_is_not_taken_for_lazy(void)
{
	const char *path = fresh();
	int fd = open_rw(path), pipes[2], raw;

	CHECK(syscall(SYS_close, fd) == 0);
	CHECK(pipe(pipes) == 0);
	CHECK(pipes[0] == fd);
	CHECK(write(fd, NEWS, NEWS_SIZE) < 0 && errno == EBADF); /* the reading end */
	CHECK(write(pipes[1], NEWS, NEWS_SIZE) == NEWS_SIZE);
	fd = open_rw(path);
	CHECK(syscall(SYS_close, fd) == 0);
	raw = (int)syscall(SYS_openat, AT_FDCWD, "news", O_WRONLY | O_APPEND);
	CHECK(raw == fd);
	CHECK(write(raw, "", 0) == 0);
	CHECK((fcntl(raw, F_GETFL) & O_ACCMODE) == O_WRONLY);
	CHECK(!in_upper(path));
}

static void directory_streams_and_files_keep_working(void)
{
	DIR *dir = opendir("base/1");
	FILE *f;

	CHECK(dir && readdir(dir));
	CHECK(closedir(dir) == 0);
	f = fopen("base/1/stream", "w+");
	CHECK(f && fputs(NEWS, f) >= 0 && fflush(f) == 0);
	CHECK(reads(fileno(f), 0, NEWS, NEWS_SIZE));
	CHECK(fclose(f) == 0 && unlink("base/1/stream") == 0);
}

/* fopen reaches a data file only through libc's own open: it copies up at once, as without the shim, and all agree. */
static void fopen_for_writing_is_coherent(void)
{
	const char *path = fresh();
	int lazy = open_rw(path);
	FILE *f = fopen(path, "r+");

	CHECK(f);
	CHECK(fseek(f, SPOT, SEEK_SET) == 0 && fputs(NEWS, f) >= 0 && fclose(f) == 0);
	CHECK(reads_news(lazy, path));
	CHECK(write_news(lazy) == 0);
}

static void record_locks_are_on_the_final_file(void)
{
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 10 };
	const char *path = fresh();
	int fd = open_rw(path), status;

	CHECK(fcntl(fd, F_SETLK, &lock) == 0);
	CHECK(write_news(fd) == 0);
	if (fork() == 0) {
		int other = open_rw(path);

		CHECK(fcntl(other, F_SETLK, &lock) < 0 && (errno == EAGAIN || errno == EACCES));
		_exit(0);
	}
	CHECK(wait(&status) > 0 && status == 0);
	fd = open_rw(path = fresh());
	lock.l_pid = 0;
	CHECK(fcntl(fd, F_OFD_SETLK, &lock) == 0);
	CHECK(write_news(fd) == 0);
	fd = open_rw(path);
	CHECK(fcntl(fd, F_OFD_SETLK, &lock) < 0 && errno == EAGAIN);
	fd = open_rw(path = fresh());
	CHECK(flock(fd, LOCK_EX) == 0);
	CHECK(write_news(fd) == 0);
	CHECK(flock(open_rw(path), LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK);
}

static void owner_of_signals(void)
{
	int sock[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sock) == 0);
	CHECK(fcntl(sock[0], F_GETOWN) == 0);
	CHECK(fcntl(sock[0], F_SETOWN, getpid()) == 0);
	CHECK(fcntl(sock[0], F_GETOWN) == getpid());
	CHECK(fcntl(sock[0], F_SETOWN, -getpgrp()) == 0);
	CHECK(fcntl(sock[0], F_GETOWN) == -getpgrp());
	CHECK(fcntl(-1, F_GETOWN) < 0 && errno == EBADF);
}

static void a_changed_directory_does_not_mislead(void)
{
	const char *path = fresh();
	int fd = open_rw(path), reader = open(path, O_RDONLY);

	CHECK(chdir("/") == 0);
	CHECK(write_news(fd) == 0);
	CHECK(reads_news(reader, path));
}

const struct test descriptor_tests[] = {
	{ "offset survives", offset_survives },
	{ "status flags survive", status_flags_survive },
	{ "changed status flags survive", changed_status_flags_survive },
	{ "close-on-exec survives", close_on_exec_survives },
	{ "copies of a descriptor write", copies_of_a_descriptor_write },
	{ "copies onto a lazy number forget it", copies_onto_a_lazy_number_forget_it },
	{ "duplicating calls fail alike", duplicating_calls_fail_alike },
	{ "a number is closed and used again", a_number_is_closed_and_used_again },
	{ "a number closed unseen is not taken for lazy", a_number_closed_unseen_is_not_taken_for_lazy },
	{ "directory streams and stdio keep working", directory_streams_and_files_keep_working },
	{ "fopen for writing is coherent", fopen_for_writing_is_coherent },
	{ "record locks are on the final file", record_locks_are_on_the_final_file },
	{ "F_GETOWN", owner_of_signals },
	{ "a changed directory does not mislead", a_changed_directory_does_not_mislead },
	{ 0 },
};
