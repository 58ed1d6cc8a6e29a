"""Options of mount, without mounting."""

from __future__ import annotations

import pytest

from belugafs.options import MountOptions, OptionError, parse_options


def test_nothing_is_the_defaults() -> None:
    assert parse_options([]) == MountOptions()
    assert parse_options(["rw", "", "defaults,,noauto"]) == MountOptions()


def test_all_of_ours() -> None:
    options = parse_options(
        [
            "ro,evict=none,verify=always,coherence=incoherent,publish=close,host=b",
            "high=90.5,low=80%,log=/tmp/x,transport=pyfuse3,noallow_other",
        ]
    )
    assert options == MountOptions(
        readonly=True,
        evict="none",
        verify="always",
        coherence="incoherent",
        publish="close",
        transport="pyfuse3",
        host="b",
        high_permille=905,
        low_permille=800,
        log="/tmp/x",
        allow_other=False,
    )


def test_the_last_one_counts() -> None:
    options = parse_options(["ro,evict=none", "rw", "evict=lru"])
    assert (options.readonly, options.evict) == (False, "lru")


def test_the_kernels_options_are_passed_on() -> None:
    assert parse_options(["noatime,nodev,nosuid,noexec,sync"]).kernel == [
        "noatime",
        "nodev",
        "nosuid",
        "noexec",
        "sync",
    ]


def test_what_mount_and_fstab_add_is_accepted() -> None:
    parse_options(
        ["_netdev,nofail,user,user=anna,users,relatime,x-systemd.automount,X-mount.mkdir,comment=x"]
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("evict=fifo", "evict=fifo: evict is one of lru, none"),
        ("evict", "evict needs a value"),
        ("evict=", "evict is one of"),
        ("host=", "host= needs a value"),
        ("high=120", "high is a percentage"),
        ("high=x", "high is a percentage"),
        ("high=nan", "high is a percentage"),
        ("high=inf", "high is a percentage"),
        ("low=-3", "low is a percentage"),
        ("low=98", "low=98 is above high=97"),
        ("transport=libfuse", "transport is one of auto, pyfuse3, direct"),
        ("remount,ro", "remount is not supported"),
        ("direct_io", "unknown option 'direct_io'; files could not be mapped"),
        ("evcit=lru", "unknown option 'evcit=lru'; did you mean evict?"),
        ("zzz", "unknown option 'zzz'"),
        ("ro=1", "unknown option 'ro=1'"),
    ],
)
def test_errors_name_the_option(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_options([text])
    assert message in str(caught.value)


def test_sloppy_lets_unknown_ones_pass() -> None:
    assert parse_options(["zzz,evict=none"], sloppy=True).evict == "none"
    with pytest.raises(OptionError):
        parse_options(["evict=zzz"], sloppy=True)
