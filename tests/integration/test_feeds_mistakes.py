"""What `clarion feeds` says where somebody means something else."""

from __future__ import annotations

from tests.integration.shell import Shell, one_line

PAGE = "http://127.0.0.1:1/prices"


def test_rules_are_taken_back_and_followers_hear_of_it(shell: Shell) -> None:
    shell.run("feeds", "subscribe", PAGE, "--as", "ann", "--keep", "#prices")
    assert shell.json("feeds", "show", PAGE)["rules"]["keep"] == ["#prices"]
    done = shell.run("feeds", "subscribe", PAGE, "--as", "bob", "--no-rules")
    assert done.returncode == 0
    assert b"these hold for 1 other follower, too" in done.stderr
    assert b"no node polls now" in done.stderr
    assert shell.json("feeds", "show", PAGE)["rules"] == {"keep": [], "leave_out": []}
    assert shell.run("feeds", "subscribe", PAGE, "--no-rules", "--keep", "p").returncode == 2


def test_what_is_not_followed_is_said_with_what_is(shell: Shell) -> None:
    shell.run("feeds", "subscribe", PAGE, "--page", "--as", "ann")
    for wrong in (("show",), ("unsubscribe", "--as", "ann")):
        done = shell.run("feeds", wrong[0], "127.0.0.1:1/prices", *wrong[1:])
        assert (done.returncode, one_line(done)[-len(PAGE) :]) == (6, PAGE)
    done = shell.run("feeds", "watch", "--as", "anne", "--wait", "50ms")
    assert (done.returncode, one_line(done)) == (0, "clarion: anne follows nothing yet")


def test_an_address_that_is_not_allowed_is_said_with_the_option_that_allows_it(shell: Shell) -> None:
    done = shell.run("feeds", "subscribe", PAGE, "--as", "ann")
    assert done.returncode == 0
    assert b"--allow" in done.stderr


def test_a_target_is_shown_as_what_it_is_and_has_no_other_name(shell: Shell) -> None:
    target = ("--notify", "json://ann:secret@127.0.0.1:1/hook")
    made = shell.run("feeds", "subscribe", PAGE, "--page", *target)
    assert b"clarion feeds notify" in made.stderr
    assert shell.run("feeds", "unsubscribe", PAGE, "--as", "ann", *target).returncode == 2
    ended = shell.ok("feeds", "unsubscribe", PAGE, *target).decode()
    assert ended.startswith("json://ann:****@127.0.0.1:1/hook no longer follows")
