"""The guard as a ready-made instance, for `litellm_settings: {callbacks: [litellm_toolguard.callback]}`.

Its policy is the file that TOOLGUARD_POLICY names, or the default policy.
"""

from __future__ import annotations

import os
from typing import Final

from litellm_toolguard.config import POLICY_VARIABLE
from litellm_toolguard.proxy import ToolGuard

_path = os.environ.get(POLICY_VARIABLE)


class ToolGuardCallback(ToolGuard):
    """A guard that leaves a request to a guardrail of the config, where one judges it."""

    is_callback = True


callback: Final = ToolGuardCallback(
    {"policy": _path} if _path else None, guardrail_name="toolguard-callback", default_on=True
)
