// SPDX-License-Identifier: Apache-2.0
/*
 * A stand-in for NVIDIA's kernel module: what binding and unbinding a GPU shows to others.
 *
 * It takes QEMU's device "edu". A GPU gets the lowest free minor and a directory below
 * /proc/driver/nvidia/gpus; its node is 195:<minor>, made with mknod as nvidia-modprobe does.
 * `remove` cannot fail: it refuses new opens with ENODEV, waits without end and without looking at
 * signals until no process has the GPU open, and only then takes the directory and the minor away.
 *
 * Source of the behaviour: nv_pci_probe, nv_pci_remove_helper in kernel-open/nvidia/nv-pci.c,
 * nv_open_device in nv.c and nv_sleep_ms in kernel-open/common/inc/nv-time.h of
 * github.com/NVIDIA/open-gpu-kernel-modules.
 * All symbols it needs are exported to every licence.
 */
#include <linux/fs.h>
#include <linux/init.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/sched.h>
#include <linux/seq_file.h>

#define MAJOR_NUMBER 195
#define MAX_GPUS 8
#define WAIT_MS 500

struct gpu {
	struct pci_dev *pci;
	struct proc_dir_entry *directory;
	unsigned int usage_count;
	bool is_removed;
};

static DEFINE_MUTEX(lock);
static struct gpu gpus[MAX_GPUS]; /* by minor */
static struct proc_dir_entry *root, *directories;

static int show_information(struct seq_file *file, void *unused)
{
	struct gpu *gpu = file->private;

	seq_printf(file, "Bus Location: \t %s\n", pci_name(gpu->pci));
	seq_printf(file, "Device Minor: \t %d\n", (int)(gpu - gpus));
	return 0;
}

static int probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	int minor, result = -EBUSY;

	mutex_lock(&lock);
	for (minor = 0; minor < MAX_GPUS && gpus[minor].pci; minor++)
		;
	if (minor < MAX_GPUS) {
		struct gpu *gpu = &gpus[minor];

		gpu->pci = pci;
		gpu->usage_count = 0;
		gpu->is_removed = false;
		gpu->directory = proc_mkdir(pci_name(pci), directories);
		proc_create_single_data("information", 0444, gpu->directory, show_information, gpu);
		pci_set_drvdata(pci, gpu);
		result = 0;
	}
	mutex_unlock(&lock);
	return result;
}

static void remove(struct pci_dev *pci)
{
	struct gpu *gpu = pci_get_drvdata(pci);

	mutex_lock(&lock);
	gpu->is_removed = true;
	if (gpu->usage_count) {
		pr_err("NVRM: Attempting to remove device %s with non-zero usage count!\n",
		       pci_name(pci));
		while (gpu->usage_count) {
			mutex_unlock(&lock);
			schedule_timeout_uninterruptible(msecs_to_jiffies(WAIT_MS));
			mutex_lock(&lock);
		}
		pr_err("NVRM: Continuing with GPU removal for device %s\n", pci_name(pci));
	}
	mutex_unlock(&lock);
	/* Waits for readers of `information`, so the lock is free. */
	proc_remove(gpu->directory);
	mutex_lock(&lock);
	gpu->pci = NULL;
	mutex_unlock(&lock);
}

static int open_gpu(struct inode *inode, struct file *file)
{
	unsigned int minor = iminor(inode);
	int result = -ENODEV;

	mutex_lock(&lock);
	if (minor < MAX_GPUS && gpus[minor].pci && !gpus[minor].is_removed) {
		gpus[minor].usage_count++;
		file->private_data = &gpus[minor];
		result = 0;
	}
	mutex_unlock(&lock);
	return result;
}

static int release_gpu(struct inode *inode, struct file *file)
{
	struct gpu *gpu = file->private_data;

	mutex_lock(&lock);
	gpu->usage_count--;
	mutex_unlock(&lock);
	return 0;
}

/* The memory is no device's: only that a mapping keeps the file in use matters. */
static int map_gpu(struct file *file, struct vm_area_struct *area)
{
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = open_gpu,
	.release = release_gpu,
	.mmap = map_gpu,
};

static const struct pci_device_id ids[] = {
	{ PCI_DEVICE(0x1234, 0x11e8) },
	{},
};

static struct pci_driver driver = {
	.name = "nvidia",
	.id_table = ids,
	.probe = probe,
	.remove = remove,
};

static int __init start(void)
{
	int result = register_chrdev(MAJOR_NUMBER, "nvidia", &operations);

	if (result)
		return result;
	root = proc_mkdir("driver/nvidia", NULL);
	directories = proc_mkdir("gpus", root);
	result = pci_register_driver(&driver);
	if (result) {
		proc_remove(root);
		unregister_chrdev(MAJOR_NUMBER, "nvidia");
	}
	return result;
}

static void __exit end(void)
{
	pci_unregister_driver(&driver);
	proc_remove(root);
	unregister_chrdev(MAJOR_NUMBER, "nvidia");
}

module_init(start);
module_exit(end);
MODULE_DEVICE_TABLE(pci, ids);
MODULE_DESCRIPTION("A stand-in for NVIDIA's kernel module, for tests");
MODULE_LICENSE("Apache-2.0");
