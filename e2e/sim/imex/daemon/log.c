// SPDX-License-Identifier: Apache-2.0

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

enum { KEPT_LINES = 512 };

static char kept[KEPT_LINES][LINE_SIZE]; /* lines above the level, until they are dumped */
static unsigned kept_count;              /* the newest KEPT_LINES of so many */

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

static void put(enum level level, const char *line)
{
    FILE *out = file == NULL ? stderr : file;
    if (to_syslog)
        syslog(PRIORITIES[level], "%s", line);
    else
        fprintf(out, "%s\n", line);
    fflush(out);
}

void log_line(enum level level, const char *format, ...)
{
    char line[LINE_SIZE], stamp[64];
    struct tm parts;
    time_t now = time(NULL);
    int used = 0;
    if (!to_syslog) {
        strftime(stamp, sizeof stamp, "%b %d %Y %H:%M:%S", localtime_r(&now, &parts));
        used = snprintf(line, sizeof line, "[%s] [%s] [tid %ld] ", stamp, LEVELS[level], syscall(SYS_gettid));
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + used, sizeof line - (size_t)used, format, arguments);
    va_end(arguments);
    if ((long)level <= most)
        put(level, line);
    else
        strcpy(kept[kept_count++ % KEPT_LINES], line);
}

void log_dump(void)
{
    unsigned first = kept_count > KEPT_LINES ? kept_count - KEPT_LINES : 0;
    for (unsigned one = first; one < kept_count; one++)
        put(INFO, kept[one % KEPT_LINES]);
    kept_count = 0;
}
