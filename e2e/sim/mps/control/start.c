// SPDX-License-Identifier: Apache-2.0

/* The daemon's directories and what it makes in them. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"

enum { PATH_SIZE = 4096 };

static const char LOG_PIPE[] = "log", PID_FILE[] = "nvidia-cuda-mps-control.pid";

static int told = -1; /* tells the process that started the daemon that it is ready */

static bool make_directory(const char *path, mode_t mode)
{
    return mkdir(path, mode) == 0 || (errno == EEXIST && access(path, R_OK | W_OK) == 0);
}

/* As the real one does, it follows links: the directory is the daemon's alone. */
static int open_in(const char *directory, const char *name, int flags, mode_t mode)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return open(path, flags | O_CLOEXEC, mode);
}

static void remove_in(const char *directory, const char *name)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    unlink(path);
}

static void write_pid(const char *directory)
{
    int file = open_in(directory, PID_FILE, O_WRONLY | O_CREAT, 0666);
    if (file < 0)
        return;
    dprintf(file, "%d", getpid());
    close(file);
}

/* The lock lasts as long as its process, so that the files of one that was killed are taken over. */
static bool take_lock(const char *directory)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int lock = open_in(directory, "control_lock", O_WRONLY | O_CREAT, 0666);
    if (lock >= 0 && fcntl(lock, F_SETLK, &whole) == 0)
        return true;
    if (lock >= 0)
        printf("An instance of this daemon is already running\n");
    else
        printf("Cannot access CUDA_MPS_PIPE_DIRECTORY=%s\n", directory);
    return false;
}

static bool make_pipe(const char *directory)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", directory, LOG_PIPE);
    unlink(path);
    return mkfifo(path, 0777) == 0 && open(path, O_RDWR | O_CLOEXEC) >= 0;
}

/* In the foreground all lines go to standard output, and no file is written. */
static void open_logs(struct files *files, const struct options *options)
{
    const char *logs = mps_directory("CUDA_MPS_LOG_DIRECTORY", DEFAULT_LOG_DIRECTORY);
    bool has_directory = make_directory(logs, 0700);
    if (!has_directory)
        printf("Warning: Failed writing log files to directory [%s]. No logs will be available.\n", logs);
    fflush(stdout);
    files->control_log = options->is_foreground ? STDOUT_FILENO : -1;
    files->server_log = STDOUT_FILENO;
    if (has_directory && options->is_daemon) {
        files->control_log = open_in(logs, "control.log", O_WRONLY | O_CREAT | O_APPEND, 0644);
        files->server_log = open_in(logs, "server.log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    }
}

static bool open_sockets(struct files *files)
{
    files->client_socket = mps_listen(files->directory, CLIENT_SOCKET, 0666);
    files->command_socket = mps_listen(files->directory, COMMAND_SOCKET, 0755);
    if (files->client_socket >= 0 && files->command_socket >= 0)
        return true;
    printf("Cannot find MPS control daemon process\n");
    return false;
}

bool files_open(struct files *files, const struct options *options)
{
    umask(0);
    files->directory = mps_directory("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE_DIRECTORY);
    open_logs(files, options);
    /* If something is there that can be written to, a reader of the pipe or not, lines go there. */
    int earlier = open_in(files->directory, LOG_PIPE, O_WRONLY | O_NONBLOCK, 0);
    if (earlier >= 0)
        files->control_log = earlier;
    if (!make_directory(files->directory, 0777)) {
        printf("Cannot access CUDA_MPS_PIPE_DIRECTORY=%s\n", files->directory);
        return false;
    }
    if (!take_lock(files->directory))
        return false;
    if (!make_pipe(files->directory)) {
        printf("Cannot access CUDA_MPS_PIPE_DIRECTORY=%s\n", files->directory);
        return false;
    }
    if (!open_sockets(files))
        return false;
    write_pid(files->directory);
    umask(022);
    bool starts = command_is_allowed("start");
    if (!starts) {
        printf("Failed to start the daemon\n");
        files_close(files);
    }
    return starts;
}

void files_close(const struct files *files)
{
    remove_in(files->directory, LOG_PIPE);
    remove_in(files->directory, PID_FILE);
}

void daemon_detach(void)
{
    int ends[2];
    char word;
    if (pipe2(ends, O_CLOEXEC) != 0)
        exit(EXIT_FAILURE);
    fflush(stdout);
    pid_t child = fork();
    if (child != 0) {
        close(ends[1]);
        _exit(child > 0 && read(ends[0], &word, 1) == 1 ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    close(ends[0]);
    setsid();
    told = ends[1];
}

/* A root that has no /dev/null gets what would go there into the log. */
void daemon_is_ready(const struct files *files, const struct options *options)
{
    if (!options->is_daemon)
        return;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0)
        null = files->control_log;
    for (int file = STDIN_FILENO; file <= STDERR_FILENO; file++)
        dup2(null, file);
    if (null != files->control_log)
        close(null);
    if (write(told, "", 1) != 1)
        exit(EXIT_FAILURE);
    close(told);
}
