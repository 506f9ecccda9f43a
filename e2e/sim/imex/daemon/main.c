// SPDX-License-Identifier: Apache-2.0

/* nvidia-imex of the simulated driver: its states, and the loop that everything happens in (nvml-simulator.md §16.1). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "start.h"

enum { LONGEST_SLEEP_MS = 1000, HANG_MS = 20 };

static struct {
    int signals, wake; /* descriptors */
    unsigned signals_place, wake_place;
    int64_t started, signalled;
    uint32_t crashes;   /* of the fault, at the start */
    unsigned search;     /* round of the lookups for this node's own place in the list; counts down */
    unsigned unanswered; /* of these */
    bool awaited[MAX_NODES];
    unsigned awaited_count;
    enum state told_state;
    bool ends;
} loop;

/* ---- states ------------------------------------------------------------------------------------------- */

static void enter(enum state state)
{
    if (self.state != state)
        log_line(INFO, "state %s", STATE_NAMES[state]);
    self.state = state;
}

static void find_self(void)
{
    self.number = UNKNOWN;
    loop.unanswered = self.nodes.count;
    loop.search--;
    for (unsigned node = 0; node < self.nodes.count; node++)
        lookup_begin(node, loop.search, self.nodes.name[node], (unsigned)self.config.server_port);
}

/* False: this node is not in the list. */
static bool hear_of_self(const struct answer *answer)
{
    if (self.number != UNKNOWN || loop.unanswered == 0)
        return true;
    char ip[IP_SIZE];
    loop.unanswered--;
    if (answer->found && address_is_own(&answer->address)) {
        self.number = (int)answer->node;
        self.address = answer->address;
        address_format(&self.address, ip);
        log_line(INFO, "Identified this node as ID %d (%s) of %u, at %s", self.number, self.nodes.name[self.number],
                 self.nodes.count, ip);
        background_is_up();
    } else if (loop.unanswered == 0) {
        log_line(ERROR, "No matching network interface found for any IP addresses in the node configuration file %s",
                 self.config.nodes_file);
        return false;
    }
    return true;
}

static void get_ready(void)
{
    enter(INIT_GPU);
    enter(READY);
}

static void join(int64_t now)
{
    if (self.config.authenticates)
        enter(STARTING_AUTH_SERVER);
    guests_listen();
    links_begin(now);
    if (self.config.quorum == QUORUM_RECOVERY)
        loop.awaited_count = recovery_read(&self.nodes, loop.awaited);
    if (loop.awaited_count > 0)
        log_line(WARNING, "the last instance did not end well; waiting for the %u nodes it was connected to",
                 loop.awaited_count);
    if (loop.awaited_count > 0)
        enter(WAITING_FOR_RECOVERY);
    else
        get_ready();
}

static bool has_recovered(void)
{
    for (unsigned node = 0; node < self.nodes.count; node++)
        if (loop.awaited[node] && link_to(node)->connection != CONNECTED)
            return false;
    return true;
}

static void note_peers(void)
{
    bool kept[MAX_NODES] = {false};
    for (unsigned node = 0; node < self.nodes.count; node++) {
        enum connection connection = link_to(node)->connection;
        bool is_linked = connection == CONNECTED || connection == RECOVERING;
        kept[node] = (int)node != self.number &&
            (is_linked || (self.state == WAITING_FOR_RECOVERY && loop.awaited[node]));
    }
    recovery_note(&self.nodes, kept);
}

static void advance(int64_t now)
{
    if (self.state == INITIALIZING && self.number != UNKNOWN && now - loop.started >= self.faults.slow_start_ms)
        join(now);
    if (self.state == WAITING_FOR_RECOVERY && has_recovered())
        get_ready();
    if (self.state != INITIALIZING && self.config.quorum == QUORUM_RECOVERY)
        note_peers();
}

/* Tells the others what has changed here. */
static void tell(void)
{
    if (loop.told_state == shown_state())
        return;
    loop.told_state = shown_state();
    guests_tell();
}

/* Nobody needs to be waited for, should there be another instance after this. */
static void forget_peers(void)
{
    if (self.config.quorum == QUORUM_RECOVERY)
        recovery_forget();
}

/* Everybody has to be found and greeted again. */
static void start_over(void)
{
    links_close();
    guests_close();
    forget_peers();
    enter(INITIALIZING);
    find_self();
}

/* ---- faults ------------------------------------------------------------------------------------------- */

static void claim_version(void)
{
    const char *own = self.has_no_gpu ? "NO_GPU" : host_description()->driver_version;
    const char *claimed = self.faults.version[0] != '\0' ? self.faults.version : own;
    if (strcmp(self.version, claimed) == 0)
        return;
    bool is_first = self.version[0] == '\0';
    snprintf(self.version, sizeof self.version, "%.31s", claimed);
    if (!is_first)
        start_over();
}

static void take_faults(int64_t now)
{
    self.faults = host_faults();
    if (self.faults.hang)
        log_line(WARNING, "a fault lets this daemon hang");
    while (self.faults.hang) {
        usleep(HANG_MS * 1000);
        self.faults = host_faults();
    }
    bool is_late = self.faults.crash_after_ms > 0 && now - loop.started >= self.faults.crash_after_ms;
    if (is_late || self.faults.crashes != loop.crashes)
        raise(SIGKILL);
    claim_version();
}

/* When a fault will do something by itself. */
static int64_t fault_due(void)
{
    int64_t due = INT64_MAX;
    if (self.state == INITIALIZING && self.faults.slow_start_ms > 0)
        due = loop.started + self.faults.slow_start_ms;
    if (self.faults.crash_after_ms > 0 && loop.started + self.faults.crash_after_ms < due)
        due = loop.started + self.faults.crash_after_ms;
    return due;
}

/* ---- signals ------------------------------------------------------------------------------------------ */

static void renew(int64_t now)
{
    int64_t window_ms = host_description()->imex_signal_window_ms;
    if (self.faults.dns_stale || (loop.signalled != 0 && now - loop.signalled < window_ms)) {
        log_line(WARNING, "SIGUSR1 is ignored%s", self.faults.dns_stale ? "" : ": it comes too soon after the last");
        return;
    }
    loop.signalled = now;
    log_line(INFO, "SIGUSR1: all outgoing connections start again");
    links_renew(now);
}

static void take_signal(int64_t now)
{
    struct signalfd_siginfo signal;
    if (read(loop.signals, &signal, sizeof signal) != sizeof signal)
        return;
    if (signal.ssi_signo == SIGUSR1) {
        renew(now);
    } else if (signal.ssi_signo == SIGHUP) {
        log_dump();
    } else {
        log_line(INFO, "%s: shutting down", strsignal((int)signal.ssi_signo));
        loop.ends = true;
    }
}

/* ---- the loop ----------------------------------------------------------------------------------------- */

static void wait_until(struct waits *waits, int64_t due)
{
    waits->count = 0;
    loop.signals_place = waits_add(waits, loop.signals, false);
    loop.wake_place = waits_add(waits, loop.wake, false);
    commands_wait(waits);
    guests_wait(waits);
    links_wait(waits);
    int64_t left = due - now_ms();
    if (poll(waits->polls, waits->count, left < 0 ? 0 : left > LONGEST_SLEEP_MS ? LONGEST_SLEEP_MS : (int)left) < 0)
        waits->count = 0;
}

/* Whatever has come in. False: this node has nothing to do here. */
static bool react(const struct waits *waits, int64_t now)
{
    uint64_t woken;
    struct answer answer;
    if (waits->count == 0)
        return true;
    commands_react(waits);
    guests_react(waits, now);
    links_react(waits, now);
    if (waits->polls[loop.wake_place].revents != 0 && read(loop.wake, &woken, sizeof woken) < 0)
        return true; /* another turn had it */
    while (lookup_take(&answer)) {
        if (answer.round != loop.search)
            links_answer(&answer, now);
        else if (!hear_of_self(&answer))
            return false;
    }
    if (waits->polls[loop.signals_place].revents != 0)
        take_signal(now);
    return true;
}

static int run(void)
{
    static struct waits waits;
    find_self();
    while (!loop.ends) {
        int64_t now = now_ms();
        take_faults(now);
        advance(now);
        int64_t due = links_tick(now), fault = fault_due();
        tell();
        wait_until(&waits, due < fault ? due : fault);
        if (!react(&waits, now_ms()))
            return EXIT_FAILURE;
    }
    enter(SHUTTING_DOWN);
    guests_tell();
    forget_peers();
    return EXIT_SUCCESS;
}

/* From the first moment on, so that no signal ends a daemon that is about to handle it. */
static sigset_t take_over_signals(void)
{
    sigset_t handled;
    sigemptyset(&handled);
    for (const int *one = (const int[]){SIGTERM, SIGINT, SIGQUIT, SIGUSR1, SIGHUP, 0}; *one != 0; one++)
        sigaddset(&handled, *one);
    sigprocmask(SIG_BLOCK, &handled, NULL);
    signal(SIGPIPE, SIG_IGN);
    return handled;
}

static bool prepare(const sigset_t *handled)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    self.instance = (uint64_t)time.tv_sec << 32 ^ (uint64_t)time.tv_nsec << 2 ^ (uint64_t)getpid();
    if (gethostname(self.hostname, sizeof self.hostname - 1) != 0 || self.hostname[0] == '\0')
        strcpy(self.hostname, "localhost");
    self.state = INITIALIZING;
    loop.started = now_ms();
    loop.crashes = host_faults().crashes;
    loop.signals = signalfd(-1, handled, SFD_CLOEXEC | SFD_NONBLOCK);
    loop.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    lookup_announce(loop.wake);
    return loop.signals >= 0 && loop.wake >= 0 && host_watch(loop.wake);
}

int main(int count, char **arguments)
{
    (void)count;
    struct options options;
    sigset_t handled = take_over_signals();
    if (!options_read(arguments, &options))
        return EXIT_FAILURE;
    if (!config_read(options.config, &self.config, complain_in_log))
        return EXIT_FAILURE;
    if (self.config.daemonize)
        background_enter();
    if (!log_open(&self.config))
        return EXIT_FAILURE;
    log_line(INFO, "nvidia-imex starts with %s", options.config);
    if (!host_is_fit(&options) || !prepare(&handled) || !doors_open())
        return EXIT_FAILURE;
    int code = run();
    links_close();
    guests_close();
    commands_close();
    log_dump();
    return code;
}
