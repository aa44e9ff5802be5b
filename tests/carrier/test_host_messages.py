"""What travels between hosts: plain values, in frames that no stranger can make."""

from __future__ import annotations

import json
from typing import Any

import pytest

from xmp._hosts.carrier import kinds
from xmp._hosts.carrier.sealed import (
    ANSWER_SIZE,
    OTHER_JOB,
    OTHER_SECRET,
    Answer,
    Frames,
    Greeting,
    Keys,
)
from xmp._hosts.carrier.words import (
    TEXT_LIMIT,
    HostCard,
    Malformed,
    Proposal,
    RollState,
    Step,
    decode,
    encode,
)
from xmp._words.host_words import HostFailure


def meet(ours: Keys, theirs: Keys) -> tuple[Frames, Frames]:
    """The frames of coordinator and member after their handshake."""
    greeting = Greeting(ours)
    answer = Answer(theirs, greeting.data)
    assert len(answer.data) == ANSWER_SIZE
    reply, frames = greeting.reply(answer.data)
    assert frames is not None, reply
    return frames, answer.frames(reply)


def met() -> tuple[Frames, Frames]:
    return meet(Keys("job 7", b"secret"), Keys("job 7", b"secret"))


class TestValues:
    @pytest.mark.parametrize(
        "value",
        [
            HostCard(3, 4, "t1v-n-3", 2, "0.3.0", "3.11.7", "jax 0.10.2", 2, 1),
            HostFailure(1, "a", 3, 1, 77, "ReplicaDied", "text", symptom=True, attempt=2),
            HostFailure(exit_code=-9, signal_name="SIGKILL", how="signal", final=True),
            Step(2, 7),
            Proposal(2, 8, True),
            RollState(("0 (a)", "2 (b)"), ("1", "3 (d)"), 2, "a note", "n0", False, 1),
        ],
    )
    def test_arrive_as_they_were(self, value: Any) -> None:
        assert decode(type(value), encode(value)) == value

    def test_of_another_version_arrive_as_far_as_they_are_known(self) -> None:
        data = json.dumps({"index": 2, "xmp": "9.0.0", "colour": "green"}).encode()
        assert decode(HostCard, data) == HostCard(index=2, xmp="9.0.0")

    def test_a_long_text_is_cut(self) -> None:
        failure = HostFailure(text="x" * (TEXT_LIMIT + 1))
        text = decode(HostFailure, encode(failure)).text
        assert len(text) <= TEXT_LIMIT
        assert text.endswith("(the rest is cut)")

    @pytest.mark.parametrize(
        "data",
        [
            b"", b"\x80\x04.", b"[1]", b"7", b"{", b"\xff{}", b'{"index": "1"}', b'{"index": true}',
            b'{"index": 1e400}', b'{"index": 99999999999999999999}', b'{"name": 5}',
            b'{"name": null}', b"[" * 100_000,
        ],
    )  # fmt: skip
    def test_that_cannot_be_are_refused(self, data: bytes) -> None:
        with pytest.raises(Malformed):
            decode(HostCard, data)

    @pytest.mark.parametrize("data", [b'{"missing": 4}', b'{"missing": [1]}', b'{"here": [1]}'])
    def test_with_items_that_cannot_be_are_refused(self, data: bytes) -> None:
        with pytest.raises(Malformed):
            decode(RollState, data)


class TestFrames:
    def test_arrive_in_any_pieces(self) -> None:
        ours, theirs = met()
        sent = [(kinds.CARD, b"{}"), (kinds.BEAT, b""), (kinds.FAILED, b"x" * 70_000)]
        data = b"".join(ours.frame(*each) for each in sent)
        assert list(theirs.take(data)) == sent
        data = b"".join(theirs.frame(*each) for each in sent)
        assert [frame for byte in data for frame in ours.take(bytes([byte]))] == sent

    @pytest.mark.parametrize("place", [4, 5, 20, -1])
    def test_that_were_changed_are_refused(self, place: int) -> None:
        ours, theirs = met()
        data = bytearray(ours.frame(kinds.CARD, b"{}"))
        data[place] ^= 1
        with pytest.raises(Malformed, match="wrong code"):
            list(theirs.take(bytes(data)))

    def test_that_come_twice_or_not_at_all_are_refused(self) -> None:
        ours, theirs = met()
        first = ours.frame(kinds.BEAT)
        assert list(theirs.take(first)) == [(kinds.BEAT, b"")]
        with pytest.raises(Malformed, match="wrong code"):
            list(theirs.take(first))
        ours, theirs = met()
        ours.frame(kinds.BEAT)
        with pytest.raises(Malformed, match="wrong code"):
            list(theirs.take(ours.frame(kinds.BEAT)))

    def test_of_the_reader_itself_are_refused(self) -> None:
        ours, _ = met()
        with pytest.raises(Malformed, match="wrong code"):
            list(ours.take(ours.frame(kinds.DONE)))

    def test_of_another_connection_are_refused(self) -> None:
        keys = Keys("job 7", b"secret")
        ours, _ = meet(keys, keys)
        _, theirs = meet(keys, keys)
        with pytest.raises(Malformed, match="wrong code"):
            list(theirs.take(ours.frame(kinds.DONE)))

    def test_of_a_length_that_cannot_be_are_refused_before_they_have_come(self) -> None:
        ours, _ = met()
        with pytest.raises(Malformed, match="4294967295 bytes"):
            list(ours.take(b"\xff\xff\xff\xffB"))


class TestHandshake:
    def test_refuses_another_job(self) -> None:
        greeting = Greeting(Keys("job 7", b"secret"))
        answer = Answer(Keys("job 8", b"secret"), greeting.data)
        assert greeting.reply(answer.data) == (OTHER_JOB, None)

    def test_refuses_another_secret(self) -> None:
        greeting = Greeting(Keys("job 7", b"secret"))
        answer = Answer(Keys("job 7", b"guessed"), greeting.data)
        assert greeting.reply(answer.data) == (OTHER_SECRET, None)

    def test_refuses_an_answer_to_another_greeting(self) -> None:
        keys = Keys("job 7", b"secret")
        answer = Answer(keys, Greeting(keys).data)
        assert Greeting(keys).reply(answer.data) == (OTHER_SECRET, None)

    def test_a_member_refuses_a_coordinator_without_the_secret(self) -> None:
        stranger, keys = Greeting(Keys("job 7", b"guessed")), Keys("job 7", b"secret")
        answer = Answer(keys, stranger.data)
        with pytest.raises(Malformed, match="does not know this job's secret"):
            answer.frames(b"W" + bytes(32))

    @pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n" + bytes(18), bytes(44)])
    def test_a_member_refuses_another_program(self, greeting: bytes) -> None:
        with pytest.raises(Malformed, match="not that of xmp"):
            Answer(Keys("job 7", b""), greeting)


class TestTexts:
    """They are printed in the terminals of other hosts."""

    @pytest.mark.parametrize(
        ("sent", "read"),
        [
            ("a\x1b]0;title\x07b", r"a\x1b]0;title\x07b"),
            ("\x1b[31mred\x1b[0m", "red"),
            ("\x9b2J", r"\x9b2J"),
            ("over\rwritten", r"over\rwritten"),
            ("\u202eright to left", r"\u202eright to left"),
            ("\x00", r"\x00"),
            ("two\n\tlines, ü, 東京\u3000日本", "two\n\tlines, ü, 東京\u3000日本"),
        ],
    )
    def test_hold_nothing_that_a_terminal_obeys(self, sent: str, read: str) -> None:
        data = json.dumps({"text": sent, "name": "n"}).encode()
        assert decode(HostFailure, data).text == read
        assert decode(HostFailure, encode(HostFailure(text=sent))).text == read

    def test_of_a_name_are_one_line(self) -> None:
        assert decode(HostCard, encode(HostCard(name="n1\nxmp: all is well"))).name == (
            r"n1\nxmp: all is well"
        )
        assert decode(RollState, b'{"here": ["0 (a\\nb)"]}').here == (r"0 (a\nb)",)

    def test_can_be_printed_whatever_they_hold(self) -> None:
        assert decode(HostFailure, b'{"text": "\\ud800"}').text.encode() == rb"\ud800"
        assert decode(HostFailure, encode(HostFailure(text="\ud800"))).text == "?"

    @pytest.mark.parametrize("name", ["name", "kind", "signal_name"])
    def test_that_are_too_long_are_refused(self, name: str) -> None:
        with pytest.raises(Malformed, match="longer than 256 characters"):
            decode(HostFailure, json.dumps({name: "x" * 257}).encode())

    def test_all_as_long_as_they_may_be_fit_into_a_frame(self) -> None:
        ours, theirs = met()
        long = "\x01" * TEXT_LIMIT
        data = encode(HostFailure(text=long, message=long, traceback=long))
        [(_, body)] = theirs.take(ours.frame(kinds.FAILED, data))
        assert decode(HostFailure, body).traceback == "\\x01" * TEXT_LIMIT
