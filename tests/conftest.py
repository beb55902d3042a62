"""Real proxies, started once a session, and the test's own environment."""

from __future__ import annotations

import os

# Before anything imports litellm: without it the import tries the network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
