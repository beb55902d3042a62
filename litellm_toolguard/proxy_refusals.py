"""How a proxy recovers from a refusal that comes as an error instead of an answer.

LiteLLM has no hook that may put an answer in the place of an error. But its router tries again, and its deployment hook
runs for every attempt: so the request allows one more attempt after an error that may be a refusal, and the hook sends
it without the newest results, or ends it with the very error where it was none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from litellm.exceptions import BadRequestError
from litellm.types.router import RetryPolicy

from litellm_toolguard.dialects import HISTORY_KEYS
from litellm_toolguard.refusals import ProviderError, Refusal, in_answer, in_error
from litellm_toolguard.transcript import Dialect
from litellm_toolguard.withholding import Submission, with_newest_withheld

Phase: TypeAlias = Literal["first", "again", "over"]

_RETRIED: Final = ("ContentPolicyViolationErrorRetries", "BadRequestErrorRetries")
"""Of LiteLLM's retry policy: under which classes a refusal comes."""
_POLICY: Final = "model_group_retry_policy"


@dataclass(slots=True)
class Attempts:
    """The attempts of one request that submits results.

    Attributes:
        dialect: its dialect.
        tenant: whose it is.
        submission: its results.
        retries: whether the operator has such errors tried again anyway.
        phase: `first` as the client sent it, `again` without the results, `over` when that was refused too.
        refusal: why the results are withheld, or are to be.
        error: the newest error; None while there is none, or where the refusal was an answer.
    """

    dialect: Dialect
    tenant: str
    submission: Submission
    retries: bool = False
    phase: Phase = "first"
    refusal: Refusal | None = None
    error: Exception | None = None

    def failed(self, error: Exception) -> None:
        """An attempt ended in an error."""
        self.error = error
        refusal = in_error(facts_of(error))
        if self.phase == "first":
            self.refusal = refusal
        elif refusal is not None:
            self.phase = "over"

    def answered(self, answer: Mapping[str, Any] | None) -> None:
        """An attempt ended in an answer. LiteLLM may make an error of one that is a refusal."""
        refusal = in_answer(self.dialect, answer)
        certain = refusal if refusal is not None and refusal.certain else None
        if self.phase == "first":
            self.refusal, self.error = certain, None
        elif certain is not None:
            self.phase = "over"

    @property
    def ends_here(self) -> bool:
        """Whether the next attempt is one that only the guard had allowed, and that it does not need."""
        if self.phase == "over":
            return True
        return self.refusal is None and not self.retries and isinstance(self.error, BadRequestError)

    def again(self, kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
        """The next attempt, without the results; None where they cannot be replaced any more."""
        key = HISTORY_KEYS[self.dialect]
        edited = with_newest_withheld(self.dialect, kwargs)
        return None if edited is None else {**kwargs, key: edited[key]}


def facts_of(error: BaseException) -> ProviderError:
    """The plain facts of an exception of LiteLLM's."""
    body = getattr(error, "body", None) or getattr(error, "detail", None)
    beside = getattr(error, "provider_specific_fields", None)
    more = {"provider_specific_fields": beside} if beside else {}
    return ProviderError(
        status=getattr(error, "status_code", None),
        type_names=tuple(each.__name__ for each in type(error).__mro__),
        code=str(getattr(error, "code", None) or ""),
        message=str(getattr(error, "message", None) or ""),
        body={**body, **more} if isinstance(body, Mapping) else None,
        guardrail=getattr(error, "guardrail_name", None) or "",
        judged=getattr(error, "blocked_content", None),
    )


def allow_one_more(data: dict[str, Any], router: Any) -> bool:
    """Let LiteLLM's router try once more after an error that may be a refusal; all else stays as the operator has it.
    Gives whether the operator has such errors tried again anyway."""
    if router is None:
        return False
    model = data.get("model")
    # The client may have sent anything under this name.
    found = (data.get(_POLICY), getattr(router, _POLICY, None))
    given: Mapping[Any, Any] = next((each for each in found if isinstance(each, Mapping)), {})
    own = given.get(model) or getattr(router, "retry_policy", None)
    policy = own if isinstance(own, Mapping) else own.model_dump() if isinstance(own, RetryPolicy) else {}
    retries = bool(policy.get("BadRequestErrorRetries") or policy.get("DefaultRetries"))
    data[_POLICY] = {**given, model: {**policy, **{name: policy.get(name) or 1 for name in _RETRIED}}}
    return retries
