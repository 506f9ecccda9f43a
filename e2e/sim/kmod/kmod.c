// SPDX-License-Identifier: Apache-2.0

/*
 * modprobe and rmmod of a simulated node: they hand the names of modules to the server of its sysfs, which does what the
 * kernel does when a module comes or goes (src/nvdra_sim/pci/writes.py). The messages are those of kmod 30.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

static const char *const roots[] = {"/run/nvidia/sys", "/sys"};

/* Opens a control that no listing shows; the environment can say where the node's sysfs is. */
static int open_control(const char *name)
{
    char path[PATH_MAX];
    const char *given = getenv("NVDRA_SIM_SYS");
    if (given != NULL) {
        snprintf(path, sizeof path, "%s/.nvdra-sim/%s", given, name);
        return open(path, O_WRONLY | O_CLOEXEC);
    }
    int file = -1;
    for (size_t i = 0; file < 0 && i < sizeof roots / sizeof roots[0]; i++) {
        snprintf(path, sizeof path, "%s/.nvdra-sim/%s", roots[i], name);
        file = open(path, O_WRONLY | O_CLOEXEC);
    }
    return file;
}

/* The error of the kernel; 0: success. */
static int ask(const char *control, const char *module)
{
    int file = open_control(control);
    if (file < 0)
        return errno;
    int error = write(file, module, strlen(module)) < 0 ? errno : 0;
    close(file);
    return error;
}

static int complain(const char *program, const char *kind, const char *module, int error, bool quiet)
{
    struct utsname kernel;
    if (error == 0)
        return 0;
    uname(&kernel);
    if (quiet)
        return 1;
    if (error == EWOULDBLOCK || error == EBUSY)
        fprintf(stderr, "%s: %s: Module %s is in use\n", program, kind, module);
    else if (error == ENOENT && strcmp(program, "rmmod") == 0)
        fprintf(stderr, "%s: %s: Module %s is not currently loaded\n", program, kind, module);
    else if (error == ENOENT)
        fprintf(stderr, "%s: %s: Module %s not found in directory /lib/modules/%s\n", program, kind, module, kernel.release);
    else
        fprintf(stderr, "%s: %s: could not change module %s: %s\n", program, kind, module, strerror(error));
    return 1;
}

static bool takes_value(const char *option)
{
    static const char *const options[] = {"-d", "--dirname", "-S", "--set-version", "-C", "--config"};
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++)
        if (strcmp(option, options[i]) == 0)
            return true;
    return false;
}

static bool is_one_of(const char *word, const char *short_form, const char *long_form)
{
    return strcmp(word, short_form) == 0 || strcmp(word, long_form) == 0;
}

static int modprobe(int count, char **words)
{
    bool removes = false, takes_all = false, quiet = false, is_first = true;
    int failed = 0;
    for (int i = 1; i < count; i++) {
        if (words[i][0] == '-') {
            removes = removes || is_one_of(words[i], "-r", "--remove");
            takes_all = takes_all || is_one_of(words[i], "-a", "--all");
            quiet = quiet || is_one_of(words[i], "-q", "--quiet");
            i += takes_value(words[i]);
            continue;
        }
        if (!removes && !takes_all && !is_first) /* parameters of the module */
            continue;
        is_first = false;
        int error = ask(removes ? "remove" : "load", words[i]);
        failed |= complain("modprobe", "FATAL", words[i], error, quiet);
    }
    return failed;
}

static int rmmod(int count, char **words)
{
    int failed = 0;
    for (int i = 1; i < count; i++)
        if (words[i][0] != '-')
            failed |= complain("rmmod", "ERROR", words[i], ask("unload", words[i]), false);
    return failed;
}

int main(int count, char **words)
{
    const char *name = strrchr(words[0], '/');
    name = name == NULL ? words[0] : name + 1;
    return strcmp(name, "rmmod") == 0 ? rmmod(count, words) : modprobe(count, words);
}
