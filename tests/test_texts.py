"""An executed tool may return any text, also one that a client writes in place of a result.

The texts are those of the client table, some that look like them, and what the guard itself says. A log, a test's
output or a source file holds them all. Where anything tells that the tool ran, the run is ended neither sooner nor
later than with any other text in that place.

Chat and Responses carry no error flag: there a result that is such a text from its first letter to its last, and
nothing else, cannot be told from the client's own, and is taken for it. What holds there as well: inside a longer
output, behind an exit code, or now and then between calls of the tool that work, it is output.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

import pytest

from litellm_toolguard import notes
from litellm_toolguard.client_texts import CLIENT_TEXTS, ClientText, match_client_text
from litellm_toolguard.dialects import parse
from litellm_toolguard.policy import Policy
from litellm_toolguard.review import review
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS, Conversation, Step, expand
from tests.test_client_texts import instance

LOOK_ALIKES = (
    "[Request interrupted by user]",
    "<sandbox_violations>\nwrite to /srv/a\n</sandbox_violations>",
    "Commands not executed. The user rejected your commands with the following message: not now",
    "Tool 'deploy' denied by rule 'no-deploys'",
    "bash: /srv/a: Permission denied",
    "ERROR 1142 (42000): SELECT command denied to user 'app' for table 'orders'",
    "remote: Permission to team/app.git denied to builder.",
    "Access to the path 'a' is denied.",
    "The request was rejected because it is not allowed by policy.",
    "HTTP 403 Forbidden: the user is not authorised to perform this action",
)
OWN = (
    notes.hint(notes.Facts("repeated-call", "read_file", 3), last=True),
    notes.end(notes.Facts("failing-tool", "bash", 12, refusals=3)),
    notes.rejection(notes.Facts("failing-call", "bash", 6)),
    f"{notes.MARK} This call was not executed.",
    '{"toolguard": {"action": "stop", "detector": "repeated-call", "tool": "read_file", "count": 8}}',
)


def _more_texts() -> tuple[str, ...]:
    """Texts of one's own: the `text` of every line of the file that TOOLGUARD_TEXTS names, if it is set."""
    file = os.environ.get("TOOLGUARD_TEXTS")
    lines = Path(file).read_text(encoding="utf-8").splitlines() if file else ()
    return tuple(json.loads(line)["text"] for line in lines)


TEXTS = (*map(instance, CLIENT_TEXTS), *LOOK_ALIKES, *OWN, *_more_texts())
FINAL = ("user_rejected", "policy_blocked", "tool_disabled", "hook_blocked")
ANY_OTHER = "the lid of the tray deploy-9 is open"
"""A text that reads like nothing in particular."""

Events: TypeAlias = list[tuple[int, str, str]]
Session: TypeAlias = Callable[[str], list[Step]]
each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


def _events(dialect: Dialect, steps: Iterable[Step]) -> Events:
    """(round, action, detector) of everything that the guard would have done."""
    conversation = Conversation(dialect)
    conversation.add({"user": "look into it"})
    for step in expand(list(steps)):
        conversation.add(step)
    seen = review(parse(dialect, conversation.request()), Policy())
    return [(each.round, each.action, each.detector) for each in seen.interventions]


def _bash(command: str, result: str) -> dict[str, object]:
    return {"tool": "bash", "args": {"command": command}, "result": result}


def _told(dialect: Dialect, session: Session, texts: Iterable[str] = TEXTS) -> list[tuple[str, Events]]:
    """The texts with which the guard says anything."""
    told = ((text, _events(dialect, session(text))) for text in texts)
    return [(text, events) for text, events in told if events]


def _other(dialect: Dialect, session: Session, texts: Iterable[str] = TEXTS) -> list[tuple[str, Events]]:
    """The texts with which the guard says anything else than with any other text in their place."""
    usual = _events(dialect, session(ANY_OTHER))
    assert usual, "this session is to be ended"
    seen = ((text, _events(dialect, session(text))) for text in texts)
    return [(text, events) for text, events in seen if events != usual]


def _own(text: str) -> ClientText | None:
    """The client's text that it is, where it comes with the error flag."""
    return match_client_text(text, is_error=True, has_flag=True)


# ----------------------------------------------------------------------------------------------------------- as success


def _in_a_log(text: str) -> list[Step]:
    log = "12:0{i} opened log {i}\n" + text.replace("{i}", "") + "\n12:0{i} closed log {i}"
    return [
        {
            "times": 8,
            "steps": [
                _bash("cat log{i}", log),
                {"tool": "edit_file", "args": {"path": "f{i}", "new": "x"}, "result": "ok"},
            ],
        }
    ]


def _in_a_page(text: str) -> list[Step]:
    pages = ((f"https://docs.test/{number}", f"Page {number}\n\n{text}\n\nNext page") for number in range(8))
    return [{"tool": "fetch_page", "args": {"url": url}, "result": page} for url, page in pages]


def _behind_an_exit_code(text: str) -> list[Step]:
    return [_bash(f"cat log{number}", f"Exit code: 0\nOutput:\n{text}") for number in range(8)]


def _in_a_body(text: str) -> list[Step]:
    return [_bash(f"cat log{number}", json.dumps({"output": text, "exit_code": 0})) for number in range(8)]


def _between_work(text: str) -> list[Step]:
    pairs = ((_bash(f"cat log{number}", text), _bash(f"touch f{number}", f"made {number}")) for number in range(5))
    return [step for pair in pairs for step in pair]


@each_dialect
@pytest.mark.parametrize("session", [_in_a_log, _in_a_page, _behind_an_exit_code, _in_a_body, _between_work])
def test_as_output_of_a_tool_that_works_every_text_is_silent(session: Session, dialect: Dialect) -> None:
    """Printed by five or eight different calls, not even a hint."""
    assert _told(dialect, session) == []


@each_dialect
def test_once_every_text_is_silent(dialect: Dialect) -> None:
    """One result that is nothing but the text says nothing yet, whatever it is."""
    assert _told(dialect, lambda text: [_bash("cat log", text), _bash("touch f", "made")]) == []


@each_dialect
def test_a_session_that_reads_every_text_is_silent(dialect: Dialect) -> None:
    """A search through the sources of a guard finds all of them, one after the other."""
    session = [_bash(f"grep -n text{number} src", f"{number}: {text}") for number, text in enumerate(TEXTS)]

    assert _events(dialect, session) == []


@pytest.mark.parametrize("flag", [{}, {"error": False}], ids=["without the flag", "with the flag of success"])
def test_a_success_in_messages_is_a_success(flag: dict[str, bool]) -> None:
    """A text whose client sets the error flag is output without it, as often as it is printed, and work in between or
    not. Some clients refuse a call without the flag; their texts are taken for what they are."""
    texts = [text for text in TEXTS if match_client_text(text, is_error=False, has_flag=True) is None]
    # An exit code, or an error and nothing else, says more than an absent flag.
    texts = [text for text in texts if flag or not text.startswith(("Error", "Exit code", "{"))]

    assert len(texts) > 80
    assert _told("messages", lambda text: [{**_bash(f"cat log{n}", text), **flag} for n in range(13)], texts) == []


# ----------------------------------------------------------------------------------------------------------- as failure


def _other_commands_fail(text: str) -> list[Step]:
    return [_bash(f"make part{number}", f"Exit code: 2\nOutput:\n{number} {text}") for number in range(13)]


def _other_commands_fail_alike(text: str) -> list[Step]:
    return [_bash(f"make part{number}", f"Exit code: 2\nOutput:\n{text}") for number in range(7)]


def _one_command_fails(text: str) -> list[Step]:
    return [_bash("make", f"Exit code: 2\nOutput:\n{text}") for _ in range(9)]


FAILING = pytest.mark.parametrize("session", [_other_commands_fail, _other_commands_fail_alike, _one_command_fails])


@each_dialect
@FAILING
def test_a_command_that_fails_with_a_text_is_ended_like_any_other(session: Session, dialect: Dialect) -> None:
    """Behind an exit code every text is a failure of the command: no sooner, no later, the same notes."""
    assert _other(dialect, session) == []


def _flagged(steps: Iterable[Step]) -> list[Step]:
    return [{**step, "error": True} for step in steps]


@FAILING
def test_a_flagged_failure_is_ended_like_any_other(session: Session) -> None:
    """The same with the error flag, and with the flag alone around a text that stands inside a longer output."""
    assert _other("messages", lambda text: _flagged(session(text))) == []
    assert _other("messages", lambda text: _flagged(_bash(f"make p{n}", f"p{n}:\n{text}\n.") for n in range(7))) == []


def test_a_flagged_failure_that_is_nothing_but_a_text_nobody_owns() -> None:
    """With the error flag it is a failure like any other."""
    texts = [text for text in TEXTS if _own(text) is None]

    assert len(texts) >= len(LOOK_ALIKES)
    assert _other("messages", lambda text: _flagged(_bash(f"make p{n}", text) for n in range(7)), texts) == []
    assert _other("messages", lambda text: _flagged(_bash("make", text) for _ in range(9)), texts) == []


def _whole(text: str, *, flagged: bool, varied: bool) -> list[Step]:
    steps = [_bash(f"make p{number}" if varied else "make", text) for number in range(8)]
    return _flagged(steps) if flagged else list(steps)


@each_dialect
@pytest.mark.parametrize("varied", [True, False], ids=["other commands", "one command"])
def test_a_clients_own_refusal_is_one(dialect: Dialect, varied: bool) -> None:
    """Where it is the whole result, and flagged where there is a flag, it is told at the second and ended by the sixth.
    The very same command is held back at once where the refusal stands. Words of the user are no refusal of that kind:
    they steer."""
    texts = [
        text for text in TEXTS if (own := _own(text)) is not None and own.outcome == "denied" and not own.user_words
    ]
    final = {text for text in texts if not varied and getattr(_own(text), "category", "") in FINAL}
    seen = {text: _events(dialect, _whole(text, flagged=dialect == "messages", varied=varied)) for text in texts}

    assert len(texts) > 50
    assert bool(final) != varied
    assert {text: seen[text] for text in final if seen[text] != [(2, "block", "denied-call")]} == {}
    assert {text: seen[text] for text in texts if text not in final and not _told_and_ended(seen[text])} == {}


def _told_and_ended(events: Events) -> bool:
    """The very same call is held back at once; other calls are told of and then ended."""
    if events == [(2, "block", "denied-call")]:
        return True
    return events[:1] == [(2, "hint", "denied-call")] and events[-1][0] <= 6 and events[-1][1] != "hint"


@each_dialect
def test_a_clients_own_failure_is_ended_as_one(dialect: Dialect) -> None:
    """A client's text for a call that failed, was wrong or went to an unknown tool is ended at the sixth at the latest,
    as the tool's own failure would be. What never ran, and what may pass by itself, is not counted here."""
    ended = ("failed", "invalid_arguments", "unknown_tool")
    texts = [text for text in TEXTS if (own := _own(text)) is not None and own.outcome in ended]
    seen = {text: _events(dialect, _whole(text, flagged=True, varied=True)) for text in texts}

    assert len(texts) > 30
    assert {
        text: events for text, events in seen.items() if not events or events[-1][0] > 6 or events[-1][1] == "hint"
    } == {}


@pytest.mark.parametrize("dialect", ["chat", "responses"])
def test_a_text_without_a_flag_that_nobody_owns_is_an_answer(dialect: Dialect) -> None:
    """Sixteen equal answers to other calls end the run, whatever they say: so a refusal that no table knows ends, and
    nothing that only reads like one ends sooner."""
    texts = [text for text in TEXTS if _own(text) is None and not text.startswith(("ERROR", "{"))]

    assert _other(dialect, lambda text: [_bash(f"make p{n}", text) for n in range(17)], texts) == []
