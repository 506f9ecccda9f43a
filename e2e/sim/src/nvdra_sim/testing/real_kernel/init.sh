#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# Process 1 of the guest: makes this machine's files the root, loads drivers, and runs one command.
# /settings (initramfs.py) has MODULES, DRIVERS, TREE_MODULES and COMMAND.
/bin/busybox mkdir -p /proc /sys /dev /lower /upper /root
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin:/sbin:/usr/sbin HOME=/root LANG=C.UTF-8
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
exec < /dev/null > /dev/ttyS1 2>&1
. /settings

for module in $MODULES; do insmod "/modules/$module" || echo "insmod $module failed"; done
# Nothing changes while the guest runs, so that it may keep what it has read.
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose host /lower || poweroff -f
mount -t tmpfs tmpfs /upper
mkdir /upper/files /upper/work
mount -t overlay -o xino=off,lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work root /root || poweroff -f
for directory in proc sys dev; do
  mkdir -p "/root/$directory"
  mount --move "/$directory" "/root/$directory"
done
mkdir -p /root/dev/shm /root/dev/pts /root/run
for directory in dev/shm run; do mount -t tmpfs tmpfs "/root/$directory"; done
mount -t devpts devpts /root/dev/pts
mkdir -p /root/lib/modules
mount --bind "/root$TREE_MODULES" /root/lib/modules
mkdir /root/run/nvdra
cp /files/* /root/run/nvdra

for module in /files/*.ko; do insmod "$module" || echo "insmod $module failed"; done
for driver in $DRIVERS; do chroot /root /run/nvdra/modprobe "$driver" || echo "modprobe $driver failed"; done
echo "=== begin"
chroot /root /bin/sh -c "$COMMAND"
echo "=== end $?"
poweroff -f
