"""Configuration: what holds, who said it, and the backend that follows from it.

Arguments come before the environment (`KNOTLINE_*`), then the project's `.knotline/config.json`, then `[tool.knotline]`
in its pyproject.toml, then the user's config.json, then the defaults. No other room asks where the home is.
"""

from __future__ import annotations

from knotline.config.opening import encrypted, open_backend
from knotline.config.places import data_dir, expand, find_project, home_folder, user_file
from knotline.config.settings import DEFAULT, Row, Settings, from_block, load_settings, read_config
from knotline.config.shape import Durability, StorageType, nearest, schema_text

__all__ = [
    "DEFAULT",
    "Durability",
    "Row",
    "Settings",
    "StorageType",
    "data_dir",
    "encrypted",
    "expand",
    "find_project",
    "from_block",
    "home_folder",
    "load_settings",
    "nearest",
    "open_backend",
    "read_config",
    "schema_text",
    "user_file",
]
