"""What is a refusal and what only looks like one: the cases, the same streamed, and what real exceptions look like."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from litellm_toolguard.refusals import CATEGORY, POLICY_CODES, ProviderError, Refusal, in_answer, in_error, in_event
from litellm_toolguard.stream import assembler
from litellm_toolguard.transcript import Dialect
from tests.conversation import DIALECTS
from tests.refusal_cases import (
    ANSWERS,
    CYBER,
    DETAILS,
    ERRORS,
    EVENTS,
    FILTERED,
    POSSIBLE,
    REFUSED,
    WRAPPED,
    AnswerCase,
    Json,
    chat,
    choice,
    fields,
    guardrail,
    message,
    policy,
)

each_answer = pytest.mark.parametrize("case", ANSWERS.values(), ids=ANSWERS)
each_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@each_answer
def test_an_answer(case: AnswerCase) -> None:
    """It is the refusal that the case says; none where it says none."""
    assert in_answer(case.dialect, case.answer) == case.refusal


@pytest.mark.parametrize(("error", "refusal"), ERRORS.values(), ids=ERRORS)
def test_an_error(error: ProviderError, refusal: Refusal | None) -> None:
    """It is the refusal that the case says; none where it says none."""
    assert in_error(error) == refusal


@pytest.mark.parametrize(("event", "refusal"), EVENTS.values(), ids=EVENTS)
def test_an_event(event: Json, refusal: Refusal | None) -> None:
    """It is the refusal that the case says; none where it says none."""
    assert in_event(event) == refusal


def test_what_is_none_is_tested_as_hard_as_what_is_one() -> None:
    """In every dialect, and of errors and events: at least as many cases are no refusal for certain as are one."""
    groups: dict[str, list[Refusal | None]] = {
        dialect: [case.refusal for case in ANSWERS.values() if case.dialect == dialect] for dialect in DIALECTS
    }
    groups |= {"errors": [found for _, found in ERRORS.values()], "events": [found for _, found in EVENTS.values()]}

    for name, found in groups.items():
        certain = [each for each in found if each is not None and each.certain]
        assert len(found) >= 2 * len(certain), name


POLICIES = (
    *("bio_policy", "content_filter", "content_policy_violation", "cyber_policy", "data_inspection_failed"),
    *("DataInspectionFailed", "image_content_policy_violation", "invalid_prompt", "misalignment_policy_violation"),
    *("moderation_blocked", "ResponsibleAIPolicyViolation"),
)


@pytest.mark.parametrize("code", POLICIES)
def test_every_code_of_a_policy_is_one(code: str) -> None:
    """As the code, the type, in the body, in the text, whatever its letters; a longer one is none."""
    for error in (
        ProviderError(400, code=code.upper()),
        ProviderError(400, body={"type": code}),
        ProviderError(400, body={"error": {"innererror": {"code": code}}}),
        ProviderError(400, body={"provider_specific_fields": {"inner_error": {"code": code}}}),
        ProviderError(400, message=f'XException - {{"error": {{"code": "{code}"}}}}'),
    ):
        found = in_error(error)
        assert found is not None, error
        assert (found.kind, found.certain, found.category) == ("policy_error", True, code.lower())
    assert in_error(ProviderError(400, code=f"{code}_not_supported")) is None


def test_the_table_of_codes_is_whole() -> None:
    """Each has its test."""
    assert {code.lower() for code in POLICIES} == POLICY_CODES


@pytest.mark.parametrize(
    "words",
    [
        "Content Exists Risk",
        "Input data may contain inappropriate content.",
        "Input text data may contain inappropriate content.",
        "Invalid prompt: we've limited access to this content for safety reasons.",
        "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
        "Output blocked by content filtering policy",
        "Output data may contain inappropriate content.",
        "The response was filtered due to the prompt triggering Microsoft's content management policy.",
        "Your request was rejected as a result of our safety system.",
    ],
)
def test_the_beginning_of_a_message_tells_where_the_code_is_lost(words: str) -> None:
    """A quote of it tells nothing, nor does it beside a code of something else."""
    wrapped = f"{WRAPPED}XException - "

    assert in_error(ProviderError(400, message=wrapped + words, code="400")) == policy(words=words)
    assert in_error(ProviderError(400, message=f"{wrapped}Cannot parse: {words}")) is None
    assert in_error(ProviderError(400, message=wrapped + words, code="invalid_value")) is None


@pytest.mark.parametrize("code", ["", "400", "None", "BadRequest", "invalid_request_error"])
def test_a_code_that_names_no_cause_leaves_it_to_the_class(code: str) -> None:
    """Any other speaks against it."""
    assert in_error(ProviderError(400, ("ContentPolicyViolationError",), code, "No.")) == policy()
    assert in_error(ProviderError(400, ("ContentPolicyViolationError",), "string_above_max_length", "No.")) is None


@pytest.mark.parametrize(
    "name",
    [
        *("APIConnectionError", "AuthenticationError", "BudgetExceededError", "ContextWindowExceededError"),
        *("InternalServerError", "NotFoundError", "RateLimitError", "SensitiveDataRouteException", "Timeout"),
        "UnsupportedParamsError",
    ],
)
def test_an_error_of_another_class_is_none_whatever_it_says(name: str) -> None:
    """With the code of a policy, with the name of a guardrail, and with no status, too."""
    for status in (400, None):
        assert in_error(ProviderError(status, (name, "Exception"), "content_filter")) is None
        assert in_error(ProviderError(status, (name, "Exception"), guardrail="cf")) is None
        assert in_error(ProviderError(status, ("Exception",), "content_filter", f"litellm.{name}: No.")) is None


@pytest.mark.parametrize(
    "name", ["BlockedPiiEntityError", "GuardrailRaisedException", "ModifyResponseException", "RejectedRequestError"]
)
def test_a_guardrail_without_a_name_is_one_by_its_class(name: str) -> None:
    """A server's error is none."""
    assert in_error(ProviderError(400, (name, "Exception"), message="No.")) == guardrail("")
    assert in_error(ProviderError(500, (name, "Exception"), message="No.")) is None


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        *(("refusal", "refusal"), ("content_filter", "content_filter"), ("content_filtered", "content_filter")),
        ("guardrail_intervened", "intervened"),
    ],
)
def test_a_reason_says_the_same_in_every_place(reason: str, kind: str) -> None:
    """Whichever dialect's word it is, and wherever LiteLLM leaves it."""
    answers: list[tuple[Dialect, Json]] = [
        ("chat", chat(choice(reason))),
        ("chat", chat(choice(**fields(stop_reason=reason)))),
        ("chat", chat(choice(beside=fields(stop_reason=reason)))),
        ("chat", chat(choice(), **fields(stop_reason=reason))),
        ("messages", message(reason)),
        ("responses", {"output": [], **fields(stop_reason=reason)}),
        ("responses", {"output": [], "incomplete_details": {"reason": reason}}),
    ]

    assert {found.kind if found else None for found in (in_answer(*each) for each in answers)} == {kind}


@pytest.mark.parametrize("kind", ["thinking", "redacted_thinking", "reasoning"])
def test_a_thought_is_no_word(kind: str) -> None:
    """A stop behind nothing but thoughts may be a refusal that was lost."""
    thought = {"type": kind, "thinking": "I see.", "text": "I see."}

    assert in_answer("chat", chat(choice(content=[thought]))) == POSSIBLE
    assert in_answer("messages", message("end_turn", thought)) == POSSIBLE


@each_dialect
@pytest.mark.parametrize(
    "answer", [None, {}, {"choices": []}, {"content": None}, {"output": None}, {"choices": [None]}]
)
def test_what_is_no_answer_is_no_refusal(dialect: Dialect, answer: Json | None) -> None:
    """Nothing, and an answer without what makes it one."""
    assert in_answer(dialect, answer) is None


def test_words_of_others_stand_in_no_log() -> None:
    """Neither a refusal nor the facts of an error show them when they are written down."""
    secret = "the words of the user"
    error = ProviderError(400, message=secret, body={"code": "cyber_policy", "message": secret})
    refused = message("refusal", stop_details={"category": secret, "explanation": secret})
    found = [in_error(error), in_answer("messages", refused)]

    assert [each.explanation for each in found if each] == [secret, secret]
    assert secret not in repr([error, *found])


def test_words_and_names_are_bounded() -> None:
    """However long a provider's or a guardrail's are."""
    long = in_answer("chat", chat(choice(refusal="x" * 100_000)))
    named = in_error(ProviderError(400, guardrail="a\nb" + "x" * 1000))

    assert long is not None
    assert len(long.explanation) == 2_000
    assert named is not None
    assert named.guardrail == "a_b" + "x" * 61


def test_a_long_message_is_read_in_a_moment() -> None:
    """One that is made to be slow to read, too."""
    tricks = [
        "{" * 50_000,
        '{"' + '\\"' * 50_000,
        "{'a': " + "-" * 50_000,
        "{'a': " + "[" * 50_000,
        "litellm." * 50_000,
    ]
    tricks += ["Error: " * 20_000, "x" * 100_000 + "Error: ", '{"a": ' * 50_000, "{'a': " + "-" * 9_000 + "1}"]
    started = time.perf_counter()

    assert [in_error(ProviderError(400, message=text)) for text in tricks] == [None] * len(tricks)
    assert time.perf_counter() - started < 2


# ------------------------------------------------------------------------------------------------------------ streamed


def assembled(dialect: Dialect, events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The answer of a stream."""
    made = assembler(dialect)
    for event in events:
        made.feed(event)
    return made.answer()


def halves(value: Any) -> list[Any]:
    """A text in two fragments; anything else whole."""
    return [value[:1], value[1:]] if isinstance(value, str) else [value]


def chunk(index: int, delta: Json, finish: str | None = None, **beside: Any) -> Json:
    """A chunk of a chat answer."""
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish, **beside}]}


def chat_events(answer: Json) -> Iterator[Json]:
    """Fragments of every part; what the provider itself says of the end comes before the last chunk, as LiteLLM sends
    it."""
    for each in answer["choices"]:
        index, beside = each["index"], {key: each[key] for key in ("provider_specific_fields",) if key in each}
        yield chunk(index, {"role": "assistant", "content": ""})
        for key, value in each["message"].items():
            if key == "tool_calls":
                value = [{"index": place, **call} for place, call in enumerate(value)]
            for part in halves(value) if key != "role" else ():
                yield chunk(index, {key: part})
        if each["finish_reason"] is not None:
            yield chunk(index, {}, each["finish_reason"], **beside)
    if "trace" in answer:
        yield {"choices": [], "provider_specific_fields": {"trace": answer["trace"]}}
    if "provider_specific_fields" in answer:
        yield {"choices": [], "provider_specific_fields": answer["provider_specific_fields"]}


def message_events(answer: Json) -> Iterator[Json]:
    """Blocks in fragments; the reason and its details in the last event but one."""
    yield {"type": "message_start", "message": {"role": "assistant", "content": [], "stop_reason": None}}
    for index, block in enumerate(answer["content"]):
        begun = {**block, "text": ""} if block["type"] == "text" else block
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        for part in halves(block["text"]) if block["type"] == "text" else ():
            yield {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": part}}
        yield {"type": "content_block_stop", "index": index}
    ending = {key: answer[key] for key in ("stop_reason", "stop_details") if key in answer}
    yield {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 1}}
    yield {"type": "message_stop"}


def response_events(answer: Json, *, bare: bool = False) -> Iterator[Json]:
    """Every item, and a last event with all of them; a bare one leaves them out."""
    for index, each in enumerate(answer["output"]):
        yield {"type": "response.output_item.done", "output_index": index, "item": each}
    last = {**answer, "output": []} if bare else answer
    yield {"type": f"response.{answer['status']}", "response": last}


def streams(case: AnswerCase) -> Iterator[list[Json]]:
    """The answer as streams."""
    if case.dialect == "chat":
        yield list(chat_events(case.answer))
    elif case.dialect == "messages":
        yield list(message_events(case.answer))
    else:
        yield list(response_events(case.answer))
        yield list(response_events(case.answer, bare=True))


@each_answer
def test_streamed_it_is_the_same(case: AnswerCase) -> None:
    """The answer that is put together from its events is the same refusal, or none."""
    for events in streams(case):
        assert in_answer(case.dialect, assembled(case.dialect, events)) == case.refusal


def test_a_refusal_that_stands_in_events_of_its_own() -> None:
    """Of a server that sends neither the item nor the output of the last event."""
    done = {"type": "response.refusal.done", "output_index": 0, "content_index": 0, "refusal": "No."}
    last = {"type": "response.completed", "response": {"status": "completed", "output": []}}

    answer = assembled("responses", [{"type": "response.refusal.delta", "delta": "No."}, done, last])

    assert in_answer("responses", answer) == Refusal("refusal", certain=True, explanation="No.")


# As LiteLLM hands on what a provider streamed.
LITELLM_STREAMS: Mapping[str, tuple[Dialect, list[Json], Refusal]] = {
    "chat: Anthropic's refusal, with its details in a chunk of their own": (
        "chat",
        [
            chunk(0, {"content": "Hel", "role": "assistant"}),
            chunk(0, {**fields(stop_reason="refusal", stop_details=DETAILS), "content": ""}),
            chunk(0, {}, "content_filter"),
        ],
        CYBER,
    ),
    "chat: the first piece of a refusal, when it comes with the role": (
        "chat",
        [chunk(0, {"refusal": "I ", "role": "assistant"}), chunk(0, {}, "stop")],
        Refusal("refusal", certain=True, explanation="I "),
    ),
    "chat: a refusal of which nothing is left": (
        "chat",
        [chunk(0, {"content": "", "role": "assistant"}), chunk(0, {}, "stop")],
        POSSIBLE,
    ),
    "chat: a filter behind some of the text": (
        "chat",
        [chunk(0, {"content": "par", "role": "assistant"}), chunk(0, {}, "content_filter")],
        FILTERED,
    ),
    "chat: Gemini's block of the prompt": (
        "chat",
        [chunk(0, {"role": "assistant"}, "content_filter")],
        FILTERED,
    ),
    "messages: a filter of a chat model": (
        "messages",
        list(message_events(message("refusal", {"type": "text", "text": "par"}))),
        REFUSED,
    ),
    "responses: a refusal of Anthropic's": (
        "responses",
        [
            {
                "type": "response.incomplete",
                "response": {
                    "status": "incomplete",
                    "incomplete_details": {"reason": "content_filter"},
                    "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hel"}]}],
                    **fields(stop_reason="refusal", stop_details=DETAILS),
                },
            }
        ],
        CYBER,
    ),
}


@pytest.mark.parametrize(("dialect", "events", "refusal"), LITELLM_STREAMS.values(), ids=LITELLM_STREAMS)
def test_a_stream_as_litellm_hands_it_on(dialect: Dialect, events: list[Json], refusal: Refusal) -> None:
    """It is a refusal as far as LiteLLM leaves one to be seen."""
    assert in_answer(dialect, assembled(dialect, events)) == refusal


# ------------------------------------------------------------------------------------------------ LiteLLM's exceptions


def facts_of(error: Exception) -> ProviderError:
    """What the edge takes from an exception."""
    from litellm_toolguard import proxy_refusals

    return proxy_refusals.facts_of(error)


def mapped(provider: str, status: int, body: Json) -> Exception:
    """The exception that LiteLLM makes of a provider's HTTP error."""
    pytest.importorskip("litellm")
    from litellm import exception_type
    from litellm.llms.openai.common_utils import OpenAIError

    raised = OpenAIError(status, f"Error code: {status} - {body}", body=body["error"])
    with pytest.raises(Exception) as caught:  # noqa: PT011
        exception_type(model="m", original_exception=raised, custom_llm_provider=provider)
    return caught.value


def error_body(code: str | None, words: str = "No.", **more: Any) -> Json:
    """A provider's body of an HTTP error."""
    return {"error": {"message": words, "type": "invalid_request_error", "param": None, "code": code, **more}}


_INNER: Json = {"code": "ResponsibleAIPolicyViolation", "content_filter_result": {"jailbreak": {"filtered": True}}}
_RUDE: Json = error_body("invalid_value", "Invalid value: 'content_policy_violation'. Supported values are: 'auto'.")
REFUSED_BY: Mapping[str, tuple[str, Json]] = {
    "a content policy": ("openai", error_body("content_policy_violation")),
    "a content policy without a type": ("openai", error_body("content_policy_violation", type=None)),
    "the usage policy": ("openai", error_body("invalid_prompt", "Invalid prompt: violating our usage policy.")),
    "the usage policy in other words": ("openai", error_body("invalid_prompt")),
    "a cyber policy": ("openai", error_body("cyber_policy")),
    "a bio policy": ("openai", error_body("bio_policy")),
    "Azure's filter": ("azure", error_body("content_filter", innererror=_INNER)),
    "Azure's filter in short": ("azure", error_body("content_filter", type=None)),
    "a compatible server": ("hosted_vllm", error_body("content_filter")),
}
NOT_REFUSED_BY: Mapping[str, tuple[str, int, Json]] = {
    "a value that reads like a policy": ("openai", 400, _RUDE),
    "a value that reads like a policy on Azure": ("azure", 400, _RUDE),
    "a schema": ("openai", 400, error_body("invalid_function_parameters", "Invalid schema for 'content_filter'")),
    "a window": ("openai", 400, error_body("context_length_exceeded", "content_filter")),
    "a rate": ("openai", 429, error_body("rate_limit_exceeded", "content_filter")),
    "a key": ("openai", 401, error_body("invalid_api_key", "content_filter")),
    "a server": ("openai", 500, error_body(None, "content_filter")),
    "an answer that the model spoilt": ("azure", 500, error_body(None, "The model produced invalid content.")),
}


@pytest.mark.parametrize(("provider", "body"), REFUSED_BY.values(), ids=REFUSED_BY)
def test_what_litellm_makes_of_a_policy(provider: str, body: Json) -> None:
    """It is a refusal, whichever class it came to be."""
    found = in_error(facts_of(mapped(provider, 400, body)))

    assert found is not None
    assert (found.kind, found.certain) == ("policy_error", True)
    assert found.category == ("jailbreak" if "innererror" in body["error"] else body["error"]["code"])


@pytest.mark.parametrize(("provider", "status", "body"), NOT_REFUSED_BY.values(), ids=NOT_REFUSED_BY)
def test_what_litellm_makes_of_other_errors(provider: str, status: int, body: Json) -> None:
    """It is no refusal, also where LiteLLM takes the user's words for a policy."""
    assert in_error(facts_of(mapped(provider, status, body))) is None


def test_litellm_takes_words_of_the_user_for_a_policy() -> None:
    """Why the class alone does not decide. When this fails, LiteLLM reads codes, and the rule about them can go."""
    pytest.importorskip("litellm")
    from litellm.exceptions import ContentPolicyViolationError

    assert isinstance(mapped("openai", 400, _RUDE), ContentPolicyViolationError)


def test_what_guardrails_raise() -> None:
    """LiteLLM's exceptions as they are: a block that was judged, one that was not, and what is no block."""
    pytest.importorskip("litellm")
    from fastapi import HTTPException
    from litellm import exceptions as raised

    judged = raised.GuardrailRaisedException("cf", "No.", blocked_content=True)
    unjudged = raised.GuardrailRaisedException("cf", "It is unreachable.")
    detail = {"error": "No.", "guardrail_name": "cf", "guardrail_mode": ["pre_call"]}
    elsewhere = raised.SensitiveDataRouteException("m", "s", "cf")

    blocks = [judged, raised.BlockedPiiEntityError("EMAIL", "cf"), HTTPException(400, detail)]
    blocks.append(raised.ModifyResponseException("No.", "m", {}, "cf"))
    found = [in_error(facts_of(each)) for each in [*blocks, unjudged]]

    assert [(each.kind, each.guardrail, each.certain) for each in found if each] == [
        *[("guardrail", "cf", True)] * 4,
        ("guardrail", "cf", False),
    ]
    assert in_error(replace(facts_of(HTTPException(400, "No.")), guardrail="cf")) is not None
    assert in_error(facts_of(HTTPException(400, "No."))) is None
    assert in_error(facts_of(HTTPException(500, detail))) is None
    assert in_error(facts_of(elsewhere)) is None


# ---------------------------------------------------------------------------------------------------------- properties

_KEYS = st.sampled_from(
    [
        *(
            "choices",
            "message",
            "content",
            "refusal",
            "finish_reason",
            "tool_calls",
            "provider_specific_fields",
            "type",
        ),
        *("stop_reason", "stop_details", "category", "explanation", "status", "output", "incomplete_details", "reason"),
        *("error", "code", "innererror", "content_filter_results", "hate", "filtered", "guardrail_name", "text"),
        *("trace", "guardrail", "response", "detail", "delta", "index", "item", "output_index"),
    ]
)
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(399, 430),
    st.floats(),
    st.text("a \n«0", max_size=8),
    st.sampled_from(
        ["refusal", "content_filter", "stop", "end_turn", "completed", "failed", "message", "error", "text"]
    ),
    st.sampled_from(
        ["response.failed", "response.refusal.done", "guardrail_intervened", "cyber_policy", "400", "x\ny"]
    ),
    st.sampled_from(['{"code": "cyber_policy"}', "{'code': 'cyber_policy'}", "litellm.XError: {", "litellm.Timeout: "]),
)
_JSON = st.recursive(_LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4))
_OBJECTS = st.dictionaries(_KEYS, _JSON, max_size=5)
_CHAT_LIKE = st.fixed_dictionaries({"choices": st.lists(_OBJECTS, max_size=3)}, optional={"trace": _JSON})
_NAMES = st.sampled_from(["ContentPolicyViolationError", "HTTPException", "GuardrailRaisedException", "RateLimitError"])
_ERRORS = st.builds(
    ProviderError,
    status=st.none() | st.sampled_from([200, 400, 403, 422, 429, 500]),
    type_names=st.lists(_NAMES, max_size=2).map(tuple),
    code=st.text("a \n«0", max_size=9) | st.sampled_from(["cyber_policy", "400", "invalid_value", "٤٠٠"]),
    message=st.text("{}'\": a", max_size=40)
    | st.sampled_from(['XError: {"a": 1', "XError: {'a': }", "litellm.XError: {} x"]),
    body=st.none() | _OBJECTS,
    guardrail=st.text("a \n«0", max_size=80),
    judged=st.sampled_from([None, True, False]),
)


# Examples do not change from run to run.
any_value = settings(
    max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)


def is_sound(found: Refusal | None) -> bool:
    """Whether everything but the explanation may stand in a log, and the explanation does not."""
    if found is None:
        return True
    bounded = len(found.guardrail) <= 64 and len(found.explanation) <= 2_000
    return bounded and CATEGORY.fullmatch(found.category) is not None and "explanation" not in repr(found)


@each_dialect
@any_value
@given(answer=_OBJECTS | _CHAT_LIKE)
def test_any_json_is_read(dialect: Dialect, answer: Json) -> None:
    """Whatever an answer holds, it is a refusal that may be logged, or none."""
    assert is_sound(in_answer(dialect, answer))


@any_value
@given(event=_OBJECTS)
def test_any_event_is_read(event: Json) -> None:
    """Whatever an event holds, it is a refusal that may be logged, or none."""
    assert is_sound(in_event(event))


@any_value
@given(error=_ERRORS)
def test_any_error_is_read(error: ProviderError) -> None:
    """Whatever an error says. Only a request that was refused with a status of a refusal is one."""
    found = in_error(error)

    assert is_sound(found)
    assert found is None or error.status in (None, 400, 403, 422)


@each_dialect
@any_value
@given(events=st.lists(_OBJECTS | _CHAT_LIKE, max_size=5))
def test_any_stream_is_read(dialect: Dialect, events: list[Json]) -> None:
    """Whatever is put together from its events."""
    assert is_sound(in_answer(dialect, assembled(dialect, events)))


@any_value
@given(words=st.text(max_size=60), category=st.text(max_size=80))
def test_an_explanation_stands_in_no_text_of_the_refusal(words: str, category: str) -> None:
    """Nor does a category that is no machine word."""
    details = {"category": category, "explanation": f"«{words}»"}
    found = in_answer("messages", message("refusal", stop_details=details))

    assert found is not None
    assert "«" not in repr(found)
    assert found.category in ("", category)
