// SPDX-License-Identifier: Apache-2.0

/*
 * nvdra-sim-vmm: a stand-in for the process of a virtual machine, which holds devices of vfio.
 *
 * Nodes of the simulated vfio have no driver, so they are opened with O_PATH, which shows their numbers to whoever looks
 * at the descriptors. What the kernel gives as an anonymous inode is a memory file here, whose name says what it stands
 * for; the server of the node's sysfs counts it as a user (src/nvdra_sim/pci/machine.py). That a group can be open once
 * only is a lock on a file of the group in sysfs.
 *
 * `injected` is the virtual machine of a pod: it opens what the container runtime has put into the container's /dev.
 *
 * It prints one line of JSON, and holds what it has until the pipe at its standard input ends, or SIGTERM. SIGUSR1 gives
 * back the device and the container, and keeps the group.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static const char usage[] =
    "usage: nvdra-sim-vmm [--sys DIR] [--dev DIR] [--leak] COMMAND\n"
    "  status GROUP            open the group and say whether it is viable\n"
    "  group  GROUP            open the group, and hold it\n"
    "  device GROUP ADDRESS    open the group, a container and the device, and hold them\n"
    "  cdev   NAME ADDRESS     open the device by its own node (vfio0), and hold it\n"
    "  injected                open all groups and devices that have a node, and hold them\n"
    "--leak: go on in a process that nobody ends but SIGKILL, as a forgotten QEMU\n";

static const char *sys_root = "/sys", *dev_root = "/dev";

/* ---- the one line --------------------------------------------------------------------------------------------- */

enum viability { UNKNOWN, VIABLE, NOT_VIABLE };

static const char *error_name(int error)
{
    static const struct {
        int number;
        const char *name;
    } names[] = {{EBUSY, "EBUSY"}, {EPERM, "EPERM"}, {ENOENT, "ENOENT"}, {ENODEV, "ENODEV"}, {ENXIO, "ENXIO"},
                 {EACCES, "EACCES"}, {EINVAL, "EINVAL"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].number == error)
            return names[i].name;
    return "EIO";
}

static void say(enum viability viability, const char *failed, int error)
{
    static const char *const words[] = {"null", "true", "false"};
    printf("{\"viable\": %s, \"failed\": ", words[viability]);
    if (failed == NULL)
        printf("null, \"errno\": null}\n");
    else
        printf("\"%s\", \"errno\": \"%s\"}\n", failed, error_name(error));
    fflush(stdout);
}

static int fail(enum viability viability, const char *step, int error)
{
    say(viability, step, error);
    return 1;
}

/* ---- what sysfs says ------------------------------------------------------------------------------------------- */

static bool path_in(char path[PATH_MAX], const char *root, const char *format, const char *name)
{
    char rest[PATH_MAX];
    if (snprintf(rest, sizeof rest, format, name) >= (int)sizeof rest)
        return false;
    return snprintf(path, PATH_MAX, "%s/%s", root, rest) < PATH_MAX;
}

/* The driver of a function; empty: none, or there is no such function. */
static void driver_of(const char *address, char driver[PATH_MAX])
{
    char path[PATH_MAX], target[PATH_MAX];
    driver[0] = '\0';
    if (!path_in(path, sys_root, "bus/pci/devices/%s/driver", address))
        return;
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length <= 0)
        return;
    target[length] = '\0';
    const char *name = strrchr(target, '/');
    snprintf(driver, PATH_MAX, "%s", name == NULL ? target : name + 1);
}

/* A port of PCIe never keeps its group from being viable. */
static bool is_bridge(const char *address)
{
    char path[PATH_MAX], class[16] = "";
    if (!path_in(path, sys_root, "bus/pci/devices/%s/class", address))
        return false;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    bool read = fgets(class, sizeof class, file) != NULL;
    fclose(file);
    return read && strncmp(class, "0x0604", 6) == 0;
}

static bool is_of_vfio(const char *driver)
{
    return strcmp(driver, "vfio-pci") == 0 || strstr(driver, "vfio_pci") != NULL;
}

/* No function of the group has a driver that uses DMA itself. */
static enum viability viability_of(const char *group)
{
    char path[PATH_MAX], driver[PATH_MAX];
    if (!path_in(path, sys_root, "kernel/iommu_groups/%s/devices", group))
        return UNKNOWN;
    DIR *directory = opendir(path);
    if (directory == NULL)
        return UNKNOWN;
    enum viability found = VIABLE;
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory)) {
        if (entry->d_name[0] == '.' || is_bridge(entry->d_name))
            continue;
        driver_of(entry->d_name, driver);
        if (driver[0] != '\0' && !is_of_vfio(driver))
            found = NOT_VIABLE;
    }
    closedir(directory);
    return found;
}

/* ---- what is held ---------------------------------------------------------------------------------------------- */

/* Groups are not among them: they are held to the end. */
static int held[64];
static size_t held_count;

static int keep(int file)
{
    if (file >= 0 && held_count < sizeof held / sizeof held[0])
        held[held_count++] = file;
    return file;
}

static int open_node(const char *format, const char *name, struct stat *info)
{
    char path[PATH_MAX];
    if (!path_in(path, dev_root, format, name)) {
        errno = EINVAL;
        return -1;
    }
    int node = open(path, O_PATH | O_CLOEXEC);
    if (node < 0 || (fstat(node, info) == 0 && S_ISCHR(info->st_mode)))
        return node;
    close(node);
    errno = ENODEV;
    return -1;
}

/* The group is open once: the lock goes with the process. */
static int open_group(const char *group, struct stat *info)
{
    char path[PATH_MAX];
    int node = open_node("vfio/%s", group, info);
    if (node < 0 || !path_in(path, sys_root, "kernel/iommu_groups/%s/type", group))
        return -1;
    int lock = open(path, O_RDONLY | O_CLOEXEC);
    if (lock < 0)
        return -1;
    if (flock(lock, LOCK_EX | LOCK_NB) == 0)
        return node;
    errno = errno == EWOULDBLOCK ? EBUSY : errno;
    return -1;
}

static int memory_file(const char *kind, const struct stat *node, const char *address)
{
    char name[128];
    snprintf(name, sizeof name, "%s %u:%u%s%s", kind, major(node->st_rdev), minor(node->st_rdev),
             address[0] == '\0' ? "" : " ", address);
    return memfd_create(name, MFD_CLOEXEC);
}

/* The container is claimed before the group is looked at, so that no driver comes in between unseen. */
static int take_device(const char *group, const char *address, const struct stat *node)
{
    char driver[PATH_MAX];
    struct stat ignored;
    if (keep(open_node("vfio/%s", "vfio", &ignored)) < 0)
        return fail(UNKNOWN, "container", errno);
    keep(memory_file("vfio-container", node, ""));
    enum viability viability = viability_of(group);
    if (viability != VIABLE)
        return fail(viability, "set-container", EPERM);
    driver_of(address, driver);
    if (!is_of_vfio(driver))
        return fail(VIABLE, "device", ENODEV);
    keep(memory_file("vfio-device", node, address));
    return 0;
}

static int take_cdev(const char *name, const char *address)
{
    struct stat node;
    if (keep(open_node("vfio/devices/%s", name, &node)) < 0)
        return fail(UNKNOWN, "open", errno);
    keep(memory_file("vfio-device", &node, address));
    return 0;
}

/* ---- all that is injected -------------------------------------------------------------------------------------- */

typedef int take_entry(const char *name, const char *context);

/* Calls `take` for the entries of a directory until it fails; a directory that is missing has none. */
static int for_each(const char *path, const char *context, take_entry *take)
{
    DIR *directory = opendir(path);
    int failed = 0;
    if (directory == NULL)
        return 0;
    for (struct dirent *entry = readdir(directory); entry != NULL && !failed; entry = readdir(directory))
        if (entry->d_name[0] != '.')
            failed = take(entry->d_name, context);
    closedir(directory);
    return failed;
}

static int taken;

/* The other functions of a group may be without a driver. */
static int take_function(const char *address, const char *group)
{
    char path[PATH_MAX], driver[PATH_MAX];
    struct stat node;
    driver_of(address, driver);
    if (!is_of_vfio(driver))
        return 0;
    if (!path_in(path, dev_root, "vfio/%s", group) || stat(path, &node) < 0)
        return fail(UNKNOWN, "open", errno);
    taken++;
    return take_device(group, address, &node);
}

static int take_group(const char *group, const char *ignored)
{
    char path[PATH_MAX];
    struct stat node;
    (void)ignored;
    if (strspn(group, "0123456789") != strlen(group)) /* vfio, devices */
        return 0;
    if (open_group(group, &node) < 0)
        return fail(UNKNOWN, "open", errno);
    if (!path_in(path, sys_root, "kernel/iommu_groups/%s/devices", group))
        return fail(UNKNOWN, "open", EINVAL);
    return for_each(path, group, take_function);
}

/* Takes the device if it is the one of this function. */
static int take_cdev_of(const char *address, const char *name)
{
    char directory[PATH_MAX], path[PATH_MAX];
    if (!path_in(directory, sys_root, "bus/pci/devices/%s/vfio-dev", address) ||
        !path_in(path, directory, "%s", name) || access(path, F_OK) != 0)
        return 0;
    taken++;
    return take_cdev(name, address);
}

static int take_any_cdev(const char *name, const char *functions)
{
    return for_each(functions, name, take_cdev_of);
}

static int take_injected(void)
{
    char groups[PATH_MAX], cdevs[PATH_MAX], functions[PATH_MAX];
    if (!path_in(groups, dev_root, "%s", "vfio") || !path_in(cdevs, dev_root, "%s", "vfio/devices") ||
        !path_in(functions, sys_root, "%s", "bus/pci/devices"))
        return fail(UNKNOWN, "open", EINVAL);
    int failed = for_each(groups, NULL, take_group);
    if (!failed)
        failed = for_each(cdevs, functions, take_any_cdev);
    return failed || taken > 0 ? failed : fail(UNKNOWN, "open", ENODEV);
}

/* ---- holding --------------------------------------------------------------------------------------------------- */

static volatile sig_atomic_t ends, gives_back;

static void on_signal(int number)
{
    if (number == SIGUSR1)
        gives_back = 1;
    else
        ends = 1;
}

static void give_back(void)
{
    while (held_count > 0)
        close(held[--held_count]);
    gives_back = 0;
}

static void catch(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler};
    sigaction(number, &action, NULL);
}

/* A pipe at the standard input is that of a parent; anything else says nothing. */
static int hold(bool leaks)
{
    struct stat input;
    bool has_parent = !leaks && fstat(STDIN_FILENO, &input) == 0 && (S_ISFIFO(input.st_mode) || S_ISSOCK(input.st_mode));
    struct pollfd parent = {.fd = has_parent ? STDIN_FILENO : -1, .events = POLLIN};
    char byte;
    while (!ends) {
        if (gives_back)
            give_back();
        if (poll(&parent, 1, 1000) == 1 && read(STDIN_FILENO, &byte, 1) <= 0)
            break;
    }
    return 0;
}

static int go_on_alone(void)
{
    pid_t child = fork();
    if (child != 0)
        return child < 0 ? 1 : 0;
    setsid();
    for (int number = 1; number < 32; number++)
        if (number != SIGUSR1)
            catch(number, SIG_IGN);
    /* Whoever started this process waits for the end of its output. */
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int standard = 0; standard < 3; standard++)
        dup2(null, standard);
    return hold(true);
}

static int run(char **words, int count, bool leaks)
{
    struct stat node;
    int failed = 0;
    bool takes_device = count == 3 && strcmp(words[0], "device") == 0;
    bool takes_group = count == 2 && strcmp(words[0], "group") == 0;
    bool asks = count == 2 && strcmp(words[0], "status") == 0;
    if (count == 3 && strcmp(words[0], "cdev") == 0) {
        failed = take_cdev(words[1], words[2]);
        if (!failed)
            say(UNKNOWN, NULL, 0);
    } else if (count == 1 && strcmp(words[0], "injected") == 0) {
        failed = take_injected();
        if (!failed)
            say(UNKNOWN, NULL, 0);
    } else if (takes_device || takes_group || asks) {
        if (open_group(words[1], &node) < 0)
            return fail(UNKNOWN, "open", errno);
        if (takes_device)
            failed = take_device(words[1], words[2], &node);
        if (!failed)
            say(takes_device ? VIABLE : viability_of(words[1]), NULL, 0);
    } else {
        fputs(usage, stderr);
        return 2;
    }
    if (failed || asks)
        return failed;
    return leaks ? go_on_alone() : hold(false);
}

int main(int count, char **words)
{
    bool leaks = false;
    int at = 1;
    for (; at < count && strncmp(words[at], "--", 2) == 0; at++) {
        if (strcmp(words[at], "--leak") == 0)
            leaks = true;
        else if (strcmp(words[at], "--sys") == 0 && at + 1 < count)
            sys_root = words[++at];
        else if (strcmp(words[at], "--dev") == 0 && at + 1 < count)
            dev_root = words[++at];
        else
            break;
    }
    catch(SIGUSR1, on_signal);
    catch(SIGTERM, on_signal);
    catch(SIGINT, on_signal);
    return run(words + at, count - at, leaks);
}
