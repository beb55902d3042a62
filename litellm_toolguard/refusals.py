"""Is this answer, or this error, a refusal: of the provider, or of a guardrail in the gateway? Pure.

What a model says in plain words is its answer, whatever it says. A broken tool call, a full window and a pause are no
refusals. An answer that has calls and is refused all the same is refused: its calls are not delivered.

Some refusals are lost on the way: LiteLLM's bridges, and its streams of chat, turn them into an answer that stops
with neither a word nor a call. Nothing tells such an answer from a model that had nothing to say, so it is found with
`certain` unset, and what is done about it is the caller's policy.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from litellm_toolguard.notes import MARK
from litellm_toolguard.transcript import Dialect

RefusalKind: TypeAlias = Literal["refusal", "content_filter", "intervened", "policy_error", "guardrail"]

CATEGORY: Final = re.compile(r"[A-Za-z0-9_.\-]{0,64}")
"""What a category looks like. It stands in logs, so what is no such word is dropped: it may be content."""

_MAX_EXPLANATION_CHARS: Final = 2_000
_MAX_GUARDRAIL_CHARS: Final = 64


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that was refused.

    Args:
        kind: `refusal` of the model or its safeguard, `content_filter` over an answer, `intervened` by a guardrail of
            the provider's, `policy_error` instead of an answer, or a `guardrail` of the gateway.
        certain: False where it only may be one: an answer that stops with neither a word nor a call, or a guardrail's
            error that does not say that it judged.
        category: the provider's machine word for it, `CATEGORY`; empty where it gives none.
        guardrail: the name of the gateway's guardrail; empty where none is known.
        explanation: the provider's or the guardrail's words. They may quote content and belong into no log.
    """

    kind: RefusalKind
    certain: bool
    category: str = ""
    guardrail: str = ""
    explanation: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class ProviderError:
    """The plain facts of an exception or of an error event.

    Args:
        status: its HTTP status; None where it has none.
        type_names: the names of its class and of the class's bases.
        code: its own code; empty where it has none.
        message: its message as LiteLLM wraps it. It may quote content.
        body: its body: the provider's JSON object, with what LiteLLM keeps beside it under `provider_specific_fields`,
            or the detail of an `HTTPException`. It may quote content.
        guardrail: the name of the gateway's guardrail that raised it; empty where it is none's or not known.
        judged: whether that guardrail says that it judged the content (`blocked_content`); None where it cannot say.
    """

    status: int | None = None
    type_names: tuple[str, ...] = ()
    code: str = ""
    message: str = field(default="", repr=False)
    body: Mapping[str, Any] | None = field(default=None, repr=False)
    guardrail: str = ""
    judged: bool | None = None


# ------------------------------------------------------------------------------------------------------------- answers

_STOP_KINDS: Final[Mapping[str, RefusalKind]] = {
    "refusal": "refusal",
    "content_filter": "content_filter",
    "content_filtered": "content_filter",
    "guardrail_intervened": "intervened",
}
"""Why an answer stopped, in any dialect's word for it. LiteLLM passes every reason of Gemini's on as
`content_filter`."""


def in_answer(dialect: Dialect, answer: Mapping[str, Any] | None) -> Refusal | None:
    """The refusal in a whole answer in the dialect's plain form; None for an answer, and for what is none."""
    if not isinstance(answer, Mapping):
        return None
    if dialect == "chat":
        return _in_chat(answer)
    return _in_message(answer) if dialect == "messages" else _in_response(answer)


def _in_chat(answer: Mapping[str, Any]) -> Refusal | None:
    """Of several choices one that says something is an answer: the client may take it, and it is never thrown away
    for what happened to another."""
    choices = [choice for choice in _list(answer.get("choices")) if isinstance(choice, Mapping)]
    found = [(_in_choice(answer, choice), choice) for choice in choices]
    if any(refusal is None and _message_speaks(_mapping(choice.get("message"))) for refusal, choice in found):
        return None
    refusals = [refusal for refusal, _ in found if refusal is not None]
    return max(refusals, key=lambda each: each.certain, default=None)


def _in_choice(answer: Mapping[str, Any], choice: Mapping[str, Any]) -> Refusal | None:
    message, reason = choice.get("message"), choice.get("finish_reason")
    words = _refusal_words(_mapping(message))
    if words is not None:
        return _refusal("refusal", explanation=words)
    layers = (_mapping(message), choice, answer)
    native = _in_provider_fields(layers)
    if native is not None:
        return native
    kind = _kind_of(reason)
    if kind is not None:
        fields = [_mapping(each.get("provider_specific_fields")) for each in layers]
        intervened = any("guardrail" in _mapping(each.get("trace")) for each in (*layers, *fields))
        return _refusal("intervened" if intervened else kind, category=_filtered((*layers, *fields)))
    empty = reason == "stop" and isinstance(message, Mapping) and not _message_speaks(message)
    return _possible() if empty else None


def _refusal_words(message: Mapping[str, Any]) -> str | None:
    """The refusal of a chat message, in its own field or as a part of its content."""
    words = message.get("refusal")
    return words if isinstance(words, str) and words.strip() else _refusal_part(message.get("content"))


def _refusal_part(content: Any) -> str | None:
    return next((_text(part.get("refusal")) for part in _list(content) if _type(part) == "refusal"), None)


def _in_message(answer: Mapping[str, Any]) -> Refusal | None:
    reason, content = answer.get("stop_reason"), answer.get("content")
    kind = _kind_of(reason)
    if kind is not None:
        return _stopped(kind, answer.get("stop_details"))
    empty = reason == "end_turn" and isinstance(content, list) and not any(map(_part_speaks, content))
    return _possible() if empty else None


def _in_response(answer: Mapping[str, Any]) -> Refusal | None:
    status, output = answer.get("status"), _list(answer.get("output"))
    parts = (_refusal_part(item.get("content")) for item in output if isinstance(item, Mapping))
    words = next((each for each in parts if each is not None), None)
    if words is not None:
        return _refusal("refusal", explanation=words)
    native = _in_provider_fields((answer,))
    if native is not None:
        return native
    kind = _kind_of(_mapping(answer.get("incomplete_details")).get("reason"))
    if kind is not None:
        return _refusal(kind)
    if status == "failed":
        return in_event({"type": "response.failed", "response": answer})
    empty = status == "completed" and isinstance(answer.get("output"), list) and not any(map(_item_speaks, output))
    return _possible() if empty else None


def _in_provider_fields(layers: Iterable[Mapping[str, Any]]) -> Refusal | None:
    """Why the provider itself stopped, where LiteLLM keeps it beside the dialect's own reason."""
    for layer in layers:
        fields = _mapping(layer.get("provider_specific_fields"))
        kind = _kind_of(fields.get("stop_reason"))
        if kind is not None:
            return _stopped(kind, fields.get("stop_details"))
    return None


def _stopped(kind: RefusalKind, details: Any) -> Refusal:
    given = _mapping(details)
    return _refusal(kind, category=_word(given.get("category")), explanation=_text(given.get("explanation")))


def _filtered(layers: Iterable[Mapping[str, Any]]) -> str:
    """The name of the first filter that tripped, as Azure reports them."""
    for layer in layers:
        for key in ("content_filter_results", "content_filter_result"):
            for name, result in _mapping(layer.get(key)).items():
                if _mapping(result).get("filtered") is True and _word(name):
                    return _word(name)
    return ""


def _kind_of(reason: Any) -> RefusalKind | None:
    return _STOP_KINDS.get(reason) if isinstance(reason, str) else None


def _message_speaks(message: Mapping[str, Any]) -> bool:
    """Whether a chat message holds anything that the client can use."""
    content = message.get("content")
    said = any(map(_part_speaks, content)) if isinstance(content, list) else bool(_text(content).strip())
    return said or any(message.get(key) for key in ("tool_calls", "function_call", "audio", "images"))


def _item_speaks(item: Any) -> bool:
    if _type(item) == "message":
        return any(map(_part_speaks, _list(item.get("content"))))
    return _type(item) != "reasoning"


_TEXTS: Final = frozenset({"text", "output_text"})
_THOUGHTS: Final = frozenset({"thinking", "redacted_thinking", "reasoning"})


def _part_speaks(part: Any) -> bool:
    """Whether a content part is more than an empty text or a thought."""
    kind = _type(part)
    return bool(_text(part.get("text")).strip()) if kind in _TEXTS else kind not in _THOUGHTS


# -------------------------------------------------------------------------------------------------------------- errors

POLICY_CODES: Final = frozenset(
    {
        "bio_policy",
        "content_filter",
        "content_policy_violation",
        "cyber_policy",
        "data_inspection_failed",
        "datainspectionfailed",
        "image_content_policy_violation",
        "invalid_prompt",
        "misalignment_policy_violation",
        "moderation_blocked",
        "responsibleaipolicyviolation",
    }
)
"""Codes of a request that was refused for its content, in lower case."""

# Codes that name no cause. Any other one is about something else, whatever class LiteLLM made of it: it looks for
# words of policies in the whole text of an error, where the user's own words may stand.
_SILENT_CODES: Final = frozenset({"", "none", "badrequest", "invalid_request_error"})
# How the messages of policy errors begin, in lower case, for where their code is lost on the way.
_POLICY_SENTENCES: Final = (
    "content exists risk",
    "input data may contain inappropriate content",
    "input text data may contain inappropriate content",
    "invalid prompt: we've limited access to this content for safety reasons",
    "invalid prompt: your prompt was flagged",
    "output blocked by content filtering policy",
    "output data may contain inappropriate content",
    "the response was filtered due to the prompt triggering",
    "your request was rejected as a result of our safety system",
)
# What LiteLLM takes for a policy and is a fault of the model's.
_MODEL_FAULTS: Final = ("the model produced invalid content",)
_BLOCK_STATUSES: Final = frozenset({400, 403, 422})
_GUARDRAIL_ERRORS: Final = frozenset(
    {"BlockedPiiEntityError", "GuardrailRaisedException", "ModifyResponseException", "RejectedRequestError"}
)
_OTHER_ERRORS: Final = frozenset(
    {
        "APIConnectionError",
        "AuthenticationError",
        "BudgetExceededError",
        "ContextWindowExceededError",
        "InternalServerError",
        "NotFoundError",
        "RateLimitError",
        "SensitiveDataRouteException",
        "Timeout",
        "UnsupportedParamsError",
    }
)


def in_error(error: ProviderError) -> Refusal | None:
    """The refusal that an error is; None for every other error, and for the guard's own."""
    said = _unwrapped(error)
    if said.status not in _BLOCK_STATUSES | {None} or said.names & _OTHER_ERRORS or said.text.startswith(MARK):
        return None
    if said.guardrail or said.names & _GUARDRAIL_ERRORS:
        return _refusal("guardrail", certain=error.judged is not False, guardrail=said.guardrail, explanation=said.text)
    if not _is_policy(said):
        return None
    code = next((each for each in said.codes if each in POLICY_CODES), "")
    return _refusal("policy_error", category=_filtered(said.layers) or code, explanation=said.text)


def in_event(event: Mapping[str, Any]) -> Refusal | None:
    """The refusal in an event of a stream that says that it failed, in any dialect; None for every other event."""
    kind, error = event.get("type"), event.get("error")
    if kind == "response.failed":
        error = _mapping(event.get("response")).get("error")
    elif kind == "error" and not isinstance(error, Mapping):
        error = event
    if not isinstance(error, Mapping):
        return None
    return in_error(ProviderError(code=_code(error.get("code")), message=_text(error.get("message")), body=error))


@dataclass(frozen=True, slots=True)
class _Said:
    """What an error says, with LiteLLM's wrapping taken off.

    Args:
        status: its HTTP status; None where nothing tells.
        names: the classes that it is of, and those that its message begins with.
        codes: its codes and types, the outermost first, in lower case.
        about: its codes alone.
        text: the words of whoever raised it.
        guardrail: the name of the guardrail that raised it.
        layers: the JSON objects that it holds.
    """

    status: int | None
    names: frozenset[str]
    codes: tuple[str, ...]
    about: frozenset[str]
    text: str
    guardrail: str
    layers: tuple[Mapping[str, Any], ...]


def _is_policy(said: _Said) -> bool:
    if not POLICY_CODES.isdisjoint(said.codes):
        return True
    text = said.text.lower()
    if said.about or text.startswith(_MODEL_FAULTS):
        return False
    return "ContentPolicyViolationError" in said.names or text.startswith(_POLICY_SENTENCES)


def _unwrapped(error: ProviderError) -> _Said:
    names, rest = _prefixes(error.message)
    parsed = _object(rest)
    layers = (*_layers(parsed), *_layers(error.body))
    codes = [error.code, *(_code(layer.get("code")) for layer in layers)]
    types = [_code(layer.get("type")) for layer in layers]
    numbers = [int(each) for each in codes if each.isdecimal() and len(each) == 3]
    spoken = rest if rest and parsed is None else next(filter(None, map(_words, layers)), "")
    named = (layer.get("guardrail_name") for layer in layers)
    return _Said(
        status=error.status if error.status is not None else next(iter(numbers), None),
        names=frozenset(error.type_names) | names,
        codes=tuple(each.lower() for each in (*codes, *types)),
        about=frozenset(each.lower() for each in codes if not each.isdecimal()) - _SILENT_CODES,
        text=spoken,
        guardrail=error.guardrail or next((each for each in named if isinstance(each, str) and each), ""),
        layers=layers,
    )


_NESTED: Final = ("error", "innererror", "inner_error", "provider_specific_fields")


def _layers(body: Any) -> Iterator[Mapping[str, Any]]:
    """The objects of an error's body in which codes stand, the outermost first."""
    pending = [body]
    while pending:
        layer = pending.pop(0)
        if isinstance(layer, Mapping):
            yield layer
            pending += [layer.get(key) for key in _NESTED]


def _words(layer: Mapping[str, Any]) -> str:
    return _text(layer.get("message")) or _text(layer.get("error"))


_MAX_MESSAGE_CHARS: Final = 20_000
_PREFIX: Final = re.compile(
    r"litellm\.(\w{1,60}): "
    r"|(\w{1,60}(?:Error|Exception)): "
    r"|\w{1,60}(?:Error|Exception)(?: \w{1,60})? - "
    r"|Error code: \d{3} - "
)


def _prefixes(message: str) -> tuple[frozenset[str], str]:
    """The classes that LiteLLM writes before a provider's words, and these words. Only what stands before them counts:
    behind them the user's own may follow."""
    names, rest = set(), message[:_MAX_MESSAGE_CHARS]
    while (found := _PREFIX.match(rest)) is not None:
        names.add(found[1] or found[2] or "")
        rest = rest[found.end() :]
    return frozenset(names), rest


def _object(text: str) -> Mapping[str, Any] | None:
    """The object that a text begins with, as JSON or as Python writes it; None where it begins with none. LiteLLM
    appends words of its own."""
    source = _balanced(text)
    try:
        value = ast.literal_eval(source) if source.startswith("{'") else json.loads(source)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, dict) else None


_MARKS: Final = re.compile(r"\\.|[\"'{}]", re.DOTALL)


def _balanced(text: str) -> str:
    """The text up to the brace that closes its first one; empty where it does not begin with one or is cut."""
    depth, quote = 0, ""
    for found in _MARKS.finditer(text) if text.startswith("{") else ():
        mark = found[0]
        if quote:
            quote = "" if mark == quote else quote
        elif mark in ("'", '"'):
            quote = mark
        else:
            depth += {"{": 1, "}": -1}.get(mark, 0)
            if depth == 0:
                return text[: found.end()]
    return ""


# --------------------------------------------------------------------------------------------------------------- plain


def _refusal(
    kind: RefusalKind, *, certain: bool = True, category: str = "", guardrail: str = "", explanation: str = ""
) -> Refusal:
    name = "".join(letter if letter.isprintable() else "_" for letter in guardrail[:_MAX_GUARDRAIL_CHARS])
    return Refusal(kind, certain, _word(category), name, explanation[:_MAX_EXPLANATION_CHARS])


def _possible() -> Refusal:
    return Refusal("refusal", certain=False)


def _word(value: Any) -> str:
    return value if isinstance(value, str) and CATEGORY.fullmatch(value) else ""


def _code(value: Any) -> str:
    return str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _type(value: Any) -> str:
    return _text(value.get("type")) if isinstance(value, Mapping) else ""
