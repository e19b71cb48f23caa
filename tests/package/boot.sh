#!/usr/bin/env bash
# Becomes the init process of a Debian root: systemd, with nothing of the machine but its devices of no
# hardware. To be run by unshare with namespaces of its own for all but users.
#
# Usage: boot.sh ROOT
set -euo pipefail
root=$1

mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
for device in null zero full random urandom tty; do
  touch "dev/$device"
  mount --bind "/dev/$device" "dev/$device"
done
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ip link set lo up
# Not chroot: a unit may have users of its own only where the root is the namespace's.
mkdir -p mnt/old
pivot_root . mnt/old
umount --lazy mnt/old
# shellcheck disable=SC2093
exec env -i container=ringfill PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --system --log-target=journal --show-status=false
