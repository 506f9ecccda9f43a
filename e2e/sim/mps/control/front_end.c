// SPDX-License-Identifier: Apache-2.0

/* The front end: takes commands from standard input to the daemon. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control.h"

static int fail(void)
{
    printf("Cannot find MPS control daemon process\n");
    return EXIT_FAILURE;
}

static bool is_quit(const char *line)
{
    line += strspn(line, " \t");
    return strncmp(line, "quit", 4) == 0 && (line[4] == '\0' || line[4] == ' ' || line[4] == '\t');
}

/* Shows the answer to one command. False: there will be no more, and `status` says how that came. */
static bool take_command(int daemon, const char *line, int *status)
{
    char answer[MESSAGE_SIZE];
    if (line[strspn(line, " \t\r")] == '\0')
        return true;
    bool sent = message_send(daemon, "%s", line);
    if (!sent || message_receive(daemon, answer, NULL) == 0) {
        *status = sent && is_quit(line) ? EXIT_SUCCESS : fail();
        return false;
    }
    fputs(answer, stdout);
    fflush(stdout);
    return true;
}

/* As the manual page says: what the daemon refuses is on standard output, and changes nothing about the exit status. */
int front_end(void)
{
    char *line = NULL;
    size_t room = 0;
    int status = EXIT_SUCCESS;
    int daemon = mps_connect(mps_directory("CUDA_MPS_PIPE_DIRECTORY", DEFAULT_PIPE_DIRECTORY), COMMAND_SOCKET);
    if (daemon < 0)
        return fail();
    bool goes_on = true;
    while (goes_on && getline(&line, &room, stdin) >= 0) {
        line[strcspn(line, "\n")] = '\0';
        goes_on = take_command(daemon, line, &status);
    }
    free(line);
    return status;
}
