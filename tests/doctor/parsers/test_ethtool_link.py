"""`ethtool N` and `ethtool -i N`."""

from __future__ import annotations

from dualpath.doctor.parsers.ethtool_link import EthtoolLink, parse_ethtool, parse_ethtool_driver

UP = "\n".join(
    (
        "Settings for ens1np0:",
        "\tSupported ports: [ Backplane ]",
        "\tSupported link modes:   25000baseCR/Full",
        "\t                        100000baseCR4/Full",
        "\t                        400000baseCR4/Full",
        "\tSupported pause frame use: Symmetric",
        "\tSupports auto-negotiation: Yes",
        "\tAdvertised link modes:  25000baseCR/Full",
        "\tLink partner advertised link modes:  100000baseCR4/Full",
        "\t                                     200000baseCR4/Full",
        "\tSpeed: 200000Mb/s",
        "\tLanes: 4",
        "\tDuplex: Full",
        "\tAuto-negotiation: on",
        "\tPort: Direct Attach Copper",
        "\tLink detected: yes",
    )
)


def test_a_link_that_is_up() -> None:
    assert parse_ethtool(UP) == EthtoolLink(
        speed_bits_per_s=200_000_000_000,
        supported_bits_per_s=400_000_000_000,
        partner_bits_per_s=200_000_000_000,
        autonegotiation=True,
        port="Direct Attach Copper",
        detected=True,
    )


def test_a_link_that_is_down_says_why() -> None:
    link = parse_ethtool(
        "Settings for eth1:\n\tSpeed: Unknown!\n\tDuplex: Unknown! (255)\n\tLink detected: no (No cable)\n"
    )
    assert (link.speed_bits_per_s, link.detected, link.reason) == (None, False, "No cable")


def test_what_a_virtual_nic_does_not_say_is_none() -> None:
    link = parse_ethtool("Settings for eth0:\n\tSupported link modes:   Not reported\n\tLink detected: yes\n")
    assert link == EthtoolLink(detected=True)


def test_nothing_is_read_into_an_error() -> None:
    assert parse_ethtool("netlink error: Operation not permitted\nNo data available\n") == EthtoolLink()


def test_the_driver() -> None:
    driver = parse_ethtool_driver(
        "driver: ice\nversion: 6.8.0-52-generic\nfirmware-version: 4.40 0x8001c7d4 1.3534.0\n"
        "expansion-rom-version: \nbus-info: 0000:3b:00.0\nsupports-statistics: yes\n"
    )
    assert (driver.driver, driver.firmware, driver.bus) == ("ice", "4.40 0x8001c7d4 1.3534.0", "0000:3b:00.0")
