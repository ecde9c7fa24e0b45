"""Two members that share memory get the same sum, launch after launch: two processes where kernels
are interpreted, two streams of one device where they are compiled."""

import multiprocessing

import pytest
import torch

from kernels.launch import interpreting
from kernels.peer_sum import PROGRAMS, Peers, peer_sum, peer_sum_reference
from tests.kernels.compiled import compile_kernel

ROOM = 1 << 17
SIZES = [(1, 16), (3, 257), (17, 1536), (1, 16)]  # what is left of a larger sum must not show
WAIT_S = 60


def what(member, launch):
    """What a member adds: planes and perhaps an addend."""
    T, N = SIZES[launch]
    random = torch.Generator().manual_seed(10 * launch + member)
    planes = torch.randn(1 + launch % 2, T, N, generator=random)
    addend = torch.randn(T, N, generator=random).bfloat16() if launch % 3 else None
    return planes, addend


def members(device):
    """The peers of each of two members, over memory that both reach."""
    memory = [torch.zeros(2 * ROOM, dtype=torch.uint8, device=device) for _ in range(2)]
    flags = [torch.zeros(2 * PROGRAMS, dtype=torch.int64, device=device) for _ in range(2)]
    if device == "cpu":
        for each in (*memory, *flags):
            each.share_memory_()
    addresses = [
        torch.tensor([each.data_ptr() for each in those], device=device)
        for those in (memory, flags)
    ]
    launched = [torch.zeros(PROGRAMS, dtype=torch.int64, device=device) for _ in range(2)]
    return [Peers(i, *addresses, launched[i], ROOM) for i in range(2)], (memory, flags)


def follow(peers, answers):
    for launch in range(len(SIZES)):
        answers.put(peer_sum(*what(1, launch), peers, torch.float32).numpy())


def expected(launch, dtype):
    return peer_sum_reference([what(member, launch) for member in range(2)], dtype)


@pytest.mark.skipif(not interpreting(), reason="on a CPU the interpreter alone runs it")
def test_two_processes_get_the_sum():
    (lead, other), _memory = members("cpu")
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=follow, args=(other, answers), daemon=True)
    process.start()
    try:
        for launch in range(len(SIZES)):
            ours = peer_sum(*what(0, launch), lead, torch.float32)
            theirs = torch.from_numpy(answers.get(timeout=WAIT_S))
            torch.testing.assert_close(ours, expected(launch, torch.float32))
            assert torch.equal(ours, theirs)
    finally:
        process.kill()
        process.join()


@pytest.mark.gpu
def test_two_streams_of_a_device_get_the_sum():
    pair, _memory = members("cuda")
    streams = [torch.cuda.Stream() for _ in pair]
    torch.cuda.synchronize()
    for launch in range(len(SIZES)):
        found = []
        for member, (peers, stream) in enumerate(zip(pair, streams, strict=True)):
            given = [t if t is None else t.cuda() for t in what(member, launch)]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                found.append(peer_sum(*given, peers, torch.bfloat16))
        torch.cuda.synchronize()
        assert torch.equal(*found)
        torch.testing.assert_close(found[0].cpu(), expected(launch, torch.bfloat16))


@pytest.mark.skipif(interpreting(), reason="nothing is compiled")
def test_a_sum_is_read_and_written_in_whole_words():
    """As compiled for a GPU: flags order what lies between, and nothing spills."""
    from kernels.peer_sum import _peer_sum_kernel

    signature = {
        "planes_ptr": "*fp32", "addend_ptr": "*bf16", "out_ptr": "*bf16", "buffers_ptr": "*i64",
        "flags_ptr": "*i64", "launched_ptr": "*i64", "size": "i32", "member": "i32",
    }  # fmt: skip
    constants = {"PARTS": 2, "ADDEND": True, "MEMBERS": 2, "ROOM": 1 << 20, "BLOCK": 2048}
    compiled = compile_kernel(_peer_sum_kernel, signature, constants, warps=8, aligned=("size",))
    assert compiled.spilled == 0
    assert "atom.global.sys.release" in compiled.ptx
    assert "global.sys.acquire" in compiled.ptx or "atom.global.sys.acquire" in compiled.ptx
    assert compiled.ptx.count("st.global.v4.b32") == 2  # to the others, and the result
