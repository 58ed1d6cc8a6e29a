#!/bin/bash
# Install or remove the commands that mount(8), fsck(8) and a shell look for outside the venv.
#
# usage: tools/wrappers.sh install|remove VENV
#
# mount(8) finds its helpers in /sbin and /usr/sbin only. Each command becomes a short script
# that runs the venv's own. The one for umount(8), which looks for umount.TYPE with the type that
# the kernel shows, unmounts by umount(8) itself and needs the venv only to say who is in the way:
# a mount can be taken away when the checkout is gone. A file there that isn't such a script is
# never touched.
# BELUGAFS_ROOT puts another root in front of all paths (for packaging and for tests).
set -euo pipefail

readonly MARK="# belugafs wrapper"
action=$1
venv=$(cd "$2" && pwd)
root=${BELUGAFS_ROOT:-}
commands=(/sbin/mount.belugafs /sbin/mkfs.belugafs /sbin/fsck.belugafs /usr/local/bin/belugafs
          /sbin/umount.fuse.belugafs)

is_ours() { [ -f "$1" ] && [ ! -L "$1" ] && [ "$(sed -n 2p "$1")" = "$MARK" ]; }
target_of() { sed -n 's/^\(exec \)\{0,1\}"\([^"]*\)" .*$/\2/p' "$1"; }

script_for() { # PATH TARGET
    printf '#!/bin/sh\n%s\n' "$MARK"
    case $1 in
        */umount.*)
            printf 'umount -i "$@" && exit\ncode=$?\n"%s" holders "$1" >&2\nexit $code\n' "$2"
            ;;
        *) printf 'exec "%s" "$@"\n' "$2" ;;
    esac
}

status=0
for command in "${commands[@]}"; do
    path=$root$command
    case $command in
        */umount.*) target=$venv/bin/belugafs ;;
        *) target=$venv/bin/${command##*/} ;;
    esac
    case $action in
        install)
            if { [ -e "$path" ] || [ -L "$path" ]; } && ! is_ours "$path"; then
                echo "wrappers: $path is not ours, left as it is" >&2
                status=1
            elif ! is_ours "$path" || [ "$(target_of "$path")" != "$target" ]; then
                mkdir -p "${path%/*}"
                # By rename, so that a mount that is starting never sees half a script.
                script_for "$path" "$target" > "$path.new.$$"
                chmod 755 "$path.new.$$"
                mv -f "$path.new.$$" "$path"
                echo "wrappers: $path -> $target"
            fi
            ;;
        remove)
            # Only what points here: another checkout's wrappers are its own business.
            if is_ours "$path" && [ "$(target_of "$path")" = "$target" ]; then
                rm -f "$path"
                echo "wrappers: removed $path"
            fi
            ;;
        *)
            echo "usage: $0 install|remove VENV" >&2
            exit 2
            ;;
    esac
done
exit $status
