#include "write_calls.h"
#include "check.h"

#include <sys/mman.h>
#include <sys/uio.h>

static int outcome(ssize_t n)
{
	return n == NEWS_SIZE ? 0 : n < 0 ? errno : -1;
}

/* A read-only descriptor of a file that holds NEWS. */
static int source(void)
{
	int fd = open("news", O_RDONLY);

	CHECK(fd >= 0);
	return fd;
}

static int put_write(void *f, int fd)
{
	CHECK(lseek(fd, SPOT, SEEK_SET) == SPOT);
	return outcome(((ssize_t(*)(int, const void *, size_t))f)(fd, NEWS, NEWS_SIZE));
}

static int put_writev(void *f, int fd)
{
	struct iovec iov[2] = { { (void *)NEWS, 3 }, { (void *)(NEWS + 3), NEWS_SIZE - 3 } };

	CHECK(lseek(fd, SPOT, SEEK_SET) == SPOT);
	return outcome(((ssize_t(*)(int, const struct iovec *, int))f)(fd, iov, 2));
}

static int put_pwrite(void *f, int fd)
{
	return outcome(((ssize_t(*)(int, const void *, size_t, off_t))f)(fd, NEWS, NEWS_SIZE, SPOT));
}

static int put_pwritev(void *f, int fd)
{
	struct iovec iov[2] = { { (void *)NEWS, 3 }, { (void *)(NEWS + 3), NEWS_SIZE - 3 } };

	return outcome(((ssize_t(*)(int, const struct iovec *, int, off_t))f)(fd, iov, 2, SPOT));
}

static int put_pwritev2(void *f, int fd)
{
	struct iovec iov[2] = { { (void *)NEWS, 3 }, { (void *)(NEWS + 3), NEWS_SIZE - 3 } };
	ssize_t (*pwv2)(int, const struct iovec *, int, off_t, int) = (ssize_t(*)(int, const struct iovec *, int, off_t, int))f;

	return outcome(pwv2(fd, iov, 2, SPOT, 0));
}

static int put_copy_file_range(void *f, int fd)
{
	ssize_t (*cfr)(int, off_t *, int, off_t *, size_t, unsigned) = (ssize_t(*)(int, off_t *, int, off_t *, size_t, unsigned))f;
	off_t at = SPOT;
	int from = source();
	int rc = outcome(cfr(from, NULL, fd, &at, NEWS_SIZE, 0));

	if (rc == 0)
		CHECK(at == SPOT + NEWS_SIZE);
	close(from);
	return rc;
}

static int put_sendfile(void *f, int fd)
{
	int from = source();
	int rc;

	CHECK(lseek(fd, SPOT, SEEK_SET) == SPOT);
	rc = outcome(((ssize_t(*)(int, int, off_t *, size_t))f)(fd, from, NULL, NEWS_SIZE));
	close(from);
	return rc;
}

static int put_splice(void *f, int fd)
{
	ssize_t (*spl)(int, off_t *, int, off_t *, size_t, unsigned) = (ssize_t(*)(int, off_t *, int, off_t *, size_t, unsigned))f;
	off_t at = SPOT;
	int pipes[2], rc;

	CHECK(pipe(pipes) == 0);
	CHECK(write(pipes[1], NEWS, NEWS_SIZE) == NEWS_SIZE);
	rc = outcome(spl(pipes[0], NULL, fd, &at, NEWS_SIZE, 0));
	close(pipes[0]);
	close(pipes[1]);
	return rc;
}

static int put_mmap(void *f, int fd)
{
	void *(*map)(void *, size_t, int, int, int, off_t) = (void *(*)(void *, size_t, int, int, int, off_t))f;
	char *at = map(NULL, SEED_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int saved = errno;

	if (at == MAP_FAILED)
		return saved;
	memcpy(at + SPOT, NEWS, NEWS_SIZE);
	CHECK(munmap(at, SEED_SIZE) == 0);
	errno = saved;
	return 0;
}

const struct write_call write_calls[] = {
	{ "write", put_write },
	{ "__write", put_write },
	{ "writev", put_writev },
	{ "pwrite", put_pwrite },
	{ "pwrite64", put_pwrite },
	{ "__pwrite64", put_pwrite },
	{ "pwritev", put_pwritev },
	{ "pwritev64", put_pwritev },
	{ "pwritev2", put_pwritev2 },
	{ "pwritev64v2", put_pwritev2 },
	{ "copy_file_range", put_copy_file_range },
	{ "sendfile", put_sendfile },
	{ "sendfile64", put_sendfile },
	{ "splice", put_splice },
	{ "mmap", put_mmap },
	{ "mmap64", put_mmap },
	{ 0 },
};
