"""The gateway: tenants, limits, text and usage before engines. It has no tensors.

    put together      app, bookkeeping, base_specs, config, bootstrap; background, announcements
    a port            listener, connection, http, cors, patience; rest: all but the hot routes
    in memory         snapshot: keys, limits and names; weights
    the database      db, drivers, redis, redis_line, column_text, ids, names
    money             spending, orphans, expiry, counters, books_watch
    what is told      errors, health, metrics, metrics_page, metrics_names, counter, histogram, log,
                      tracing, allocator

Packages: ``inference`` is a request, ``identity``, ``catalog``, ``limits``, ``usage`` and ``fleet``
are the domains it asks; ``adapter_api``, ``admin``, ``responses``, ``files`` and ``batches`` other
routes; ``idempotency``, ``texts``, ``refusals``, ``audit`` and ``alerts`` what is kept and told
beside them; ``billing`` exports; ``dashboard`` and ``page`` pages; ``cli`` commands, with
``declared``, ``litellm``, ``backup`` and ``checkup`` behind them.
"""
