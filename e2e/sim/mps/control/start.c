/* The daemon's directories and what it makes in them. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "control.h"

enum { PATH_SIZE = 4096 };

static int told = -1; /* tells the process that started the daemon that it is ready */

static bool refuse(const char *what, const char *path)
{
    printf("Failed to open %s %s: %s\n", what, path, strerror(errno));
    return false;
}

static bool make_directory(const char *path)
{
    if (mkdir(path, 0755) == 0 || (errno == EEXIST && access(path, W_OK | X_OK) == 0))
        return true;
    return refuse("the directory", path);
}

static int open_in(const char *directory, const char *name, int flags, mode_t mode)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int file = open(path, flags | O_CLOEXEC, mode);
    if (file < 0)
        refuse("the file", path);
    return file;
}

static void remove_in(const char *directory, const char *name)
{
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    unlink(path);
}

static void write_pid(const char *directory)
{
    int file = open_in(directory, "nvidia-cuda-mps-control.pid", O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0)
        return;
    dprintf(file, "%d\n", getpid());
    close(file);
}

/* The lock lasts as long as its process, so that the files of one that was killed are taken over. */
static bool take_lock(const char *directory)
{
    int lock = open_in(directory, "control_lock", O_RDWR | O_CREAT, 0600);
    if (lock < 0)
        return false;
    if (flock(lock, LOCK_EX | LOCK_NB) == 0)
        return true;
    printf("An instance of this daemon is already running\n");
    return false;
}

static bool open_sockets(struct files *files)
{
    files->client_socket = mps_listen(files->directory, CLIENT_SOCKET, 0666);
    files->command_socket = mps_listen(files->directory, COMMAND_SOCKET, 0600);
    if (files->client_socket >= 0 && files->command_socket >= 0)
        return true;
    printf("Cannot find MPS control daemon process\n");
    return false;
}

bool files_open(struct files *files)
{
    const char *logs = mps_directory("CUDA_MPS_LOG_DIRECTORY", DEFAULT_LOG_DIRECTORY);
    files->directory = mps_directory("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE_DIRECTORY);
    if (!make_directory(files->directory) || !make_directory(logs) || !take_lock(files->directory))
        return false;
    files->control_log = open_in(logs, "control.log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    files->server_log = open_in(logs, "server.log", O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (files->control_log < 0 || files->server_log < 0 || !open_sockets(files))
        return false;
    char path[PATH_SIZE];
    snprintf(path, sizeof path, "%s/log", files->directory);
    mkfifo(path, 0600);
    write_pid(files->directory);
    bool starts = command_is_allowed("start");
    if (!starts) {
        printf("Failed to start the daemon\n");
        files_close(files);
    }
    return starts;
}

void files_close(const struct files *files)
{
    static const char *const OWN[] = {CLIENT_SOCKET, COMMAND_SOCKET, "log", "nvidia-cuda-mps-control.pid"};
    for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++)
        remove_in(files->directory, OWN[i]);
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
