#!/usr/bin/env bash
# Builds, once, the Debian root tree that the VM tests and the demo run QEMU, guest kernels and kernel
# module builds from. Prints the tree's path as its only line on standard output; all else goes to
# standard error.
#
#   build-tree.sh          build the tree if this recipe's tree is not there yet
#   build-tree.sh --path   print where this recipe's tree is or would be; build nothing
#
# The cache folder is $VRAM_LAB_DIR, or ${XDG_CACHE_HOME:-$HOME/.cache}/vram/lab. A tree is re-used as long
# as this file has not changed: its hash is part of the tree's name. Packages come from the mirror that the
# machine's own apt sources name, or from $VRAM_DEBIAN_MIRROR (a base address such as SCHEME://HOST/debian).
#
# A tree appears under its name only when it is whole: it is built under another name and renamed, so a
# killed run leaves nothing that looks finished. Everything is mounted in a private mount namespace, so a
# killed run leaves no mounts and no processes either.
set -euo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
PATH=$PATH:/usr/sbin:/sbin

# --- recipe -----------------------------------------------------------------------------------------
suite=trixie
# One kernel of each series: the oldest and the newest the guest driver supports, and the default guest.
kernel_series=(6.1 6.12 7)
kernel_suites=(bookworm trixie trixie-backports)
# gcc-12 and gcc-14 are the compilers the header packages name, libelf1t64 and libssl3t64 what their build
# programs link to, pahole what they call. QEMU comes from backports: older ones cannot attach a generic
# vhost-user device.
packages=(
    busybox-static cpio gcc-12 gcc-14 kmod libc6-dev libelf1t64 libssl3t64 make pahole
    qemu-system-x86 qemu-utils xz-utils zstd
)
min_qemu_major=11
# What this script runs on the host, and the Debian package that brings it.
host_tools=(mmdebstrap:mmdebstrap flock:util-linux unshare:util-linux setpriv:util-linux xz:xz-utils tar:tar)
# ----------------------------------------------------------------------------------------------------

say() { printf 'lab: %s\n' "$*" >&2; }
die() { printf 'lab: error: %s\n' "$*" >&2; exit 1; }

# Tries a command a few times: mirrors and package locks fail for a moment now and then.
retry() {
    local try
    for try in 1 2 3; do
        "$@" && return 0
        [ "$try" = 3 ] || { say "'$1' failed (try $try of 3), trying again in $((try * 5)) s"; sleep $((try * 5)); }
    done
    return 1
}

install_host_tools() {
    local pair missing=()
    for pair in "${host_tools[@]}"; do
        command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
    done
    [ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing+=(debian-archive-keyring)
    [ ${#missing[@]} -gt 0 ] || return 0
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
    command -v apt-get >/dev/null || die "missing on this host: ${missing[*]}. Install them and run this again."
    say "installing on this host with apt-get: ${missing[*]}"
    local install=(apt-get -q -y -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3
        install --no-install-recommends "${missing[@]}")
    # The package lists may be missing or stale; sources of others that fail to update are not our concern.
    if ! "${install[@]}" >&2; then
        say "package lists look stale: running apt-get update"
        apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 update >&2 || true
        retry "${install[@]}" >&2 || die "apt-get could not install ${missing[*]} (see above). Install them by hand and run this again."
    fi
}

find_mirror() {
    if [ -n "${VRAM_DEBIAN_MIRROR:-}" ]; then
        printf '%s\n' "$VRAM_DEBIAN_MIRROR"
        return
    fi
    local site
    site=$(apt-get indextargets --format '$(SITE)|$(LABEL)|$(CREATED_BY)' 2>/dev/null |
        sed -n 's/|Debian|Packages$//p' | sort -u | head -n 1)
    if [ -z "$site" ]; then # labels are known only after an update
        apt-get -q -o DPkg::Lock::Timeout=300 update >&2 || true
        site=$(apt-get indextargets --format '$(SITE)|$(LABEL)|$(CREATED_BY)' 2>/dev/null |
            sed -n 's/|Debian|Packages$//p' | sort -u | head -n 1)
    fi
    [ -n "$site" ] || die "this machine's apt sources name no Debian mirror. Set VRAM_DEBIAN_MIRROR to one's base address."
    printf '%s\n' "$site"
}

# Runs inside mmdebstrap's last hook ($1 is the tree): kernels and headers of every series are unpacked
# rather than installed, which spares us an initramfs generator and the maintainer scripts.
unpack_kernels() {
    local tree=$1 index suite_name series release names stage=$1/tmp/kernels
    mkdir -p "$stage/debs" "$stage/root"
    for index in "${!kernel_series[@]}"; do
        series=${kernel_series[$index]} suite_name=${kernel_suites[$index]}
        release=$(chroot "$tree" apt-cache show linux-headers-cloud-amd64 |
            sed -n "s/^Depends:.*linux-headers-\(${series//./\\.}\.[^ ]*-cloud-amd64\) .*/\1/p" | head -n 1)
        [ -n "$release" ] || die "the mirror's $suite_name has no kernel headers of series $series"
        # All kernel packages of this release, none of the compilers and tools around them.
        mapfile -t names < <(chroot "$tree" apt-cache depends --recurse --no-recommends --no-suggests \
            --no-conflicts --no-breaks --no-replaces --no-enhances \
            "linux-headers-$release" "linux-image-$release" |
            grep -E '^linux-(headers|image|modules|binary|base|kbuild)-[0-9]' | grep -v -- -unsigned | sort -u)
        say "unpacking ${names[*]}"
        retry chroot "$tree" sh -c 'cd /tmp/kernels/debs && exec apt-get -qq -o APT::Sandbox::User=root -o Acquire::Retries=5 download "$@"' \
            sh "${names[@]}" >&2 || die "could not download the kernel packages of series $series"
    done
    local deb
    for deb in "$stage"/debs/*.deb; do dpkg-deb -x "$deb" "$stage/root"; done
    rm -rf "$stage"/root/usr/share/{doc,bug,lintian}
    # Older packages have /lib as a folder; in the tree it is a link that must stay one.
    tar -C "$stage/root" -c . | tar -C "$tree" -x --keep-directory-symlink
    rm -rf "$stage"
    # Newer packages keep the image beside the modules; we look for all of them in /boot.
    for release in "$tree"/usr/lib/modules/*/vmlinuz; do
        [ -e "$release" ] || continue
        mv "$release" "$tree/boot/vmlinuz-$(basename "${release%/vmlinuz}")"
    done
    for release in "$tree"/boot/vmlinuz-*; do
        chroot "$tree" depmod "${release##*/vmlinuz-}"
    done
}

if [ "${1:-}" = --unpack-kernels ]; then # called back by mmdebstrap, see below
    unpack_kernels "$2"
    exit 0
fi

if [ -n "${VRAM_LAB_DIR:-}" ]; then
    lab=$VRAM_LAB_DIR
elif [ -n "${XDG_CACHE_HOME:-}${HOME:-}" ]; then
    lab=${XDG_CACHE_HOME:-$HOME/.cache}/vram/lab
else
    die "neither VRAM_LAB_DIR nor HOME is set. Set VRAM_LAB_DIR to a folder with 4 GiB of room."
fi
case $lab in /*) ;; *) lab=$PWD/$lab ;; esac

recipe=$(sha256sum "${BASH_SOURCE[0]}" | cut -c1-12)
tree=$lab/tree-$recipe
marker=$tree/.vram-lab

case ${1:-} in
    '') ;;
    --path) printf '%s\n' "$tree"; exit 0 ;;
    *) die "unknown argument '$1'. Usage: build-tree.sh [--path]" ;;
esac

if [ -e "$marker" ]; then
    touch -c "$marker" 2>/dev/null || true # says "in use" to the clean-up of old trees below
    printf '%s\n' "$tree"
    exit 0
fi

[ "$(id -u)" = 0 ] || die "building the lab tree needs root (mmdebstrap, chroot). Run it once with sudo and the same VRAM_LAB_DIR or HOME."
[ "$(uname -m)" = x86_64 ] || die "the lab tree is for x86_64 hosts, this is $(uname -m)."

install_host_tools
mkdir -p "$lab"
exec 9>"$lab/lock"
if ! flock -n 9; then
    say "another run is building the tree; waiting for it"
    flock -w 1800 9 || die "another run has held $lab/lock for 30 minutes. End it, then run this again."
    if [ -e "$marker" ]; then printf '%s\n' "$tree"; exit 0; fi
fi

# Left by runs that were killed. One file system only: should anything be mounted there after all, it stays.
rm -rf --one-file-system "$lab"/building.*
# Trees of other recipes that nobody asked for in a fortnight.
find "$lab" -mindepth 2 -maxdepth 2 -name .vram-lab -path '*/tree-*' -mtime +14 -printf '%h\n' |
    while read -r old; do say "removing the unused $old"; rm -rf --one-file-system "$old"; done
# Built modules and sample files are cheap to make again; those of other recipes are never asked for.
find "$lab" "$lab/modules" -mindepth 1 -maxdepth 1 \
    \( -name 'sample*' -o -path '*/modules/*' \) -mtime +14 -exec rm -rf --one-file-system {} + 2>/dev/null || true

free_mib=$(($(stat -f -c '%a * %S' "$lab") / 1048576))
[ "$free_mib" -ge 3072 ] || die "$lab has $free_mib MiB free, the tree needs 3072. Make room or set VRAM_LAB_DIR to another place."

mirror=$(find_mirror)
work=$(mktemp -d "$lab/building.XXXXXX")
log=$lab/build.log
trap 'rm -rf --one-file-system "$work"' EXIT
say "building the lab tree in $lab (about a minute, once; the log is $log)"
say "it holds, and this host does not get: ${packages[*]}, kernels and headers of ${kernel_series[*]}"

# The namespaces are private and the signals chained, so that the processes and mounts of a killed run vanish
# with it and cannot get in the way of the next. Backports rank like
# trixie, so that QEMU comes from there with whatever newer packages it needs; bookworm gives only what the
# other two lack.
build() {
    rm -rf --one-file-system "$work/root"
    VRAM_LAB_SCRIPT=$(readlink -f "${BASH_SOURCE[0]}") \
        setpriv --pdeathsig KILL -- \
        unshare --mount --propagation private --pid --fork --kill-child --mount-proc -- \
        mmdebstrap --mode=root --variant=apt --format=directory \
        --include="$(IFS=,; printf '%s' "${packages[*]}")" \
        --aptopt='Acquire::Retries "5"' --aptopt='APT::Install-Recommends "false"' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --setup-hook='mkdir -p "$1/etc/apt/preferences.d"' \
        --setup-hook='printf "Package: *\nPin: release n=trixie-backports\nPin-Priority: 500\n" > "$1/etc/apt/preferences.d/backports"' \
        --setup-hook='printf "Package: *\nPin: release n=bookworm\nPin-Priority: 100\n" > "$1/etc/apt/preferences.d/bookworm"' \
        --customize-hook='bash "$VRAM_LAB_SCRIPT" --unpack-kernels "$1"' \
        "$suite" "$work/root" \
        "deb $mirror trixie main" "deb $mirror trixie-backports main" "deb $mirror bookworm main" \
        >>"$log" 2>&1 9>&-
}
: >"$log"
if ! retry build; then
    tail -n 30 "$log" >&2
    die "mmdebstrap failed (the end of $log is above). If it is the network, run this again; if a package is gone, correct the recipe in ${BASH_SOURCE[0]}."
fi

# What the tree is for has to be in it, or it does not get its name.
root=$work/root
qemu=$(chroot "$root" qemu-system-x86_64 --version | sed -n 's/^QEMU emulator version \([0-9.]*\).*/\1/p')
[ "${qemu%%.*}" -ge "$min_qemu_major" ] || die "the tree got QEMU $qemu, version $min_qemu_major or newer is needed. Does the mirror carry trixie-backports?"
chroot "$root" qemu-system-x86_64 -device help | grep -q vhost-user-test-device-pci ||
    die "the tree's QEMU $qemu has no generic vhost-user device"
kernels=0
for image in "$root"/boot/vmlinuz-*; do
    release=${image##*/vmlinuz-}
    [ -s "$root/usr/lib/modules/$release/modules.dep" ] || die "the tree has no module list for kernel $release"
    [ -e "$root/usr/src/linux-headers-$release/Makefile" ] || die "the tree has no headers for kernel $release"
    kernels=$((kernels + 1))
done
[ "$kernels" = ${#kernel_series[@]} ] || die "the tree got $kernels kernels, expected ${#kernel_series[@]}"

mkdir -p "$root/h" # where programs started in the tree see the host's own root
printf 'recipe=%s\nqemu=%s\n' "$recipe" "$qemu" >"$root/.vram-lab"
chmod 755 "$root"
rm -rf --one-file-system "$tree"
mv "$root" "$tree"
say "done: QEMU $qemu, kernels $(cd "$tree/boot" && echo vmlinuz-* | sed 's/vmlinuz-//g'), $(du -sm "$tree" | cut -f1) MiB"
printf '%s\n' "$tree"
