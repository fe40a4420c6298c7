#include "check.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { THREADS = 8 };

struct job {
	int fd, at, error;
	pthread_barrier_t *start;
};

static void *write_own_block(void *arg)
{
	struct job *job = arg;

	pthread_barrier_wait(job->start);
	errno = 4711;
	if (pwrite(job->fd, &job->at, sizeof(job->at), job->at) != sizeof(job->at))
		job->error = errno;
	else if (errno != 4711)
		job->error = -1;
	return NULL;
}

/* Several threads make the first write to one descriptor at once. */
static void threads_share_a_lazy_descriptor(void)
{
	for (int round = 0; round < 20; round++) {
		const char *path = fresh();
		int fd = open_rw(path);
		pthread_barrier_t start;
		pthread_t threads[THREADS];
		struct job jobs[THREADS];

		pthread_barrier_init(&start, NULL, THREADS);
		for (int i = 0; i < THREADS; i++) {
			jobs[i] = (struct job){ fd, i * 4096, 0, &start };
			CHECK(pthread_create(&threads[i], NULL, write_own_block, &jobs[i]) == 0);
		}
		for (int i = 0; i < THREADS; i++) {
			CHECK(pthread_join(threads[i], NULL) == 0);
			CHECK(jobs[i].error == 0);
		}
		for (int i = 0; i < THREADS; i++)
			CHECK(reads(fd, i * 4096, &jobs[i].at, sizeof(int)));
		CHECK(close(fd) == 0);
	}
}

static void *write_at_shared_offset(void *arg)
{
	struct job *job = arg;

	pthread_barrier_wait(job->start);
	if (write(job->fd, &job->at, sizeof(job->at)) != sizeof(job->at))
		job->error = errno;
	return NULL;
}

/* Each write moves the offset that all share: if two reopenings crossed, one write would land on the other. */
static void threads_share_the_offset(void)
{
	for (int round = 0; round < 40; round++) {
		int fd = open_rw(fresh()), seen[THREADS] = { 0 }, values[THREADS];
		pthread_barrier_t start;
		pthread_t threads[THREADS];
		struct job jobs[THREADS];

		pthread_barrier_init(&start, NULL, THREADS);
		for (int i = 0; i < THREADS; i++) {
			jobs[i] = (struct job){ fd, i, 0, &start };
			CHECK(pthread_create(&threads[i], NULL, write_at_shared_offset, &jobs[i]) == 0);
		}
		for (int i = 0; i < THREADS; i++)
			CHECK(pthread_join(threads[i], NULL) == 0 && jobs[i].error == 0);
		CHECK(lseek(fd, 0, SEEK_CUR) == sizeof(values));
		CHECK(pread(fd, values, sizeof(values), 0) == sizeof(values));
		for (int i = 0; i < THREADS; i++)
			seen[values[i] % THREADS]++;
		for (int i = 0; i < THREADS; i++)
			CHECK(seen[i] == 1);
		CHECK(close(fd) == 0);
	}
}

static int handler_fd, handler_pipe, handled;

static void on_alarm(int sig)
{
	int saved = errno;

	(void)sig;
	handled++;
	CHECK(write(handler_pipe, "x", 1) == 1);
	CHECK(pwrite(handler_fd, "H", 1, 0) == 1); /* lazy or not, whatever it interrupted */
	errno = saved;
}

/* A handler that writes, to a pipe and to the very descriptor whose first write it may have interrupted. */
static void signal_handlers_may_write(void)
{
	struct itimerval often = { { 0, 50 }, { 0, 50 } }, never = { { 0, 0 }, { 0, 0 } };
	int pipes[2];
	char buf[65536];

	CHECK(pipe(pipes) == 0);
	CHECK(fcntl(pipes[1], F_SETPIPE_SZ, 1 << 20) > 0);
	handler_pipe = pipes[1];
	handler_fd = open_rw(fresh());
	CHECK(signal(SIGALRM, on_alarm) != SIG_ERR);
	for (int i = 0; i < 60; i++) {
		const char *path = fresh();

		CHECK(close(handler_fd) == 0);
		handler_fd = open_rw(path);
		CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
		while (write_news(handler_fd) == EINTR)
			;
		CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
		CHECK(reads(handler_fd, SPOT, NEWS, NEWS_SIZE));
		while (handled > 0 && read(pipes[0], buf, sizeof(buf)) > 0)
			handled = 0;
	}
}

static volatile int stop;

static void *make_first_writes(void *arg)
{
	const char **paths = arg;

	for (int i = 0; i < 100 && !stop; i++) {
		int fd = open_rw(paths[i]);

		CHECK(write_news(fd) == 0);
		CHECK(close(fd) == 0);
	}
	return NULL;
}

/* A child forked while another thread is in the middle of a first write has no such thread; its own writes must not wait for it. */
static void fork_amid_first_writes_of_another_thread(void)
{
	static const char *paths[100];
	const char *own[40];
	pthread_t thread;

	for (int i = 0; i < 100; i++)
		paths[i] = fresh();
	for (int i = 0; i < 40; i++)
		own[i] = fresh();
	CHECK(pthread_create(&thread, NULL, make_first_writes, paths) == 0);
	for (int i = 0; i < 40; i++) {
		int status;
		pid_t pid = fork();

		if (pid == 0) {
			int fd = open_rw(own[i]);

			CHECK(write_news(fd) == 0);
			CHECK(reads_news(fd, own[i]));
			_exit(0);
		}
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	}
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
}

static void the_signal_mask_is_given_back(void)
{
	sigset_t before, after;
	int fd = open_rw(fresh());

	sigemptyset(&before);
	sigaddset(&before, SIGUSR1);
	CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
	CHECK(write_news(fd) == 0);
	CHECK(sigprocmask(SIG_SETMASK, NULL, &after) == 0);
	for (int s = 1; s < 32; s++)
		CHECK(sigismember(&after, s) == (s == SIGUSR1));
}

const struct test thread_tests[] = {
	{ "threads share a lazy descriptor", threads_share_a_lazy_descriptor },
	{ "threads share the offset", threads_share_the_offset },
	{ "signal handlers may write", signal_handlers_may_write },
	{ "fork amid first writes of another thread", fork_amid_first_writes_of_another_thread },
	{ "the signal mask is given back", the_signal_mask_is_given_back },
	{ 0 },
};
