/* Log lines: to standard error, a file or syslog. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "daemon.h"

static const char *const LEVELS[] = {"", "CRITICAL", "ERROR", "WARNING", "INFO"};
static const int PRIORITIES[] = {LOG_EMERG, LOG_CRIT, LOG_ERR, LOG_WARNING, LOG_INFO};
static FILE *file;
static bool to_syslog;
static long most = INFO;

bool log_open(const struct config *config)
{
    most = config->log_level;
    to_syslog = config->use_syslog;
    if (to_syslog)
        openlog("nvidia-imex", LOG_PID, LOG_DAEMON);
    if (config->log_file[0] == '\0' || to_syslog)
        return true;
    file = fopen(config->log_file, config->log_append ? "ae" : "we");
    if (file == NULL)
        fprintf(stderr, "nvidia-imex: cannot write the log %s: %s\n", config->log_file, strerror(errno));
    return file != NULL;
}

void log_line(enum level level, const char *format, ...)
{
    if ((long)level > most)
        return;
    char text[LINE_SIZE], stamp[64];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (to_syslog) {
        syslog(PRIORITIES[level], "%s", text);
        return;
    }
    time_t now = time(NULL);
    struct tm parts;
    strftime(stamp, sizeof stamp, "%b %d %Y %H:%M:%S", localtime_r(&now, &parts));
    FILE *out = file == NULL ? stderr : file;
    fprintf(out, "[%s] [%s] [tid %ld] %s\n", stamp, LEVELS[level], syscall(SYS_gettid), text);
    fflush(out);
}
