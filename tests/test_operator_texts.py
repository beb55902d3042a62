"""What the operator says of results: what an entry matches, what it does not, and that a match costs little."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from litellm_toolguard.operator_texts import MAX_LINE_CHARS, OperatorText, match_operator_text
from litellm_toolguard.outcomes import Outcome, outcome_of
from litellm_toolguard.policy import ToolRule
from litellm_toolguard.policy_reading import load_policy, policy_schema
from litellm_toolguard.transcript import Dialect, Exchange, Location, ToolCall, ToolResult
from tests.conversation import DIALECTS


def entry(**keys: Any) -> OperatorText:
    return OperatorText.model_validate({"outcome": "failed", **keys})


def fits(text: str, *, is_error: bool | None = None, has_flag: bool = False, **keys: Any) -> bool:
    return match_operator_text((entry(**keys),), text, is_error=is_error, has_flag=has_flag) is not None


def outcome(dialect: Dialect, text: str, *entries: OperatorText, is_error: bool | None = None) -> Outcome:
    here = Location(0)
    call = ToolCall("c", "release", {}, here)
    return outcome_of(dialect, Exchange(call, ToolResult(text, is_error, "", here, True)), entries)


# --------------------------------------------------------------------------------------------------------- the matcher


PARTS = st.text(st.sampled_from("ab?*[]!"), min_size=1, max_size=12)


@given(glob=PARTS, line=st.text(st.sampled_from("ab[]!"), max_size=14))
def test_a_glob_matches_what_a_shell_would_match_without_classes(glob: str, line: str) -> None:
    """The standard library as the second opinion, its brackets escaped."""
    if not glob.strip("*?"):
        return
    assert fits(line, glob=glob) == fnmatchcase(line, glob.replace("[", "[[]"))


@given(glob=PARTS, data=st.data())
def test_a_glob_matches_every_text_it_describes(glob: str, data: st.DataObject) -> None:
    """Each star filled with any text, each question mark with any character."""
    if not glob.strip("*?"):
        return
    some = st.text(st.sampled_from("ab[ "), max_size=5)
    fills = {"*": some, "?": st.sampled_from("ab[")}
    text = "".join(data.draw(fills[char]) if char in fills else char for char in "x" + glob + "x")

    assert fits(text, glob="x" + glob + "x")


@pytest.mark.parametrize("glob", [98 * "*a" + "*b", 65 * "*?a" + "*b", 66 * "*a?" + "b", "*" + 99 * "?a"])
def test_a_glob_made_to_backtrack_has_nothing_to_backtrack_to(glob: str) -> None:
    """A matcher that tries every split of the text would not come back from these."""
    assert not fits(MAX_LINE_CHARS * "a" + "c", glob=glob + "z")
    assert not fits((MAX_LINE_CHARS - 1) * "a" + "c", glob=glob + "z")


def test_a_line_longer_than_what_is_read_fits_only_where_the_end_is_open() -> None:
    """What stands behind the first 400 characters is not known."""
    long = "locked " + MAX_LINE_CHARS * "a"

    assert fits(long, glob="locked *")
    assert not fits(long, glob="locked *a")
    assert fits(long[:MAX_LINE_CHARS], glob="locked *a")
    assert not fits(long + " by me", glob="* by *")


@pytest.mark.parametrize("text", ["locked by me", "  \nlocked by me", "locked by me\r\nmore", "locked by me  \n\nmore"])
def test_a_glob_is_the_first_line_and_a_start_the_start(text: str) -> None:
    """White space before the result and at the end of the line is nothing that a tool says."""
    assert fits(text, glob="locked by me")
    assert fits(text, glob="l?cked*")
    assert fits(text, starts_with="locked by")
    assert not fits("x " + text, starts_with="locked by")
    assert not fits("x\n" + text, glob="locked*")
    assert not fits(text, glob="Locked*")


BODY = '{"state": "refused", "code": 3, "done": true, "rate": 1.0, "in": {"a": {"b": "c"}}, "list": ["refused"]}'


@pytest.mark.parametrize(
    ("field", "value"),
    [("state", "refused"), ("code", 3), ("code", 3.0), ("done", True), ("rate", 1), ("in.a.b", "c")],
)
def test_a_field_with_its_value_fits(field: str, value: Any) -> None:
    """Text, numbers and booleans, also in objects within the object."""
    assert fits(BODY, field=field, equals=value)
    assert fits("\n" + BODY, field=field, equals=value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", "Refused"),
        ("code", "3"),
        ("code", True),
        ("done", 1),
        ("done", "true"),
        ("rate", True),
        ("in.a", "c"),
        ("in.a.b.c", "c"),
        ("in.list", "c"),
        ("list", "refused"),
        ("nothing", ""),
    ],
)
def test_a_field_with_another_value_does_not(field: str, value: Any) -> None:
    """Values are compared as JSON compares them."""
    assert not fits(BODY, field=field, equals=value)


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", '"state"', "{" * 5_000, '{"state":' * 3_000, " " * 99, "{]"])
@pytest.mark.parametrize("more", ["", "}", "\ud800", "\x00\r"])
def test_no_text_breaks_a_match(text: str, more: str) -> None:
    """Whatever a tool returns, an entry fits or it does not."""
    assert not fits(text + more, field="state", equals="never said")
    assert not fits(text + more, starts_with="never said")
    assert not fits(text + more, glob="never said*")


def test_a_body_that_is_data_is_no_answer() -> None:
    """A JSON text beyond 20,000 characters is not read."""
    assert not fits('{"state": "refused", "rows": "' + 20_000 * "x" + '"}', field="state", equals="refused")


# --------------------------------------------------------------------------------------------------------- the outcome


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("is_error", [None, True, False])
def test_the_operator_knows_better_than_flag_client_and_shape(dialect: Dialect, is_error: bool | None) -> None:
    """In both directions, and it is said how it is known."""
    denied = entry(starts_with="no", outcome="denied")
    fine = entry(glob="Permission denied by *", outcome="succeeded")

    assert outcome(dialect, "not now", denied, is_error=is_error) == Outcome("denied", "operator", "policy_blocked")
    assert outcome(dialect, "Permission denied by user", fine, is_error=is_error) == Outcome("succeeded", "operator")


@pytest.mark.parametrize(
    ("dialect", "is_error", "counts"),
    [("messages", True, True), ("messages", None, False), ("messages", False, False), ("chat", None, True)],
)
def test_an_entry_that_needs_the_flag(dialect: Dialect, is_error: bool | None, counts: bool) -> None:
    """As a client's text does: where the dialect has a flag, only with it."""
    needs = entry(starts_with="no", outcome="denied", category="hook_blocked", with_error_flag=True)

    found = outcome(dialect, "not now", needs, is_error=is_error)

    assert (found == Outcome("denied", "operator", "hook_blocked")) == counts


def test_a_call_without_a_result_is_pending_whatever_the_operator_knows() -> None:
    """There is no text to go by."""
    call = ToolCall("c", "release", {}, Location(0))

    assert outcome_of("chat", Exchange(call, None), (entry(glob="?*x"),)).kind == "pending"


# ---------------------------------------------------------------------------------------------------------- the policy


def test_a_tool_has_the_entries_of_all_its_rules_in_order() -> None:
    """The rule for one tool stands before the one for all; another tool has the latter alone."""
    policy = load_policy(
        {
            "tools": [
                {"match": "release", "results": [{"glob": "a*", "outcome": "denied"}]},
                {"match": "*", "role": "read"},
                {"match": "*", "results": [{"glob": "b*", "outcome": "failed"}]},
            ]
        }
    )

    assert [text.glob for text in policy.results("release")] == ["a*", "b*"]
    assert [text.glob for text in policy.results("other")] == ["b*"]
    assert load_policy({}).results("release") == ()


def test_policies_that_differ_in_a_value_alone_are_told_apart() -> None:
    """Also behind the look-ups that are remembered: `true` is not 1."""

    def of(value: Any) -> Any:
        rule = {"match": "a", "results": [{"field": "ok", "equals": value, "outcome": "failed"}]}
        return load_policy({"tools": [rule]}).results("a")[0].equals

    assert [of(True), of(1), of("1"), of(1.5)] == [True, 1, "1", 1.5]
    assert [type(of(value)) for value in (True, 1, "1", 1.5)] == [bool, int, str, float]


def test_every_key_of_an_entry_is_described_in_the_schema() -> None:
    """`toolguard check --schema` is where editors look."""
    entries = policy_schema()["$defs"]

    assert set(entries["OperatorText"]["properties"]) == set(OperatorText.model_fields)
    assert all(value.get("description") for value in entries["OperatorText"]["properties"].values())
    assert entries["ToolRule"]["properties"]["results"]["description"] == ToolRule.model_fields["results"].description
