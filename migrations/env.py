"""Alembic's entry: runs revisions on the connection that ``migrations.runner`` hands over."""

from alembic import context

from migrations.runner import METADATA

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=METADATA,
    render_as_batch=connection.dialect.name == "sqlite",
    transactional_ddl=True,  # SQLite's DDL is transactional too, once the driver lets it be
)
context.run_migrations()
