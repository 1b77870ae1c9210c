import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr

from tqdm import tqdm

from nanobatch.dashboard.relay import StderrRelay


@contextmanager
def relayed() -> Iterator[StderrRelay]:
    """Relay a stream of our own; pytest changes `sys.stderr` between a fixture and its test."""
    with redirect_stderr(io.StringIO()) as stream:
        relay = StderrRelay(stream)
        relay.install()
        try:
            yield relay
        finally:
            relay.uninstall()


def test_whole_lines_are_kept_until_taken() -> None:
    with relayed() as relay:
        sys.stderr.write("one\ntwo\nthr")
        print("ee", file=sys.stderr)
        assert relay.take_lines() == ["one", "two", "three"]
        assert relay.take_lines() == []


def test_windows_line_ends_and_blank_lines_are_lines() -> None:
    with relayed() as relay:
        sys.stderr.write("one\r\n\ntwo\r\n")
        assert relay.take_lines() == ["one", "", "two"]


def test_a_tqdm_bar_is_an_activity_and_never_a_line() -> None:
    seen = []
    with relayed() as relay:
        for _ in tqdm(range(3), desc="outer", file=sys.stderr, mininterval=0.0):
            for _ in tqdm(range(2), desc="inner", file=sys.stderr, mininterval=0.0):
                seen.append(relay.activity)
        assert relay.take_lines() == []
    assert any(activity.startswith("inner:  50%") for activity in seen)
    assert all(activity.isprintable() for activity in seen)


def test_a_line_ends_an_activity() -> None:
    with relayed() as relay:
        sys.stderr.write("\rloading: 10%")
        assert relay.activity == "loading: 10%"
        sys.stderr.write("\rloading: 99%\nloaded\n")
        assert (relay.activity, relay.take_lines()) == ("", ["loaded"])


def test_handlers_that_already_hold_the_stream_are_relayed_and_given_back() -> None:
    logger = logging.getLogger("tests.dashboard.relay")
    with redirect_stderr(io.StringIO()) as stream:
        handler = logging.StreamHandler(stream)
        logger.addHandler(handler)
        relay = StderrRelay(stream)
        relay.install()
        logger.warning("kept")
        assert relay.take_lines() == ["kept"]
        relay.uninstall()
        logger.removeHandler(handler)
        assert handler.stream is stream


def test_what_was_not_taken_is_written_when_the_stream_is_given_back() -> None:
    with redirect_stderr(io.StringIO()) as stream:
        relay = StderrRelay(stream)
        relay.install()
        sys.stderr.write("last line\nand its beginn")
        relay.uninstall()
        assert sys.stderr is stream
    assert stream.getvalue() == "last line\nand its beginn"


def test_whoever_kept_the_relay_writes_through_it_afterwards() -> None:
    with redirect_stderr(io.StringIO()) as stream:
        relay = StderrRelay(stream)
        relay.install()
        held = sys.stderr
        relay.uninstall()
        held.writelines(["late", " words\n"])
        held.flush()
    assert stream.getvalue() == "late words\n"


def test_what_a_stream_can_do_otherwise_it_still_can() -> None:
    with relayed() as relay:
        assert sys.stderr.isatty() is relay.rich_proxied_file.isatty()
        assert sys.stderr.encoding == relay.rich_proxied_file.encoding
