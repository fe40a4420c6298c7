/* The workers: a `postgres` that claims its data directory and forks WORKERS backends, which obey orders from a socket each. */
#include "orders.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static int slots[SLOTS];
static char buf[MAX_IO];

static const char *name_of(int file)
{
	static char names[2][32];
	static int turn;

	turn = !turn;
	snprintf(names[turn], sizeof(names[turn]), "base/1/%d", file);
	return names[turn];
}

static void fill(const struct order *o)
{
	for (long i = 0; i < o->len; i++)
		buf[i] = (char)fill_byte(o->fill, i);
}

static struct iovec *halves(const struct order *o)
{
	static struct iovec iov[2];
	size_t first = (size_t)o->len / 3;

	iov[0] = (struct iovec){ buf, first };
	iov[1] = (struct iovec){ buf + first, (size_t)o->len - first };
	return iov;
}

/* Keeps a new descriptor in the slot; the master does not know numbers. */
static long keep(int slot, int fd)
{
	if (fd < 0)
		return -1;
	slots[slot] = fd;
	return 0;
}

/* posix_fallocate returns the error; the master expects -1 and errno as from the others. */
static long allocate(int fd, long off, long len)
{
	int rc = posix_fallocate(fd, off, len);

	if (rc == 0)
		return 0;
	errno = rc;
	return -1;
}

static long size_of(int fd)
{
	struct stat st;

	return fstat(fd, &st) < 0 ? -1 : st.st_size;
}

static long go_on_in_child(void)
{
	pid_t pid = fork();

	if (pid > 0) {
		/* The parent stays, so that the leader's waiting is for one process a worker. */
		int status;

		while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
			;
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
	}
	return pid;
}

static long obey(const struct order *o, struct answer *a)
{
	int fd = slots[o->slot];
	off_t in = o->off, out = o->off2;

	switch (o->op) {
	case OP_OPEN:
		return keep(o->slot, open(name_of(o->file), o->flags, 0600));
	case OP_CLOSE:
		return close(fd);
	case OP_READ:
		return read(fd, a->data, (size_t)o->len);
	case OP_PREAD:
		return pread(fd, a->data, (size_t)o->len, o->off);
	case OP_WRITE:
		fill(o);
		return write(fd, buf, (size_t)o->len);
	case OP_PWRITE:
		fill(o);
		return pwrite(fd, buf, (size_t)o->len, o->off);
	case OP_WRITEV:
		fill(o);
		return writev(fd, halves(o), 2);
	case OP_PWRITEV:
		fill(o);
		return pwritev(fd, halves(o), 2, o->off);
	case OP_SEEK:
		return o->off == -2 ? lseek(fd, 0, SEEK_CUR) : o->off == -1 ? lseek(fd, 0, SEEK_END) : lseek(fd, o->off, SEEK_SET);
	case OP_FTRUNCATE:
		return ftruncate(fd, o->len);
	case OP_TRUNCATE:
		return truncate(name_of(o->file), o->len);
	case OP_ALLOCATE:
		return allocate(fd, o->off, o->len);
	case OP_COPY:
		return copy_file_range(fd, &in, slots[o->other], &out, (size_t)o->len, 0);
	case OP_DUP:
		return keep(o->other, dup(fd));
	case OP_DUP2:
		return dup2(fd, slots[o->other]) < 0 ? -1 : 0;
	case OP_FSYNC:
		return fsync(fd);
	case OP_SIZE:
		return size_of(fd);
	case OP_GETFL:
		return fcntl(fd, F_GETFL) & (O_ACCMODE | O_APPEND);
	case OP_SETFL:
		return fcntl(fd, F_SETFL, o->flags);
	case OP_UNLINK:
		return unlink(name_of(o->file));
	case OP_RENAME:
		return rename(name_of(o->file), name_of(o->other));
	case OP_CHMOD:
		return chmod(name_of(o->file), (mode_t)o->flags);
	case OP_FORK:
		return go_on_in_child();
	}
	errno = EINVAL;
	return -1;
}

_Noreturn static void work(int sock)
{
	struct order o;
	struct answer a;

	while (recv(sock, &o, sizeof(o), 0) == (ssize_t)sizeof(o)) {
		if (o.op == OP_DIE)
			raise(SIGKILL);
		a.ret = obey(&o, &a);
		a.err = a.ret == -1 ? errno : 0;
		if (send(sock, &a, answer_size(&o, &a), 0) < 0)
			_exit(1);
	}
	_exit(0);
}

/* Forks worker n, which owns the socket of that number, and tells the master its pid. */
static void hire(int control, int n, const int *socks)
{
	pid_t pid = fork();

	if (pid == 0)
		work(socks[n]);
	if (pid < 0 || send(control, &pid, sizeof(pid), 0) < 0)
		_exit(1);
}

/* argv: the control socket, then one socket a worker. Each number received on the control socket is a worker to hire. */
int main(int argc, char **argv)
{
	int socks[WORKERS], control, n, fd;

	if (argc != WORKERS + 2)
		return 1;
	control = atoi(argv[1]);
	for (n = 0; n < WORKERS; n++)
		socks[n] = atoi(argv[n + 2]);
	signal(SIGCHLD, SIG_IGN); /* no zombies of killed workers */
	fd = open("postmaster.pid", O_RDWR | O_CREAT | O_EXCL, 0600);
	if (fd < 0 || close(fd) < 0)
		return 1;
	while (recv(control, &n, sizeof(n), 0) == (ssize_t)sizeof(n))
		hire(control, n, socks);
	return 0;
}
