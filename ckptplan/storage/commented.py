"""Adds comments to TOML that people go on editing: what each number means, as its model describes it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import BaseModel

from ckptplan.model.network import Network
from ckptplan.model.profile import HardwareProfile
from ckptplan.model.workload import Workload
from ckptplan.storage.toml_files import profile_text, workload_text

_FIELD = re.compile(r"(\w+) = .*")
_TABLE = re.compile(r"\[(\w+)\]")


def commented_workload(workload: Workload, *, head: str) -> str:
    """Return a workload as TOML with a comment on each number; ``head`` is the first comment."""
    return _comment(workload_text(workload), head, {"": Workload, "network": Network})


def commented_profile(profile: HardwareProfile, *, head: str) -> str:
    """Return a profile as TOML with a comment on each number; ``head`` is the first comment."""
    return _comment(profile_text(profile), head, {"": HardwareProfile})


def _comment(text: str, head: str, models: Mapping[str, type[BaseModel]]) -> str:
    table = ""
    lines = [f"# {line}" for line in head.splitlines()]
    for line in text.splitlines()[1:]:
        if match := _TABLE.match(line):
            table = match[1]
            model = models.get("")
            told = model.model_fields[table].description if model and table in model.model_fields else None
            lines += [f"{line}  # {told}" if told else line]
            continue
        if line.startswith("["):
            table = "no fields"
        match = _FIELD.fullmatch(line)
        described = models.get(table)
        field = described.model_fields.get(match[1]) if match and described else None
        lines.append(f"{line}  # {field.description}" if field and field.description else line)
    return "\n".join(lines) + "\n"
