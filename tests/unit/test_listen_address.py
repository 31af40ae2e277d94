"""Every form of `worker_listen` and `worker_advertise`, and one sentence for every wrong one."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai4s_provisioner.gateway.listen_address import (
    AdvertisedAddress,
    ListenAddress,
    joined,
    parse_advertise,
    parse_listen,
)
from openai4s_provisioner.orchestration.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("9000", ListenAddress("", 9000, 9000)),
        ("9000-9099", ListenAddress("", 9000, 9099)),
        ("login1:9000", ListenAddress("login1", 9000, 9000)),
        ("login1:9000-9099", ListenAddress("login1", 9000, 9099)),
        ("login-1.site_a.example.:9000", ListenAddress("login-1.site_a.example.", 9000, 9000)),
        ("10.0.0.5:9000", ListenAddress("10.0.0.5", 9000, 9000)),
        ("0.0.0.0:9000", ListenAddress("0.0.0.0", 9000, 9000)),
        ("[::1]:9000", ListenAddress("::1", 9000, 9000)),
        ("[::]:1-65535", ListenAddress("::", 1, 65535)),
        ("[2001:DB8:0::5]:9000-9000", ListenAddress("2001:db8::5", 9000, 9000)),
    ],
)
def test_a_form_of_listening_is_understood(text: str, meant: ListenAddress) -> None:
    assert parse_listen(text) == meant


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ("login1", "names the host login1 but no port"),
        ("[::1]", "names the host ::1 but no port"),
        ("login1:", "ends where a port belongs"),
        (":9000", "nothing before the ':'; for every interface, the port alone"),
        ("*:9000", "'*' for a host; for every interface, the port alone"),
        ("::1:9000", "more than one ':'; an IPv6 address goes into brackets"),
        ("login1:9000:9001", "more than one ':'"),
        ("[::1:9000", "opens a bracket and does not close it"),
        ("[::1]9000", "has '9000' where ':' and a port belong"),
        ("[login1]:9000", "has 'login1' in brackets, which is not an IPv6 address"),
        ("[fe80::1]:9000", "is an address of one link only"),
        ("[fe80::1%eth0]:9000", "is an address of one link only"),
        ("[2001:db8::1%eth0]:9000", "is an address of one link only"),
        ("0", "has the port 0; for any free one, give a range"),
        ("login1:0", "has the port 0"),
        ("0-9099", "has the port 0"),
        ("70000", "has a port above 65535"),
        ("login1:9000-70000", "has a port above 65535"),
        ("9099-9000", "is a range that ends before it begins"),
        ("login1:http", "has the port 'http', neither a number nor a range"),
        ("login1:9000-", "has the port '9000-', neither"),
        ("login1:-9000", "has the port '-9000', neither"),
        ("login1:9000,9001", "has the port '9000,9001', neither"),
        ("login1:9000-9010-9020", "neither a number nor a range"),
        ("login1:+9000", "neither a number nor a range"),
        ("login1:٩٠٠٠", "neither a number nor a range"),
        ("9000000", "has a port above 65535"),
        ("-9000", "cannot be a name"),
        ("-x:9000", "has the host '-x', which cannot be a name"),
        ("lögin:9000", "cannot be a name"),
        ("a..b:9000", "cannot be a name"),
        ("x" * 300 + ":9000", "cannot be a name"),
        ("10.0.0:9000", "has the host '10.0.0', which is not an IPv4 address"),
        ("10.0.0.256:9000", "is not an IPv4 address"),
        ("login1:9000 ", "holds a space"),
        ("login1 9000", "holds a space"),
        ("login1:9000\n", "holds a space or a control character"),
        ("login1:90\x0000", "holds a space or a control character"),
        ("tls://login1:9000", "holds a '/'; it is an address and not a URL"),
        ("login1:9000/tcp", "holds a '/'"),
        ("/run/gw.sock", "holds a '/'"),
    ],
)
def test_a_wrong_form_of_listening_is_one_sentence_that_names_it(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse_listen(text)
    message = str(caught.value)
    assert message.startswith("OpenAI4S.worker_listen = ")
    assert message.endswith('Write it as "9000", "host:9000", "[v6]:9000" or with a range, "host:9000-9099".')
    assert len(message.splitlines()) == 1
    assert len(message) < 700


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("login1", AdvertisedAddress("login1", None)),
        ("login1:9000", AdvertisedAddress("login1", 9000)),
        ("10.0.0.5", AdvertisedAddress("10.0.0.5", None)),
        ("[2001:db8::5]", AdvertisedAddress("2001:db8::5", None)),
        ("[2001:db8::5]:443", AdvertisedAddress("2001:db8::5", 443)),
    ],
)
def test_a_form_of_advertising_is_understood(text: str, meant: AdvertisedAddress) -> None:
    assert parse_advertise(text) == meant


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("9000", "names no host"),
        ("9000-9099", "names no host"),
        ("login1:9000-9099", "is a range of ports, and a worker dials one"),
        ("2001:db8::5", "an IPv6 address goes into brackets"),
        ("login1:", "ends where a port belongs"),
        (":9000", "nothing before the ':'"),
        ("login1, login2", "holds a space"),
        ("https://login1", "not a URL"),
        ("[fe80::1]", "one link only"),
    ],
)
def test_a_wrong_form_of_advertising_is_one_sentence_that_names_it(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse_advertise(text)
    assert str(caught.value).startswith("OpenAI4S.worker_advertise = ")


@given(st.text(max_size=40) | st.from_regex(r"[\[\]a-z0-9.:\-*%/ ]{0,30}", fullmatch=True))
def test_no_text_whatever_raises_anything_else(text: str) -> None:
    for parse in (parse_listen, parse_advertise):
        with contextlib.suppress(ConfigError):
            assert isinstance(parse(text), (ListenAddress, AdvertisedAddress))


@given(st.ip_addresses(), st.integers(1, 65535))
def test_what_is_joined_is_understood_again(address: object, port: int) -> None:
    host = str(address)
    if not getattr(address, "is_link_local", False):
        meant = parse_listen(joined(host, port))
        assert (meant.host, meant.first_port) == (host, port)
