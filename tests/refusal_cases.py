"""Refusals, and what only looks like one, as data. Each case is a sentence; the words in them are invented."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from litellm_toolguard.refusals import ProviderError, Refusal
from litellm_toolguard.transcript import Dialect

Json: TypeAlias = dict[str, Any]

POSSIBLE = Refusal("refusal", certain=False)
NO = "I can't help with that."
DETAILS: Json = {"type": "refusal", "category": "cyber", "explanation": "This could enable cyber harm."}
CYBER = Refusal("refusal", certain=True, category="cyber", explanation="This could enable cyber harm.")
FILTERED = Refusal("content_filter", certain=True)
REFUSED = Refusal("refusal", certain=True)
SAID_NO = Refusal("refusal", certain=True, explanation=NO)
CALL: Json = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


@dataclass(frozen=True, slots=True)
class AnswerCase:
    """An answer, and the refusal that it is; None for an answer like any other.

    Args:
        dialect: its dialect.
        answer: the whole of it in the dialect's plain form.
        refusal: what it is.
    """

    dialect: Dialect
    answer: Json
    refusal: Refusal | None = None


# ---------------------------------------------------------------------------------------------------------------- chat


def choice(finish: str | None = "stop", *, beside: Json | None = None, **message: Any) -> Json:
    """One choice of a chat answer."""
    return {"message": {"role": "assistant", **message}, "finish_reason": finish, **(beside or {})}


def chat(*choices: Json, **more: Any) -> Json:
    """A chat answer."""
    return {"choices": [{"index": index, **each} for index, each in enumerate(choices)], **more}


def fields(**kept: Any) -> Json:
    """LiteLLM's place for what a provider said in its own form."""
    return {"provider_specific_fields": kept}


_HATE: Json = {"hate": {"filtered": False, "severity": "safe"}, "jailbreak": {"filtered": True, "detected": True}}

CHAT: Mapping[str, AnswerCase] = {
    name: AnswerCase("chat", answer, refusal)
    for name, answer, refusal in (
        ("the model refuses in its own field", chat(choice(content=None, refusal=NO)), SAID_NO),
        ("the field of a refusal stands beside a text", chat(choice(content="Well.", refusal=NO)), SAID_NO),
        ("a refusal as a part of the content", chat(choice(content=[{"type": "refusal", "refusal": NO}])), SAID_NO),
        ("a refusal that was cut at its length", chat(choice("length", content=None, refusal=NO)), SAID_NO),
        ("a refusal beside calls", chat(choice("tool_calls", content=None, refusal=NO, tool_calls=[CALL])), SAID_NO),
        ("a filter stopped the answer", chat(choice("content_filter", content=None)), FILTERED),
        (
            "a filter stopped the answer behind some of its text",
            chat(choice("content_filter", content="The")),
            FILTERED,
        ),
        (
            "a filter stopped an answer with calls",
            chat(choice("content_filter", content=None, tool_calls=[CALL])),
            FILTERED,
        ),
        (
            "Azure's filter says which of its categories it was",
            chat(choice("content_filter", content="The", beside=fields(content_filter_results=_HATE))),
            Refusal("content_filter", certain=True, category="jailbreak"),
        ),
        (
            "Anthropic's refusal with its details",
            chat(choice("content_filter", content="Hel", **fields(stop_reason="refusal", stop_details=DETAILS))),
            CYBER,
        ),
        (
            "Anthropic's refusal without details",
            chat(choice("content_filter", content=None, **fields(stop_reason="refusal"))),
            REFUSED,
        ),
        (
            "Anthropic's refusal whose details are empty",
            chat(
                choice(
                    "content_filter",
                    **fields(stop_reason="refusal", stop_details={"category": None, "explanation": None}),
                )
            ),
            REFUSED,
        ),
        (
            "Bedrock's guardrail intervened and left its own words",
            chat(
                choice("content_filter", content="Sorry, the model cannot answer this question."),
                trace={"guardrail": {"inputAssessment": {}}},
            ),
            Refusal("intervened", certain=True),
        ),
        (
            "Bedrock's guardrail intervened in a stream",
            chat(choice("content_filter", content="Sorry."), **fields(trace={"guardrail": {}})),
            Refusal("intervened", certain=True),
        ),
        ("Gemini blocked the prompt", chat(choice("content_filter", content=None)), FILTERED),
        (
            "all of several choices are refused",
            chat(choice("content_filter"), choice(content=None, refusal=NO)),
            FILTERED,
        ),
        (
            "of several choices one is refused and one is empty",
            chat(choice(content=""), choice("content_filter")),
            FILTERED,
        ),
        (
            "of several choices one is refused and the rest had not begun",
            chat(choice(None), choice("content_filter")),
            FILTERED,
        ),
        ("a stop with neither a word nor a call", chat(choice(content=None)), POSSIBLE),
        ("a stop with an empty text", chat(choice(content="")), POSSIBLE),
        ("a stop with blanks alone", chat(choice(content=" \n")), POSSIBLE),
        ("a stop with an empty part", chat(choice(content=[{"type": "text", "text": ""}])), POSSIBLE),
        ("a stop behind thoughts alone", chat(choice(content=None, reasoning_content="The user wants...")), POSSIBLE),
        ("a broken call of Gemini's, which LiteLLM shows as an empty stop", chat(choice(content=None)), POSSIBLE),
        ("a model says no in plain words", chat(choice(content=NO)), None),
        ("a model quotes a filter", chat(choice(content='It said finish_reason "content_filter".')), None),
        ("calls", chat(choice("tool_calls", content=None, tool_calls=[CALL])), None),
        ("calls that end with a plain stop", chat(choice(content=None, tool_calls=[CALL])), None),
        ("a legacy call", chat(choice("function_call", function_call={"name": "look", "arguments": "{}"})), None),
        ("a text that was cut at its length", chat(choice("length", content="The")), None),
        ("a length that left no text", chat(choice("length", content=None)), None),
        ("an empty field for a refusal", chat(choice(content="Yes.", refusal="")), None),
        ("a field for a refusal that is no text", chat(choice(content="Yes.", refusal=False)), None),
        ("an answer in sound", chat(choice(content=None, audio={"id": "a"})), None),
        ("an answer in pictures", chat(choice(content=None, images=[{"type": "image_url"}])), None),
        (
            "Azure's filter saw something and let it pass",
            chat(choice(content="Yes.", beside=fields(content_filter_results=_HATE))),
            None,
        ),
        (
            "Bedrock's guardrail looked and let it pass",
            chat(choice(content="Yes."), trace={"guardrail": {"inputAssessment": {}}}),
            None,
        ),
        (
            "Anthropic's details of an ordinary end",
            chat(choice(content="Yes.", **fields(stop_reason="end_turn", stop_details={"type": "end_turn"}))),
            None,
        ),
        (
            "of several choices one answers",
            chat(choice("content_filter", content="The"), choice(content="Yes.")),
            None,
        ),
        (
            "of several choices one calls a tool",
            chat(choice(content=None, refusal=NO), choice("tool_calls", tool_calls=[CALL])),
            None,
        ),
        (
            "of several choices one is empty and one answers",
            chat(choice(content=""), choice(content="Yes.")),
            None,
        ),
        (
            "of several choices one was still talking when another was stopped",
            chat(choice(None, content="The"), choice("content_filter")),
            None,
        ),
    )
}

# ------------------------------------------------------------------------------------------------------------ messages


def message(stop: str | None, *content: Json, **more: Any) -> Json:
    """A Messages answer."""
    return {"type": "message", "role": "assistant", "content": list(content), "stop_reason": stop, **more}


def text(words: str) -> Json:
    """A block of text."""
    return {"type": "text", "text": words}


_USE: Json = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
_THOUGHT: Json = {"type": "thinking", "thinking": "The user wants...", "signature": "xx"}

MESSAGES: Mapping[str, AnswerCase] = {
    name: AnswerCase("messages", answer, refusal)
    for name, answer, refusal in (
        ("a refusal with its details", message("refusal", text("Hel"), stop_details=DETAILS), CYBER),
        ("a refusal without details, as older models make it", message("refusal", text("Hel")), REFUSED),
        ("a refusal without any content", message("refusal"), REFUSED),
        (
            "a refusal whose category and explanation are null",
            message("refusal", stop_details={"type": "refusal", "category": None, "explanation": None}),
            REFUSED,
        ),
        (
            "a refusal of a chat model, through LiteLLM's bridge",
            message("refusal", text(NO), stop_details={"type": "refusal", "category": None, "explanation": NO}),
            SAID_NO,
        ),
        ("a refusal beside calls", message("refusal", _USE), REFUSED),
        (
            "a category that is no machine word is content",
            message("refusal", stop_details={"category": "the secret of the user", "explanation": "x"}),
            Refusal("refusal", certain=True, explanation="x"),
        ),
        (
            "Bedrock's guardrail intervened",
            message("guardrail_intervened", text("Sorry.")),
            Refusal("intervened", True),
        ),
        ("a turn that ends without content", message("end_turn"), POSSIBLE),
        ("a turn that ends with an empty text", message("end_turn", text("")), POSSIBLE),
        ("a turn that ends behind a thought", message("end_turn", _THOUGHT), POSSIBLE),
        ("a model says no in plain words", message("end_turn", text(NO)), None),
        ("words behind a thought", message("end_turn", _THOUGHT, text("Yes.")), None),
        ("calls", message("tool_use", _USE), None),
        ("calls that end the turn", message("end_turn", _USE), None),
        ("a pause", message("pause_turn", text("")), None),
        ("a pause without content", message("pause_turn"), None),
        ("a length that left no text", message("max_tokens"), None),
        ("a full window", message("model_context_window_exceeded", text("The")), None),
        ("a full window before the first word", message("model_context_window_exceeded"), None),
        ("a stop sequence before the first word", message("stop_sequence"), None),
        ("details of an ordinary end", message("end_turn", text("Yes."), stop_details={"category": "cyber"}), None),
        ("a search by the provider", message("end_turn", {"type": "server_tool_use", "id": "s", "name": "x"}), None),
        ("a message that did not end", message(None), None),
        ("a reason that nobody knows", message("refusal_of_service", text("")), None),
    )
}

# ----------------------------------------------------------------------------------------------------------- responses


def response(status: str | None, *output: Json, **more: Any) -> Json:
    """A Responses answer."""
    return {"object": "response", "status": status, "output": list(output), **more}


def item(*content: Json) -> Json:
    """A message of the assistant's."""
    return {"type": "message", "role": "assistant", "status": "completed", "content": list(content)}


_NO_PART: Json = {"type": "refusal", "refusal": NO}
_YES_PART: Json = {"type": "output_text", "text": "Yes.", "annotations": []}
_EMPTY_PART: Json = {"type": "output_text", "text": "", "annotations": []}
_CALL_ITEM: Json = {"type": "function_call", "id": "f", "call_id": "c1", "name": "look", "arguments": "{}"}
_REASONING: Json = {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "The user..."}]}
_CUT: Json = {"incomplete_details": {"reason": "content_filter"}}


def _failed(code: str, words: str = "It failed.") -> Json:
    return response("failed", error={"code": code, "message": words})


RESPONSES: Mapping[str, AnswerCase] = {
    name: AnswerCase("responses", answer, refusal)
    for name, answer, refusal in (
        ("a refusal as a part of the message", response("completed", item(_NO_PART)), SAID_NO),
        ("a refusal behind reasoning", response("completed", _REASONING, item(_NO_PART)), SAID_NO),
        ("a refusal behind a text", response("completed", item(_YES_PART), item(_NO_PART)), SAID_NO),
        ("a refusal beside calls", response("completed", _CALL_ITEM, item(_NO_PART)), SAID_NO),
        ("a filter before the first word", response("incomplete", **_CUT), FILTERED),
        ("a filter behind some of the text", response("incomplete", item(_YES_PART), **_CUT), FILTERED),
        ("a filter in an answer that calls itself completed", response("completed", item(_YES_PART), **_CUT), FILTERED),
        (
            "Anthropic's refusal, through LiteLLM's bridge",
            response("incomplete", **_CUT, **fields(stop_reason="refusal", stop_details=DETAILS)),
            CYBER,
        ),
        (
            "a policy ended it",
            _failed("cyber_policy", "It was flagged."),
            Refusal("policy_error", certain=True, category="cyber_policy", explanation="It was flagged."),
        ),
        (
            "a prompt that breaks the usage policy",
            _failed("invalid_prompt"),
            Refusal("policy_error", certain=True, category="invalid_prompt", explanation="It failed."),
        ),
        ("an answer without any item", response("completed"), POSSIBLE),
        ("an answer of an empty text", response("completed", item(_EMPTY_PART)), POSSIBLE),
        ("an answer of reasoning alone", response("completed", _REASONING), POSSIBLE),
        ("a message without a part", response("completed", item()), POSSIBLE),
        ("a model says no in plain words", response("completed", item({**_YES_PART, "text": NO})), None),
        ("calls", response("completed", _CALL_ITEM), None),
        ("a search by the provider", response("completed", {"type": "web_search_call", "id": "w"}), None),
        ("a picture", response("completed", {"type": "image_generation_call", "id": "i", "result": "x"}), None),
        (
            "a length that left no text",
            response("incomplete", incomplete_details={"reason": "max_output_tokens"}),
            None,
        ),
        ("a server that failed", _failed("server_error"), None),
        ("a limit of the rate", _failed("rate_limit_exceeded", "Rate limit: content_filter"), None),
        ("a picture that cannot be read", _failed("invalid_image_format"), None),
        ("a failure without a reason", response("failed", error=None), None),
        ("an answer in the background", response("in_progress"), None),
        ("an answer that was cancelled", response("cancelled"), None),
    )
}

ANSWERS: Mapping[str, AnswerCase] = {
    f"{case.dialect}: {name}": case for table in (CHAT, MESSAGES, RESPONSES) for name, case in table.items()
}

# -------------------------------------------------------------------------------------------------------------- errors

BAD_REQUEST = ("BadRequestError", "BadRequestError", "APIStatusError", "APIError", "OpenAIError", "Exception")
POLICY = ("ContentPolicyViolationError", *BAD_REQUEST)
WRAPPED = "litellm.BadRequestError: "
POLICY_WRAPPED = f"{WRAPPED}litellm.ContentPolicyViolationError: ContentPolicyViolationError: "
HTTP = ("HTTPException", "HTTPException", "Exception")
RAISED = ("GuardrailRaisedException", "Exception")


def bad(code: str = "", words: str = "No.", **more: Any) -> ProviderError:
    """A plain `BadRequestError` of LiteLLM's, whose body is the provider's error."""
    body = {"message": words, "type": None, "code": code or None, **more}
    return ProviderError(400, BAD_REQUEST, code, f"{WRAPPED}OpenAIException - {words}", body)


def policy(category: str = "", words: str = "No.") -> Refusal:
    """A refusal by a policy, as an error."""
    return Refusal("policy_error", certain=True, category=category, explanation=words)


def guardrail(name: str = "cf", words: str = "No.", *, certain: bool = True) -> Refusal:
    """A refusal by a guardrail of the gateway."""
    return Refusal("guardrail", certain, guardrail=name, explanation=words)


_AZURE = "The response was filtered due to the prompt triggering Azure OpenAI's content management policy."
_ANTHROPIC = (
    '{"type":"error","error":{"type":"invalid_request_error","message":"Output blocked by content filtering policy"}}'
)
_QUOTED = "Invalid value: '{\"code\": \"content_filter\"}'. Supported values are: 'auto'."
_REPR = "Error code: 400 - {'error': {'message': \"It's flagged.\", 'type': None, 'code': 'cyber_policy'}}"
_SUFFIX = "\nReceived Model Group=m\nAvailable Model Group Fallbacks={'a': ['b']}"

ERRORS: Mapping[str, tuple[ProviderError, Refusal | None]] = {
    "LiteLLM's class alone": (ProviderError(400, POLICY, message=f"{POLICY_WRAPPED}OpenAIException - No."), policy()),
    "LiteLLM's class with the provider's code": (
        ProviderError(400, POLICY, "content_policy_violation", f"{POLICY_WRAPPED}OpenAIException - No.", {}),
        policy("content_policy_violation"),
    ),
    "LiteLLM's class with a code that says nothing": (
        ProviderError(
            400, POLICY, "400", f"{POLICY_WRAPPED}XException - No.", {"code": 400, "type": "invalid_request_error"}
        ),
        policy(),
    ),
    "Azure's long body": (
        ProviderError(
            400,
            POLICY,
            "content_filter",
            f"{POLICY_WRAPPED}{_AZURE}",
            {
                "message": _AZURE,
                "code": "content_filter",
                "innererror": {"code": "ResponsibleAIPolicyViolation", "content_filter_result": _HATE},
            },
        ),
        policy("jailbreak", _AZURE),
    ),
    "Azure's short body, which stays a bad request": (bad("content_filter"), policy("content_filter")),
    "the usage policy in other words, which stays a bad request": (bad("invalid_prompt"), policy("invalid_prompt")),
    "a content policy whose type is missing, which stays a bad request": (
        bad("content_policy_violation"),
        policy("content_policy_violation"),
    ),
    "a code in the body alone": (
        ProviderError(400, BAD_REQUEST, "", "No.", {"error": {"code": "cyber_policy"}}),
        policy("cyber_policy"),
    ),
    "a code under the error of the body": (
        ProviderError(
            400,
            BAD_REQUEST,
            "400",
            "No.",
            {"error": {"code": "BadRequest", "innererror": {"code": "ResponsibleAIPolicyViolation"}}},
        ),
        policy("responsibleaipolicyviolation"),
    ),
    "a type instead of a code": (bad(type="content_filter"), policy("content_filter")),
    "a code in the message's JSON": (
        ProviderError(
            400,
            BAD_REQUEST,
            "",
            f'{WRAPPED}Azure_aiException - {{"error": {{"code": "content_filter", "message": "No."}}}}',
        ),
        policy("content_filter"),
    ),
    "a code in the message's JSON, with LiteLLM's words behind it": (
        ProviderError(
            400, BAD_REQUEST, "", f'{WRAPPED}XException - {{"code": "content_filter", "message": "}}"}}{_SUFFIX}'
        ),
        policy("content_filter", "}"),
    ),
    "a code in the message as Python writes it": (
        ProviderError(400, BAD_REQUEST, "", f"{WRAPPED}OpenaiException - {_REPR}{_SUFFIX}"),
        policy("cyber_policy", "It's flagged."),
    ),
    "an error in the middle of a stream": (
        ProviderError(
            400,
            ("MidStreamFallbackError", "ServiceUnavailableError", "APIStatusError", "Exception"),
            "",
            f"litellm.MidStreamFallbackError: {POLICY_WRAPPED}OpenaiException - {_REPR}",
        ),
        policy("cyber_policy", "It's flagged."),
    ),
    "Anthropic's filter over the output": (
        ProviderError(400, POLICY, "", f"{POLICY_WRAPPED}AnthropicError - {_ANTHROPIC}"),
        policy(words="Output blocked by content filtering policy"),
    ),
    "Anthropic's filter over the output, with its class lost": (
        ProviderError(400, BAD_REQUEST, "", f"{WRAPPED}AnthropicException - {_ANTHROPIC}"),
        policy(words="Output blocked by content filtering policy"),
    ),
    "DeepSeek's filter": (bad("invalid_request_error", "Content Exists Risk"), policy(words="Content Exists Risk")),
    "Alibaba's filter": (bad("data_inspection_failed"), policy("data_inspection_failed")),
    "a policy behind a forbidden status": (
        ProviderError(403, ("PermissionDeniedError",), "bio_policy"),
        policy("bio_policy", ""),
    ),
    "a policy without a status": (ProviderError(None, ("Exception",), "cyber_policy", "No."), policy("cyber_policy")),
    "a guardrail's block": (
        ProviderError(400, HTTP, "", "No.", {"error": "No.", "keyword": "x", "guardrail_name": "cf"}),
        guardrail(),
    ),
    "a guardrail's block with a forbidden status": (
        ProviderError(403, HTTP, body={"error": {"message": "No."}, "guardrail_name": "cf"}),
        guardrail(),
    ),
    "a guardrail's block in plain words, of which LiteLLM knows the guardrail": (
        ProviderError(400, HTTP, message="No.", guardrail="cf"),
        guardrail(),
    ),
    "a guardrail's block through a gateway behind this one": (
        ProviderError(
            400, BAD_REQUEST, "400", "No.", {"code": "400", "provider_specific_fields": {"guardrail_name": "cf"}}
        ),
        guardrail(),
    ),
    "a guardrail's exception": (ProviderError(400, RAISED, message="No.", guardrail="cf"), guardrail()),
    "a guardrail's exception that says that it judged": (
        ProviderError(422, RAISED, message="No.", guardrail="cf", judged=True),
        guardrail(),
    ),
    "a guardrail's exception that says that it did not judge": (
        ProviderError(400, RAISED, message="It is unreachable.", guardrail="cf", judged=False),
        guardrail(words="It is unreachable.", certain=False),
    ),
    "a guardrail that hides an entity": (
        ProviderError(400, ("BlockedPiiEntityError", "Exception"), message="No.", guardrail="pii"),
        guardrail("pii"),
    ),
    "a guardrail that answers instead of the model": (
        ProviderError(None, ("ModifyResponseException", "Exception"), message="No.", guardrail="cf"),
        guardrail(),
    ),
    "a guardrail's rejection without a name": (
        ProviderError(
            400, ("RejectedRequestError", *BAD_REQUEST), message=f"{WRAPPED}litellm.RejectedRequestError: No."
        ),
        guardrail(""),
    ),
    "nothing at all": (ProviderError(), None),
    "a bad request": (bad(), None),
    "a parameter with a wrong value": (bad("invalid_value"), None),
    "a message that talks of a filter": (bad(words="The tool content_filter has no parameter code"), None),
    "a message that quotes a code of the user's": (bad("invalid_value", _QUOTED), None),
    "a message that quotes a code of the user's, without a code of its own": (bad(words=_QUOTED), None),
    "a message that quotes the sentence of a policy": (bad(words=f"Cannot parse '{_AZURE}'"), None),
    "a message that quotes LiteLLM's class": (bad(words=f"Unexpected text: {POLICY_WRAPPED}"), None),
    "LiteLLM's class, taken from words of the user's in an error about a parameter": (
        ProviderError(
            400, POLICY, "invalid_value", f"{POLICY_WRAPPED}OpenAIException - {_QUOTED}", {"code": "invalid_value"}
        ),
        None,
    ),
    "LiteLLM's class, taken from words of the user's in an error about a schema": (
        ProviderError(400, POLICY, "", f"{POLICY_WRAPPED}No.", {"error": {"code": "invalid_function_parameters"}}),
        None,
    ),
    "LiteLLM's class over an answer that the model spoilt": (
        ProviderError(400, POLICY, "", f"{POLICY_WRAPPED}AzureException - The model produced invalid content."),
        None,
    ),
    "a tool's schema is invalid": (
        bad("invalid_function_parameters", "Invalid schema for function 'content_filter'"),
        None,
    ),
    "a tool's result has no call": (bad(words="messages.2: unexpected tool_use_id in tool_result"), None),
    "a window that is full": (
        ProviderError(400, ("ContextWindowExceededError", *BAD_REQUEST), "context_length_exceeded", "content_filter"),
        None,
    ),
    "a window that is full, in words alone": (bad("context_length_exceeded", "maximum context length"), None),
    "a parameter that LiteLLM does not know": (
        ProviderError(400, ("UnsupportedParamsError", *BAD_REQUEST), message="content_filter is not supported"),
        None,
    ),
    "a limit of the rate": (ProviderError(429, ("RateLimitError",), "rate_limit_exceeded", "Slow down."), None),
    "a limit of the rate that names a policy": (ProviderError(429, ("RateLimitError",), "content_filter"), None),
    "a limit of the rate without a status": (ProviderError(None, ("RateLimitError",), "content_filter"), None),
    "a status in the body's code alone": (
        ProviderError(None, (), "", "", {"code": 429, "type": "content_filter"}),
        None,
    ),
    "a key that is wrong": (ProviderError(401, ("AuthenticationError",), "invalid_api_key", "No."), None),
    "a budget that is spent": (ProviderError(400, ("BudgetExceededError",), message="Budget exceeded"), None),
    "a model that is not there": (ProviderError(404, ("NotFoundError",), "model_not_found"), None),
    "a model that may not be used": (ProviderError(403, ("PermissionDeniedError",), "model_not_allowed", "No."), None),
    "a server that failed": (ProviderError(500, ("InternalServerError",), message="content_policy_violation"), None),
    "a server that failed and names a policy": (ProviderError(500, ("InternalServerError",), "content_filter"), None),
    "a server that is busy": (ProviderError(529, ("InternalServerError",), "", "Overloaded"), None),
    "a connection that broke": (ProviderError(500, ("APIConnectionError",), message="OpenAIException - flagged"), None),
    "a stream that broke, with the provider's code lost": (
        ProviderError(
            500,
            ("MidStreamFallbackError", "ServiceUnavailableError"),
            "",
            "litellm.MidStreamFallbackError: litellm.APIConnectionError: APIConnectionError: OpenAIException - flagged",
        ),
        None,
    ),
    "a time that ran out": (ProviderError(408, ("Timeout",), message="content_filter"), None),
    "a guardrail that failed": (ProviderError(500, HTTP, body={"error": "Failed.", "guardrail_name": "cf"}), None),
    "a guardrail that is not reachable": (ProviderError(503, RAISED, message="Unreachable.", guardrail="cf"), None),
    "a guardrail's provider that limits the rate": (ProviderError(429, HTTP, body={"guardrail_name": "cf"}), None),
    "a guardrail that asks for another model": (
        ProviderError(None, ("SensitiveDataRouteException", "Exception"), message="Route.", guardrail="cf"),
        None,
    ),
    "a bad request that the gateway itself found": (
        ProviderError(400, HTTP, body={"error": "Invalid model name"}),
        None,
    ),
    "a call that the gateway itself refused in plain words": (ProviderError(403, HTTP, message="Not allowed."), None),
    "this guard's own rejection": (
        ProviderError(400, ("ProxyException",), "400", "[toolguard] The request was rejected: it looped."),
        None,
    ),
    "this guard's own rejection in the middle of a stream": (
        ProviderError(400, RAISED, message="[toolguard] The request was rejected: it looped.", guardrail="toolguard"),
        None,
    ),
}

# -------------------------------------------------------------------------------------------------------------- events

EVENTS: Mapping[str, tuple[Json, Refusal | None]] = {
    "Anthropic's filter": (
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": "Output blocked by content filtering policy"},
        },
        policy(words="Output blocked by content filtering policy"),
    ),
    "a policy behind LiteLLM's bridge": (
        {
            "type": "error",
            "error": {"type": "invalid_request_error", "message": f"{POLICY_WRAPPED}OpenaiException - {_REPR}"},
        },
        policy("cyber_policy", "It's flagged."),
    ),
    "the usage policy, whose code LiteLLM's bridge drops": (
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": f"{WRAPPED}OpenAIException - Invalid prompt: your prompt was flagged.",
            },
        },
        policy(words="Invalid prompt: your prompt was flagged."),
    ),
    "a response that failed": (
        {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"code": "cyber_policy", "message": "No."}},
        },
        policy("cyber_policy"),
    ),
    "an error of Responses": (
        {"type": "error", "code": "invalid_prompt", "message": "No.", "param": None, "sequence_number": 1},
        policy("invalid_prompt"),
    ),
    "an error of Responses in an object of its own": (
        {"type": "error", "error": {"type": "invalid_request_error", "code": "invalid_prompt", "message": "No."}},
        policy("invalid_prompt"),
    ),
    "LiteLLM's class in the words of an event alone": (
        {"error": {"message": f"{POLICY_WRAPPED}XException - No.", "type": "None", "code": "400"}},
        policy(),
    ),
    "an error instead of a chunk": (
        {"error": {"message": "No.", "type": "invalid_request_error", "code": "content_filter"}},
        policy("content_filter"),
    ),
    "a guardrail's block instead of a chunk": (
        {
            "error": {
                "message": "No.",
                "code": "400",
                "provider_specific_fields": {"error": "No.", "guardrail_name": "cf", "guardrail_mode": ["post_call"]},
            }
        },
        guardrail(),
    ),
    "a provider that is busy": (
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        None,
    ),
    "a provider that failed": ({"type": "error", "error": {"type": "api_error", "message": "content_filter"}}, None),
    "a response that failed on the server": (
        {
            "type": "response.failed",
            "response": {"status": "failed", "error": {"code": "server_error", "message": "No."}},
        },
        None,
    ),
    "a response that failed without a reason": ({"type": "response.failed", "response": {"error": None}}, None),
    "an error of Responses about the rate": ({"type": "error", "code": "rate_limit_exceeded", "message": "No."}, None),
    "an error with the status of a full gateway": (
        {"error": {"message": "No deployments available", "type": "content_filter", "code": "429"}},
        None,
    ),
    "a guardrail that failed": ({"error": {"code": "500", "provider_specific_fields": {"guardrail_name": "cf"}}}, None),
    "this guard's own rejection": (
        {"error": {"message": "[toolguard] The request was rejected.", "code": "400"}},
        None,
    ),
    "a chunk that stops for a filter": (chat(choice("content_filter")), None),
    "an event that is none of these": ({"type": "response.completed", "response": {"error": None}}, None),
    "a sign of life": ({"type": "ping"}, None),
}
