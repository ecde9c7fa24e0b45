"""The engine: tokens, pages, adapters and tensors of one base. It knows no text and no tenants.

What decides imports no torch. Modules by what they are about, in the order in which to read them:

    said to gateways  protocol, transport, tls, address; client, stream, handing: a gateway's end;
                      server is ours; beats, bulletin
    the loop          core: a round; reception, admission, door, deadlines: in; harvest, book: out;
                      mailbox, under_way, collector
    what runs next    scheduler, waiting, fairness, claims, portions, pace, tempo, waits;
                      request, sequence, course, planned, step
    pages             pages, prefix, seating, eviction, swap; page_size
    adapters          residency, activation, placement, adapter_layout, adapter_memory,
                      adapter_table, adapter_vectors, outer, references
    grammars          grammar, grammars, matcher, masking, effort
    a forward pass    runner, batch, staging, images, seeing, sampling, last_draws;
                      graphs, decode_table, mixed_graphs, mixed_layout, capturing: captured ones
    a start           cli, serve_flags, flags, config; composition, source, part, facilities, built;
                      checkpoint, reading_ahead, loading, stored_weights, precision, page_memory,
                      host_pages, memory, plan; rehearsal, warm_plans, compilers, compiler,
                      compiling, timeline
    what is told      metrics, vllm_metrics, share_metrics, standing, observer, distribution,
                      labels, counts, traces, otlp; errors

Packages: ``layers`` and ``models`` are the forward pass, ``quant`` the formats of weights,
``speculation`` drafts, ``handoff`` prompts that one engine computes for another, ``team`` several
devices, ``on_ray`` a cluster; ``inspection``, ``quantiser``, ``demo`` and ``bench`` are commands.
"""
