"""The flags of ``loratorio serve`` that its engines are given as they are."""

import argparse

DTYPES = {"half": "float16", "float": "float32"}


def add_engine(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    group.add_argument(
        "--dtype", default="auto", choices=["auto", "bfloat16", "float16", "float32", *DTYPES]
    )
    group.add_argument(
        "--max-model-len",
        type=_positive,
        metavar="TOKENS",
        help="prompt plus completion (default: what the model and memory allow)",
    )
    group.add_argument(
        "--kv-cache-dtype", choices=["auto", "fp8", "fp8_e4m3"],
        help="of keys and values in pages: fp8 halves them (default: the compute dtype)",
    )  # fmt: skip
    group.add_argument(
        "--head-dtype", choices=["auto", "int8"],
        help="of the output layer; int8 is quicker, and how far off is said at start",
    )  # fmt: skip
    group.add_argument(
        "--adapter-dtype", choices=["auto", "int8", "fp8", "fp8_e4m3"],
        help="of adapters in pages: 8 bits halve them; int8 is nearer to what was trained than fp8",
    )  # fmt: skip
    group.add_argument(
        "--speculative-config", metavar="JSON",
        help="verify guessed tokens, more than one a step, with vLLM's keys: "
        '{"method": "ngram", "num_speculative_tokens": 4}',
    )  # fmt: skip
    group.add_argument("--max-num-seqs", type=_positive, metavar="N", help="sequences per step")
    group.add_argument(
        "--max-num-batched-tokens", type=_positive, metavar="TOKENS", help="tokens per forward pass"
    )
    group.add_argument("--block-size", type=_positive, metavar="TOKENS", help="tokens per page")
    group.add_argument(
        "--gpu-memory-utilization",
        type=float,
        metavar="SHARE",
        help="share of the device's memory to use",
    )
    group.add_argument(
        "--host-cache-bytes",
        type=_positive,
        metavar="BYTES",
        help="of adapters kept in host memory (default: 1 GiB)",
    )
    group.add_argument(
        "--swap-bytes",
        type=int,
        metavar="BYTES",
        help="of host memory for sequences that had to yield their pages (default: 1 GiB)",
    )
    group.add_argument("--enforce-eager", action="store_true", help="no captured graphs")
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compute equal beginnings of a project's prompts once (default: on)",
    )
    group.add_argument(
        "--max-step-ms",
        type=_positive,
        metavar="MS",
        help="time of a step while sequences decode (default: 25 on CUDA): sizes prompts' chunks",
    )
    group.add_argument(
        "--max-tenant-share",
        type=float,
        metavar="SHARE",
        help="of the pages, beyond which a project's next sequence waits (default: 1)",
    )
    group.add_argument(
        "--max-queue-wait",
        type=_positive,
        metavar="SECONDS",
        help="refuse at once whoever would wait longer (default: until its deadline)",
    )
    group.add_argument(
        "--deterministic",
        action="store_true",
        help="a request's tokens never depend on who shares the batch",
    )
    group.add_argument(
        "--tensor-parallel-size", "-tp", type=int, default=1, metavar="N",
        help="GPUs that compute the model together (default: 1)",
    )  # fmt: skip
    group.add_argument(
        "--disable-custom-all-reduce", action="store_true",
        help="leave sums over GPUs to NCCL alone",
    )  # fmt: skip


PASSED_ON = ("kv_cache_dtype", "head_dtype", "adapter_dtype", "speculative_config", "max_model_len",
             "max_num_seqs", "max_num_batched_tokens", "block_size", "gpu_memory_utilization",
             "max_step_ms", "max_tenant_share", "max_queue_wait", "host_cache_bytes",
             "swap_bytes")  # fmt: skip


def engine_flags(arguments: argparse.Namespace) -> tuple[str, ...]:
    flags: list[str] = []
    for name in PASSED_ON:
        if (value := getattr(arguments, name)) is not None:
            flags += [f"--{name.replace('_', '-')}", str(value)]
    flags += [] if arguments.enable_prefix_caching else ["--no-enable-prefix-caching"]
    size = arguments.tensor_parallel_size
    flags += ["--tensor-parallel-size", str(size)] if size > 1 else []
    if arguments.disable_custom_all_reduce:
        flags.append("--disable-custom-all-reduce")
    flags += ["--enforce-eager"] if arguments.enforce_eager else []
    flags += ["--deterministic"] if arguments.deterministic else []
    return tuple(flags)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)
