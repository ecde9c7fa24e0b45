"""What a LiteLLM proxy was told, as a file of tenants for ``loratorio apply``."""
