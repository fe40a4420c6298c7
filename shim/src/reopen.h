#ifndef LAZYRW_REOPEN_H
#define LAZYRW_REOPEN_H

/*
 * Opens the file that fd has open once more, with other flags, and returns the new descriptor or -errno.
 *
 * The way is /proc/thread-self/fd/N, whose link leads to the very mount and directory entry of fd (fs/proc/base.c,
 * proc_pid_get_link; fs/proc/fd.c, proc_fd_link), not to a path. So it cannot reach another file, whatever was renamed
 * over the name, wherever the process has changed its directory to; and a file that was renamed is still found.
 *
 * -ESTALE: the file lies in a lower layer and its name is gone or belongs to another file. overlayfs would have to link
 * the copy under that name, finds it taken (by the other file, or by the whiteout of the unlink) and refuses.
 */
int lz_reopen(int fd, int flags);

/* Whether lz_reopen works in this process: without /proc it cannot. */
int lz_reopen_works(int fd, int flags);

#endif
