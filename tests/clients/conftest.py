"""A real server for the clients that people use."""

from tests.e2e.conftest import demo_cache, make_data_dir, server

__all__ = ["demo_cache", "make_data_dir", "server"]
