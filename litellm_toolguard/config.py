"""How the guard stands in a LiteLLM config: reading the entry, and refusing what would leave it silently missing.

Used by the proxy's constructor and by `toolguard check`, so that both say the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from litellm_toolguard.errors import ConfigError, ConfigProblem
from litellm_toolguard.policy import Policy
from litellm_toolguard.policy_reading import load_policy, load_policy_key, read_yaml
from litellm_toolguard.recorder import Recorder
from litellm_toolguard.store import FactStore
from litellm_toolguard.store.ledger import Ledger
from litellm_toolguard.store.opening import open_ledger, open_store

GUARDRAIL: Final = "litellm_toolguard.ToolGuard"
CALLBACK: Final = "litellm_toolguard.callback"
POLICY_VARIABLE: Final = "TOOLGUARD_POLICY"
"""Names the policy file of the callback."""
MIN_LITELLM: Final = (1, 106, 12)
"""The lowest version whose hooks were measured to behave as the proxy layer needs."""

NO_POST_CALL: Final = (
    "proposed calls are not judged (block and ask do nothing), and the machine-readable end stands in the header alone"
)

KEY: Final = "toolguard"
"""The only key of `litellm_params` that is ours."""
# Keys of a policy that no vendor's guardrail has: beside our key instead of in it they would be ignored in silence.
_MISPLACED: Final = frozenset({"enforcement", "preset", "on_error", "not_inspected", "record_content"})

_MODES: Final = ("pre_call", "post_call")
# LiteLLM discards what a guardrail changes when one of these is set, so notes and ends would never arrive.
_REFUSED_SWITCHES: Final[Mapping[str, str]] = {
    "run_in_parallel": "LiteLLM discards the notes of a guardrail that runs in parallel; remove it",
    "scan_raw_request": "LiteLLM discards the notes of a guardrail that scans the raw request; remove it",
}
_LITELLM_KEYS: Final = frozenset(
    {"guardrails", "model_list", "litellm_settings", "general_settings", "router_settings", "environment_variables"}
)


@dataclass(frozen=True, slots=True)
class Report:
    """What a checked file says.

    Args:
        policies: the policies in it, by the dotted path of their key ('' for a bare policy).
        remarks: what is allowed and worth knowing.
    """

    policies: tuple[tuple[str, Policy], ...]
    remarks: tuple[str, ...]


def entry_problems(mode: Any, switches: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    """The faults of a guardrail entry besides its policy.

    Args:
        mode: the value of `mode`.
        switches: the other keys of `litellm_params`.
    """
    modes = [mode] if isinstance(mode, str) else mode
    if not isinstance(modes, Sequence) or not all(isinstance(name, str) for name in modes):
        yield ConfigProblem("mode", "must be [pre_call, post_call]; modes by tag are not supported")
    else:
        names = [str(getattr(name, "value", name)) for name in modes]
        wrong = [name for name in names if name not in _MODES]
        if wrong:
            yield ConfigProblem("mode", f"{wrong[0]!r} is not supported; use [pre_call, post_call]")
        elif "pre_call" not in names:
            yield ConfigProblem("mode", "must hold pre_call, where requests are judged; use [pre_call, post_call]")
    for name, value in switches.items():
        if name in _REFUSED_SWITCHES and value:
            yield ConfigProblem(name, _REFUSED_SWITCHES[name])
        elif name in _MISPLACED:
            yield ConfigProblem(name, f"is a key of the policy: put it under `{KEY}:`")
        elif difflib.get_close_matches(name, [KEY], cutoff=0.8):
            yield ConfigProblem(name, f"unknown key; did you mean `{KEY}`?")


def entry_policy(mode: Any, switches: Mapping[str, Any], toolguard: Any, base: Path | None) -> Policy:
    """The policy of a guardrail entry.

    Raises:
        ConfigError: with every fault of the entry and of its policy.
    """
    problems = list(entry_problems(mode, switches))
    policy = None
    try:
        policy = load_policy_key(toolguard, base)
    except ConfigError as error:
        problems += [_under("toolguard", problem, error.source) for problem in error.problems]
    if problems or policy is None:
        raise ConfigError(tuple(problems))
    return policy


def entry_store(policy: Policy, base: Path | None) -> FactStore:
    """The store that the policy of a guardrail entry names; `base` is the folder that a relative path starts from.

    Raises:
        ConfigError: it cannot be used.
    """
    try:
        return open_store(policy.store, base)
    except ConfigError as error:
        raise ConfigError(tuple(_under(KEY, problem) for problem in error.problems)) from error


def entry_ledger(policy: Policy, base: Path | None) -> Ledger | None:
    """The ledger of a guardrail entry; None where nothing is to be withheld and nothing ever was. A relative path
    starts from `base`.

    Raises:
        ConfigError: the file cannot be used.
    """
    try:
        return open_ledger(policy.refusals, base)
    except ConfigError as error:
        raise ConfigError(tuple(_under(f"{KEY}.refusals", problem) for problem in error.problems)) from error


def entry_recorder(policy: Policy, base: Path | None) -> Recorder | None:
    """The recorder that the policy of a guardrail entry asks for; None for none. A relative path starts from `base`.

    Raises:
        ConfigError: the file cannot be used.
    """
    if policy.record is None:
        return None
    path = Path(policy.record).expanduser()
    if not path.is_absolute() and base is None:
        reason = "is relative, and the folder of the config is not known"
        raise ConfigError((ConfigProblem(f"{KEY}.record", reason),))
    try:
        return Recorder(path if base is None else base / path, policy)
    except OSError as error:
        reason = f"{path} cannot be written: {error.strerror or type(error).__name__}"
        raise ConfigError((ConfigProblem(f"{KEY}.record", reason),)) from error


def switch_problem(name: str) -> ConfigError:
    """The error for a switch that LiteLLM sets after the guardrail was made."""
    return ConfigError((ConfigProblem(name, _REFUSED_SWITCHES[name]),))


def version_problem(version: str) -> ConfigProblem | None:
    """Why this version of LiteLLM cannot carry the proxy layer; None when it can."""
    wanted = ".".join(str(part) for part in MIN_LITELLM)
    digits = [part for part in version.split(".")[:3] if part.isdecimal()]
    if tuple(int(part) for part in digits) >= MIN_LITELLM:
        return None
    return ConfigProblem(
        "", f"the proxy needs litellm >= {wanted}, this is {version}; upgrade with pip install -U 'litellm[proxy]'"
    )


def remarks(policy: Policy) -> tuple[str, ...]:
    """What an operator should know about a valid policy."""
    found: list[str] = []
    if policy.enforcement == "observe":
        found.append("enforcement is `observe`: decisions are recorded, nothing is enforced")
    if policy.record is not None:
        kept = "prompts, arguments and outputs as they are" if policy.record_content else _HASHED
        found.append(f"`record` writes every request and answer to {policy.record}, which grows without bound: {kept}")
    return tuple(found)


_HASHED: Final = "names of tools, ids of calls and digests, no content"


READS_ANSWERS: Final = frozenset({"post_call"})
READS_REQUESTS: Final = frozenset({"pre_call", "during_call"})


def order_problem(before: Sequence[tuple[str, Sequence[str]]], *, recovers: bool) -> ConfigProblem | None:
    """The fault of an entry behind other guardrails. One that reads answers would see what the client does not get,
    when the guard asks the model once more; one that reads requests would see what is withheld.

    Args:
        before: names and modes of the guardrails that stand before it.
        recovers: whether the entry withholds results.
    """
    for name, modes in before:
        for read in (READS_ANSWERS, READS_REQUESTS if recovers else frozenset()):
            mode = next((each for each in modes if each in read), None)
            if mode is not None:
                reason = f"must stand before every other guardrail with mode {mode}; move it above {name}"
                return ConfigProblem("", reason)
    return None


def check_file(path: Path, callback_policy: Path | None = None) -> Report:
    """Check a policy file or a LiteLLM config.

    Args:
        path: the file.
        callback_policy: the policy file of `litellm_toolguard.callback`, if one is named.

    Raises:
        ConfigError: with every fault and its path.
    """
    data = read_yaml(path)
    if isinstance(data, Mapping) and _LITELLM_KEYS & data.keys():
        return _check_litellm_config(data, path, callback_policy)
    policy = load_policy(data, str(path))
    return Report((("", policy),), remarks(policy))


def _check_litellm_config(data: Mapping[str, Any], path: Path, callback_policy: Path | None) -> Report:
    policies: list[tuple[str, Policy]] = []
    problems: list[ConfigProblem] = []
    found: list[str] = []
    names: dict[str, str] = {}
    first_on = ""
    recovering: set[str] = set()
    for where, name, params in _guardrails(data, problems):
        entry = f"{where}.litellm_params"
        if name in names:
            problems.append(
                ConfigProblem(where, f"has the same guardrail_name as {names[name]}; LiteLLM would run one of the two")
            )
        names[name] = where
        switches = {key: value for key, value in params.items() if key not in ("mode", "toolguard")}
        try:
            policy = entry_policy(params.get("mode"), switches, params.get("toolguard"), path.parent)
            policies.append((f"{entry}.toolguard", policy))
            recovering |= {where} if policy.refusals.recover else set()
        except ConfigError as error:
            problems += [_under(entry, problem) for problem in error.problems]
        always_on = params.get("default_on")
        if not isinstance(always_on, (bool, type(None))):
            problems.append(
                ConfigProblem(f"{entry}.default_on", "must be true or false; LiteLLM would start without it")
            )
        elif always_on is not True:
            found.append(f"{entry}.default_on is not true: only requests that name this guardrail are guarded")
        elif first_on:
            problems.append(ConfigProblem(f"{entry}.default_on", f"{first_on} is always on already and judges first"))
        first_on = first_on or (where if always_on is True else "")
        if "post_call" not in (params.get("mode") or ()):
            found.append(f"{entry}.mode has no post_call: {NO_POST_CALL}")
    problems += _order_problems(data, recovering)
    if _has_callback(data):
        try:
            policies.append((CALLBACK, _callback_policy(callback_policy)))
        except ConfigError as error:
            problems += [_under(CALLBACK, problem, error.source) for problem in error.problems]
    if not policies and not problems:
        problems.append(
            ConfigProblem(
                "guardrails", f"no entry loads {GUARDRAIL}, and litellm_settings.callbacks does not name {CALLBACK}"
            )
        )
    if problems:
        raise ConfigError(tuple(problems), str(path))
    found += [remark for _, policy in policies for remark in remarks(policy)]
    return Report(tuple(policies), tuple(dict.fromkeys(found)))


def _guardrails(data: Mapping[str, Any], problems: list[ConfigProblem]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    entries = data.get("guardrails")
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        params = entry.get("litellm_params") if isinstance(entry, Mapping) else None
        params = params if isinstance(params, Mapping) else {}
        loaded = params.get("guardrail")
        if not isinstance(loaded, str) or not loaded.startswith("litellm_toolguard"):
            continue
        where = f"guardrails[{index}]"
        if loaded != GUARDRAIL:
            problems.append(ConfigProblem(f"{where}.litellm_params.guardrail", f"must be {GUARDRAIL}, not {loaded}"))
            continue
        name = entry.get("guardrail_name")
        if not isinstance(name, str) or not name:
            problems.append(ConfigProblem(f"{where}.guardrail_name", "is missing"))
        yield where, str(name), params


def _modes(params: Mapping[str, Any]) -> list[str]:
    mode = params.get("mode")
    return [mode] if isinstance(mode, str) else [str(each) for each in mode] if isinstance(mode, list) else []


def _order_problems(data: Mapping[str, Any], recovering: set[str]) -> Iterator[ConfigProblem]:
    """The faults of our entries that stand behind other guardrails.

    Args:
        data: the config.
        recovering: places of our entries that withhold results.
    """
    before: list[tuple[str, Sequence[str]]] = []
    entries = data.get("guardrails")
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        params = entry.get("litellm_params") if isinstance(entry, Mapping) else None
        if not isinstance(params, Mapping):
            continue
        where = f"guardrails[{index}]"
        if params.get("guardrail") != GUARDRAIL:
            before.append((str(entry.get("guardrail_name")), _modes(params)))
            continue
        seen = before if "post_call" in _modes(params) else [(name, _only_requests(modes)) for name, modes in before]
        problem = order_problem(seen, recovers=where in recovering)
        if problem is not None:
            yield ConfigProblem(where, problem.message)


def _only_requests(modes: Sequence[str]) -> list[str]:
    return [mode for mode in modes if mode not in READS_ANSWERS]


def _has_callback(data: Mapping[str, Any]) -> bool:
    settings = data.get("litellm_settings")
    callbacks = settings.get("callbacks") if isinstance(settings, Mapping) else None
    return isinstance(callbacks, (list, str)) and CALLBACK in callbacks


def _callback_policy(path: Path | None) -> Policy:
    return Policy() if path is None else load_policy(read_yaml(path), str(path))


def _under(prefix: str, problem: ConfigProblem, source: str = "toolguard") -> ConfigProblem:
    """The problem with its path below a key; a policy file of its own is named in the message."""
    if source != "toolguard":
        return ConfigProblem(prefix, f"in {source}: {problem}")
    return ConfigProblem(f"{prefix}.{problem.path}" if problem.path else prefix, problem.message)
